"""A device whose driver runs nothing: the core's own driver calls, on a machine without a GPU.

`null_driver.c` notes what it is given, and passes work at once, or when a test lets it. The class
of streams stands in the place of the CUDA backend's: the core knows it by its name, and compares
its methods. Where the core is off, they make the same calls through `struct` and `ctypes`.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import shutil
import struct
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from inspect import unwrap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from numbasync import native
from numbasync.backend import array_protocols
from numbasync.backend.array_readers import reader_of
from numbasync.backend.borrowed import Borrowed
from numbasync.backend.cpu.runtime.array import CpuArray
from numbasync.backend.cpu.runtime.device import CpuDevice
from numbasync.backend.cpu.runtime.memory import CpuMemory, CpuPool
from numbasync.backend.protocols import ArrayKey, CompletionPath, Waker, Work, counters
from numbasync.device.device import Device, devices, use_device
from numbasync.errors import DeviceLostError, DriverError, DTypeError, StateError
from numbasync.tensors import quick_import

NOT_READY, LOST = 600, 700
FILLS = ("cuMemsetD8Async", "cuMemsetD16Async", "cuMemsetD32Async")
COPIES = ("cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2")
CODES = {  # Numba's types as `struct` packs them
    "bool": "?", "int8": "b", "uint8": "B", "int16": "h", "uint16": "H", "int32": "i",
    "uint32": "I", "int64": "q", "uint64": "Q", "float16": "e", "float32": "f", "float64": "d",
}  # fmt: skip


class Launched(ctypes.Structure):
    """A launch as the driver got it."""

    _fields_ = [
        ("function", ctypes.c_uint64), ("stream", ctypes.c_uint64), ("nbytes", ctypes.c_uint64),
        ("extents", ctypes.c_uint32 * 7), ("bytes", ctypes.c_ubyte * 1024),
    ]  # fmt: skip

    @property
    def arguments(self) -> bytes:
        return bytes(self.bytes[: self.nbytes])

    def described(
        self, kernels: Mapping[int, NullKernel], arrays: Mapping[int, object]
    ) -> list[Any]:
        """The stream, the kernel, the extents and the arguments, with names for addresses."""
        kernel, result = kernels[self.function], list[Any]()
        for code, offset in kernel.buffer_layout.parts:
            size = struct.calcsize(code or "Q")
            if code == "s":
                fields: list[Any] = [*struct.unpack_from("QQqqQ", self.arguments, offset)]
                fields[4] = arrays.get(fields[4])
                result.append(fields)
            elif code:
                result.append(struct.unpack(code, self.arguments[offset : offset + size]))
        return [self.stream, self.function, list(self.extents), *result]


@cache
def library() -> ctypes.CDLL:
    """The null driver, compiled; skips the test where there is no C compiler."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    compiler = compiler if shutil.which(compiler) else "cc"
    if shutil.which(compiler) is None:
        pytest.skip("no C compiler: the null driver cannot be compiled")
    source = Path(__file__).with_name("null_driver.c")
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "null_driver.so")
        command = [compiler, "-shared", "-fPIC", "-O1", "-pthread", "-o", str(target), str(source)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            why = (result.stderr or f"{compiler} failed").strip().splitlines()[-1]
            pytest.skip(f"the null driver cannot be compiled: {why}")
        driver = ctypes.CDLL(str(target))
    driver.null_launched.restype = ctypes.c_uint64
    driver.null_launch.restype = ctypes.POINTER(Launched)
    driver.null_launch.argtypes = [ctypes.c_uint64]
    driver.null_filled.restype = driver.null_peer.restype = ctypes.POINTER(ctypes.c_uint64)
    driver.null_replayed.restype = driver.null_waited.restype = ctypes.c_uint64
    driver.null_switched.restype = ctypes.c_uint64
    driver.null_wait.restype = driver.null_collective.restype = ctypes.POINTER(ctypes.c_uint64)
    driver.null_collected.restype = driver.null_grouped.restype = ctypes.c_uint64
    driver.null_begun.restype = ctypes.c_uint64
    driver.null_leave.argtypes = [ctypes.c_uint64]
    driver.null_capture.argtypes = [ctypes.c_void_p]
    driver.cuEventRecord.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    driver.cuStreamWaitEvent.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint]
    driver.cuStreamIsCapturing.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    for name in ("null_hold", "null_pass", "cuStreamQuery", "cuStreamSynchronize"):
        getattr(driver, name).argtypes = [ctypes.c_void_p, ctypes.c_int][
            : 1 + (name == "null_hold")
        ]
    driver.cuStreamWriteValue32_v2.argtypes = [
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint,
    ]  # fmt: skip
    driver.cuLaunchKernel.argtypes = [
        ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p,
    ]  # fmt: skip
    return driver


def launches(first: int = 0) -> list[Launched]:
    """Copies of the launches so far, from number `first` on."""
    driver = library()
    return [
        Launched.from_buffer_copy(driver.null_launch(i).contents)
        for i in range(first, driver.null_launched())
    ]


def waits() -> list[tuple[int, int]]:
    """Each wait by an event: the stream, and the one that it waits for."""
    driver = library()
    pairs = (driver.null_wait(i) for i in range(driver.null_waited()))
    return [(pair[0], pair[1]) for pair in pairs]


class Collected(NamedTuple):
    """A rank's call of the latest group of NCCL's."""

    function: str
    send: int
    recv: int
    size: int
    dtype: int
    choice: int
    comm: int
    stream: int


NCCL = ("ncclAllReduce", "ncclReduceScatter", "ncclAllGather", "ncclBroadcast")  # as numbered


def collected() -> list[Collected]:
    driver = library()
    rows = (driver.null_collective(i)[:8] for i in range(driver.null_collected()))
    return [Collected(NCCL[row[0] - 1], *row[1:]) for row in rows]


def nccl_addresses() -> dict[str, int]:
    names = ("ncclGroupStart", "ncclGroupEnd", *NCCL)
    pointers = ((name, ctypes.cast(getattr(library(), name), ctypes.c_void_p)) for name in names)
    return {name: pointer.value or 0 for name, pointer in pointers}


def error_of(result: int, call: str) -> Exception:
    if result == LOST:
        return DeviceLostError(f"a fault has broken the context: {result}, reported by {call}.")
    return DriverError(call, result, f"CUresult {result}", "")


def fail(result: int, call: str) -> None:
    raise error_of(result, call)


def enter(device: Any) -> None:
    """As `driver.enter`. A GPU has its own: the plugin settles all devices between two tests."""
    if isinstance(device, NullDevice):
        device.entered += 1
        library().null_switch(ctypes.c_uint64(device.context))
    else:
        from numbasync.backend.cuda import driver

        unwrap(driver.enter)(device)


enter.__qualname__ = "enter"


# --- kernels and their arguments ---


def array_format(ndim: int) -> str:
    """Numba's parameters for an array: two pointers, size, item size, address, extents, strides."""
    return "QQqqQ" + "qq" * ndim


class CudaArray(CpuArray):
    """An array, with its parameters as bytes; the core knows it by its name, too."""

    __slots__ = ("address", "dtype", "nbytes", "packed")

    def __init__(self, array: Any) -> None:
        super().__init__(array)
        self.address, self.dtype, self.nbytes = array.ctypes.data, array.dtype, array.nbytes
        fields = (0, 0, array.size, array.itemsize, array.ctypes.data, *array.shape, *array.strides)
        self.packed = struct.pack(array_format(array.ndim), *fields)


class CudaMemory(CpuMemory):
    """An allocation, whose address the core reads."""

    __slots__ = ("address", "counted", "lent")
    counted: CpuMemory  # what the pool counts, as long as this lives

    def __init__(self, nbytes: int) -> None:
        super().__init__(nbytes)
        self.address = int(self.bytes.ctypes.data)  # type: ignore[misc]  # no property here
        self.lent = False


class NullPool(CpuPool):
    """A pool of the host's memory."""

    def allocate(self, nbytes: int, stream: object) -> CudaMemory:
        memory = CudaMemory(nbytes)
        memory.counted = super().allocate(nbytes, stream)
        return memory


class Layout(NamedTuple):
    """The argument buffer of a kernel; as `kernels.BufferLayout`."""

    format: str
    parts: list[tuple[str, int]]
    nbytes: int


def layout_of(codes: Sequence[str]) -> Layout:
    """The layout of arguments: a code of `struct`, "" for None, or an array's format."""
    formats, parts, offset = ["="], list[tuple[str, int]](), 0
    for code in codes:
        size = struct.calcsize(code or "Q")
        gap = -offset % min(size, 8)
        field = f"{size}x" if not code else f"{size}s" if len(code) > 1 else code
        formats.append(f"{gap}x{field}")
        parts.append(("s" if len(code) > 1 else code, offset + gap))
        offset += gap + size
    return Layout("".join(formats), parts, offset)


class NullKernel:
    """A kernel that does nothing, of arguments of these types."""

    max_threads_per_block = 1024
    static_shared_bytes = 0
    from_disk = False
    engine = why = ""

    def __init__(self, function: int, keys: Sequence[Any]) -> None:
        self.function = function
        self.argument_types = tuple(keys)
        self.buffer_layout = layout_of([
            array_format(k.ndim) if isinstance(k, ArrayKey) else CODES.get(str(k), "")
            for k in keys
        ])  # fmt: skip

    def suggested_threads(self) -> int:
        return 128


class Record:
    """A launch prepared in Python; as `launch_records.Record`."""

    def __init__(self, work: Work, stream: int) -> None:
        kernel: Any = work.executable
        self.layout, self.work, self.stream = kernel.buffer_layout, work, stream
        self.buffer = ctypes.create_string_buffer(self.layout.nbytes + 8)

    def run(self, args: Sequence[Any]) -> int:
        given: list[Any] = [*args, *self.work.constants]
        values = [
            a.packed if code == "s" else a
            for (code, _), a in zip(self.layout.parts, given, strict=True)
            if code
        ]
        struct.pack_into(self.layout.format, self.buffer, 0, *values)
        size = ctypes.c_size_t(self.layout.nbytes)
        extra = (ctypes.c_void_p * 5)(
            1, ctypes.addressof(self.buffer), 2, ctypes.addressof(size), None
        )
        work, kernel = self.work, self.work.executable
        result: int = library().cuLaunchKernel(
            kernel.function, *work.grid, *work.block, work.shared_bytes,  # type: ignore[attr-defined]
            self.stream, None, extra,
        )  # fmt: skip
        return result


def new_record(work: Work, number: int) -> Any:
    """A record of launches on the stream of that handle."""
    kernel: Any = work.executable
    layout = kernel.buffer_layout
    if not native.core.is_on():
        return Record(work, number)
    return native.core.LaunchRecord(
        kernel.function, work.grid, work.block, work.shared_bytes, number, layout.nbytes,
        layout.parts, work.constants,
    )  # fmt: skip


# --- streams ---


class NullEvent:
    """A recorded point of a stream. A stream that waits for it lets the work before it pass."""

    stream = 0

    def query(self) -> bool:
        return not library().cuStreamQuery(self.stream)

    def synchronize(self) -> None:
        library().cuStreamSynchronize(self.stream)


class CudaStream:
    """A stream of the null driver."""

    __slots__ = (
        "__weakref__", "_gates", "_last", "_number", "_passed", "_word", "calls", "device",
        "records",
    )  # fmt: skip
    native = None

    def __init__(self, device: NullDevice, number: int) -> None:
        self.device, self._number = device, number
        self._word = ctypes.c_uint32(0)
        self._passed = self._gates = self._last = 0
        self.records: dict[Work, Any] = {}
        self.calls = native.core.DriverStream(
            number, device, *[ctypes.addressof(self._word)] * 2, self.records
        )

    @property
    def handle_number(self) -> int:
        return self._number

    def launch(self, work: Work, args: list[Any], queue: Any) -> Any:
        self.enqueue(work, args)
        return queue

    def enqueue(self, work: Work, args: Sequence[Any]) -> None:
        enter(self.device)
        record = self.records.get(work) or self.record_of(work)
        try:
            result = record.run(args)
        except (struct.error, OverflowError) as error:
            raise DTypeError(f"an argument does not fit the kernel's type: {error}") from error
        if result:
            fail(result, "cuLaunchKernel")
        counters.launches += 1

    def record_of(self, work: Work) -> Any:
        self.records[work] = new_record(work, self._number)
        return self.records[work]

    def open(self) -> NullQueue:
        return NullQueue(self)

    def fill(self, dst: Any, value: Any, queue: Any) -> Any:
        self._call("cuMemsetD8Async", ctypes.c_uint64(0), 0, ctypes.c_size_t(0))
        return queue

    def upload(self, dst: Any, block: Any, queue: Any) -> Any:
        self._call("cuMemcpyHtoDAsync_v2", None, None, ctypes.c_size_t(0))
        counters.copies += 1
        return queue

    def download(self, block: Any, src: Any, queue: Any) -> Any:
        self._call("cuMemcpyHtoDAsync_v2", None, None, ctypes.c_size_t(0))
        counters.copies += 1
        return queue

    def copy_peer(self, dst: Any, src: Any, source: Any, queue: Any) -> Any:
        near, far = self.device.context, source.context
        start, source_start = dst.array.ctypes.data, src.array.ctypes.data
        args = start, near, source_start, far, dst.array.nbytes
        self._call("cuMemcpyPeerAsync", *map(ctypes.c_uint64, args))
        counters.copies += 1
        return queue

    def replay(self, graph: Any, queue: Any) -> Any:
        self._call("cuGraphLaunch", None)
        counters.replays += 1
        return queue

    def _call(self, name: str, *args: Any) -> None:
        enter(self.device)
        result = library()[name](*args, ctypes.c_void_p(self._number))
        if result:
            fail(result, name.removesuffix("_v2"))

    def write(self, sequence: int) -> None:
        address, number = ctypes.addressof(self._word), sequence & 0xFFFFFFFF
        result = library().cuStreamWriteValue32_v2(self._number, address, number, 0)
        if result:
            fail(result, "cuStreamWriteValue32")
        self._last = sequence

    def record(self, event: NullEvent) -> None:
        native.core.enter(self.device)
        event.stream = self._number

    def wait(self, event: NullEvent) -> None:
        native.core.enter(self.device)
        self.device.waits.append((self._number, event.stream))
        library().null_pass(event.stream)

    def put_behind(self, other: int) -> None:
        status = ctypes.c_int()
        if other == self._number:
            return
        library().cuStreamIsCapturing(other, ctypes.addressof(status))
        if status.value:
            raise StateError(f"the stream {other:#x} is captured")
        event = self.device.events.take()
        result = library().cuEventRecord(event, other)
        result = result or library().cuStreamWaitEvent(self._number, event, 0)
        self.device.events.numbers.append(event)
        if result:
            fail(result, "cuStreamWaitEvent")

    def hold(self) -> Callable[[], None]:
        self._gates += 1
        library().null_hold(self._number, 1)

        def release() -> None:
            self._gates -= 1
            library().null_hold(self._number, int(self._gates > 0))

        return release

    def pass_all(self) -> None:
        """Let the device pass all work of this stream that is enqueued now."""
        library().null_pass(self._number)

    def completed(self) -> int:
        self._passed += (self._word.value - self._passed) & 0xFFFFFFFF
        return self._passed

    def fault(self) -> BaseException | None:
        result = library().cuStreamQuery(self._number)
        return error_of(result, "cuStreamQuery") if result not in (0, NOT_READY) else None

    def verified_sequence(self) -> int:
        return 0

    def query(self) -> bool:
        result = library().cuStreamQuery(self._number)
        if result not in (0, NOT_READY):
            fail(result, "cuStreamQuery")
        return not result

    def passed_ns(self) -> None:
        return None

    def spin_poll(self) -> bool:
        return self.query()

    def synchronize(self) -> None:
        enter(self.device)
        result = library().cuStreamSynchronize(self._number)
        if result:
            fail(result, "cuStreamSynchronize")

    def wake(self, sequence: int, waker: Waker) -> bool:
        return False


class NullQueue:
    """The work of one submission that has no fast path."""

    def __init__(self, stream: CudaStream) -> None:
        self.stream = stream

    def launch(self, work: Work, args: Sequence[Any]) -> None:
        self.stream.enqueue(work, args)

    def upload(self, dst: Any, src: Any) -> None:
        counters.copies += 1

    def download(self, dst: Any, src: Any) -> None:
        counters.copies += 1

    def copy(self, dst: Any, src: Any) -> None:
        counters.copies += 1

    def copy_peer(self, dst: Any, src: Any, source: Any) -> None:
        self.stream.copy_peer(dst, src, source, self)

    def fill(self, dst: Any, value: Any) -> None:
        pass

    def replay(self, graph: Any) -> None:
        counters.replays += 1

    def failure(self) -> None:
        return None


class ExecutableGraph:
    """A graph that does nothing."""

    __slots__ = ("checks", "number")

    def __init__(self) -> None:
        self.checks, self.number = (), 5


class Events:
    """Handles of events, as `waits.SpareEvents`."""

    def __init__(self, made: int) -> None:
        self.numbers: list[int] = []
        self.made = made

    def take(self) -> int:
        self.made += not self.numbers
        return self.numbers.pop() if self.numbers else self.made


class NullDevice(CpuDevice):
    """The backend's device: memory of the host, and streams of the null driver."""

    completion = CompletionPath("null", "the driver writes the word, or a test lets it")
    entered = 0  # how often a thread entered the device, but for switches of the core

    def __init__(self, ordinal: int) -> None:
        super().__init__(ordinal)
        self.streams = 0
        self.waits: list[tuple[int, int]] = []  # a stream, and the one that it waited for
        self.kernels: dict[int, NullKernel] = {}
        self.context = 0x100 * ordinal
        self.events = Events(8 * (ordinal % 8))  # the driver knows 64, of all devices
        self.launches_elsewhere: dict[Any, Any] = {}

    def new_stream(self, priority: int) -> Any:
        self.streams += 1
        return CudaStream(self, 0x1000 + self.streams)

    def host_block(self, nbytes: int) -> Any:
        return np.zeros(nbytes, np.uint8)  # nothing is copied there

    def new_pool(self) -> NullPool:
        return NullPool("null", self.total_memory, lambda: False)

    def new_event(self, timing: bool) -> Any:
        return NullEvent()

    def array(self, memory: Any, offset: Any, shape: Any, strides: Any, dtype: Any) -> CudaArray:
        if isinstance(memory, Borrowed):  # a handle has no hold on the memory, as on a GPU
            at: Any = (ctypes.c_char * memory.nbytes).from_address(memory.address)
            return CudaArray(np.ndarray(shape, dtype, at, offset, strides))
        return CudaArray(super().array(memory, offset, shape, strides, dtype).array)

    def compile(self, dispatcher: Any, keys: Any) -> Any:
        counters.compiles += 1
        kernel = NullKernel(len(self.kernels) + 1, keys)
        self.kernels[kernel.function] = kernel
        return kernel

    def graph(self, commands: Any) -> Any:
        return ExecutableGraph()

    def is_captured(self, number: int) -> bool:
        status = ctypes.c_int()
        library().cuStreamIsCapturing(number, ctypes.addressof(status))
        return bool(status.value)

    def launch_at(self, number: int, work: Work, args: list[Any]) -> bool:
        enter(self)
        result = self.launches_elsewhere.setdefault((work, number), new_record(work, number)).run(
            args
        )
        if result:
            fail(result, "cuLaunchKernel")
        counters.launches += 1
        return True

    def foreign(self, obj: object) -> Any:
        reader = reader_of(type(obj))
        reading = None if reader is None or reader.may_be_readonly else reader.read(obj)
        if reader is None or reading is None:
            if array_protocols.place(obj) == (2, self.ordinal):
                array_protocols.read_dlpack(obj, stream=-1)
            return super().foreign(obj)
        export = array_protocols.exported(
            obj, reading.address, reading.shape, reading.strides, reading.dtype, False,
            reader.library.keep(obj),
        )  # fmt: skip
        return Borrowed.exported(reader, reading, export, None)

    def quiesce(self) -> None:
        """Nothing runs by itself."""


# --- in the place of the CUDA backend ---


def _use(classes: list[Any], of_enter: Any, connect: Callable[[], object]) -> None:
    core = native.core
    for cls in classes:
        core.know(cls)
    for name in core.METHODS:
        core.take_over(unwrap(vars(classes[0])[name]))  # what the core's own is in place of
    core.take_over(of_enter)
    core.forget_current()
    connect()


def _connect() -> None:
    driver = library()
    own = (
        "cuLaunchKernel cuStreamQuery cuStreamSynchronize cuGraphLaunch cuCtxGetCurrent "
        "cuCtxSetCurrent cuEventRecord cuStreamWaitEvent cuStreamIsCapturing"
    )
    names = {n: n for n in (*own.split(), "cuStreamWriteValue32_v2", "cuMemcpyPeerAsync", *FILLS)}
    names |= dict.fromkeys(COPIES, COPIES[0])
    addresses = {
        name: ctypes.cast(getattr(driver, own), ctypes.c_void_p).value
        for name, own in names.items()
    }
    native.core.use_driver(addresses, fail, counters)


@contextmanager
def null_device() -> Iterator[Device]:
    """A new device on the null driver, current inside the block; the core calls that driver."""
    driver = library()
    driver.null_reset()
    with suppress(ImportError):  # imported later, it would take the place of `enter`
        importlib.import_module("numbasync.backend.cuda.driver")
    _use([CudaStream, CudaArray, CudaMemory, ExecutableGraph], enter, _connect)
    backend = NullDevice(99)
    try:
        with use_device(Device(backend)) as device:
            quick_import._gpus[99] = device
            yield device
    finally:
        quick_import._gpus.pop(99, None)
        driver.null_reset()
        backend._engine.stop()
        if devices("cuda"):  # their driver, again
            from numbasync.backend.cuda import arrays, graph, launch_records, memory, stream

            classes = [stream.CudaStream, arrays.CudaArray, memory.CudaMemory]
            classes.append(graph.ExecutableGraph)
            _use(classes, unwrap(stream.enter), launch_records.connect.__wrapped__)
