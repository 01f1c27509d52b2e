"""Exchange of arrays with other libraries on one GPU: imports, exports and their stream order.

Order between two libraries is kept by streams alone. A library that exports by DLPack is asked
to order a stream of numbasync behind its current one. A library with `__cuda_array_interface__`
names the stream behind which the stream of numbasync must be ordered. A library with a quick reader
is asked which one its current stream is.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from numbasync import dtypes
from numbasync.backend import array_attributes, array_protocols
from numbasync.backend.array_attributes import LEGACY, ArrayView, default_stream_of_numba
from numbasync.backend.array_protocols import Exported
from numbasync.backend.array_readers import Reader, know_borrowers, reader_of
from numbasync.backend.borrowed import Borrowed
from numbasync.backend.cuda.driver import cu, enter
from numbasync.backend.cuda.memory import CudaMemory
from numbasync.backend.cuda.pointers import ordinal_at
from numbasync.backend.cuda.waits import is_captured, put_behind, record, wait
from numbasync.errors import OperationError

if TYPE_CHECKING:
    from numbasync.backend.cuda.arrays import CudaArray
    from numbasync.backend.cuda.event import CudaEvent
    from numbasync.backend.cuda.gpu import Gpu
    from numbasync.backend.cuda.stream import CudaStream


def _put_behind_producer(device: Gpu, handle: int, array: Any) -> None:
    """Order later work of stream `handle` after what the array's library has enqueued."""
    producer = _producer(array, array.__cuda_array_interface__)
    if producer:
        put_behind(device, handle, producer)


def _producer(array: Any, interface: Mapping[str, Any]) -> int | None:
    """The handle of the stream that the array's library works on; None: order is not needed.

    Numba's arrays name no stream if their work is on Numba's default stream, where kernels and
    copies may be pending: also `cuda.to_device` returns before the device has the elements.
    """
    stream = interface.get("stream")
    if stream is None and type(array).__module__.startswith("numba."):
        return default_stream_of_numba()
    return None if stream is None else int(stream)


class Bridges:
    """Streams without work of their own, for waits alone. A bridge ordered behind a library's
    work marks a point behind which other streams can be ordered. Idle bridges are reused, and
    none is destroyed.
    """

    def __init__(self, device: Gpu) -> None:
        self._device = device
        self._all: list[Any] = []
        self._lock = threading.Lock()

    def take(self) -> int:
        """The handle of an idle bridge."""
        enter(self._device)
        with self._lock:
            for stream in self._all:
                (result,) = cu.cuStreamQuery(stream.handle)
                if result:
                    continue
                return int(stream.handle)
            bridge = self._device.core.create_stream()
            self._all.append(bridge)
            return int(bridge.handle)

    def mark(self, handle: int) -> CudaEvent | None:
        """An event at the present point of the bridge; None if the point is already passed."""
        (result,) = cu.cuStreamQuery(cu.CUstream(handle))
        if not result:
            return None
        return _marked(self._device, handle)


def _marked(device: Gpu, handle: int) -> CudaEvent:
    """A new event at the present point of a stream."""
    event: CudaEvent = device.new_event(timing=False)
    record(int(event.handle), handle)
    return event


class ForeignMemory(CudaMemory):
    """Memory of another library, with the object that keeps the memory alive."""

    __slots__ = ("_keep",)

    def __init__(self, export: Exported) -> None:
        super().__init__(export.low, export.nbytes)
        self._keep = export.keep


class CudaForeign:
    """An array of another library in a GPU's memory, by a protocol."""

    is_nonblocking = False
    __slots__ = ("_array", "_by_dlpack", "_device", "_mark", "export", "memory")

    def __init__(
        self, device: Gpu, array: Any, export: Exported, mark: CudaEvent | None, dlpack: bool
    ) -> None:
        self._device = device
        self._array = array
        self._by_dlpack = dlpack
        # Marks the work that the library had enqueued when the array was imported. The library's
        # current stream may have changed when work is enqueued here, perhaps on another thread.
        self._mark = mark
        self.export = export
        self.memory = ForeignMemory(export)

    def order(self, stream: CudaStream) -> None:
        self.follow(int(stream.handle))

    def follow(self, handle: int) -> None:
        """`order`, for any library's stream."""
        enter(self._device)
        mark = self._mark
        if mark is not None:
            if mark.query():
                self._mark = None
            else:
                wait(handle, int(mark.handle))
        if self._by_dlpack:
            array_protocols.capsule(self._array, stream=handle)
            return
        _put_behind_producer(self._device, handle, self._array)


def find(device: Gpu, obj: Any) -> CudaForeign | Borrowed | None:
    """The array that `obj` exports, if the array is in this GPU's memory; else None."""
    reader = reader_of(type(obj))
    reading = None if reader is None or reader.may_be_readonly else reader.read(obj)
    if reader is not None and reading is not None:
        return _by_reader(device, obj, reader, reading)
    place = array_protocols.place(obj)
    if place is None or place[0] not in array_protocols.GPU:
        return None
    number = place[1]
    if number == array_protocols.UNKNOWN:
        return _by_interface(device, obj)
    if number != device.ordinal:
        return None
    bridge = device.bridges.take()
    export = array_protocols.read_dlpack(obj, stream=bridge)
    mark = device.bridges.mark(bridge)
    if reader is not None and reader.library.is_written_once:
        return Borrowed.exported(reader, array_attributes.view_of(number, export), export, mark)
    return CudaForeign(device, obj, export, mark, True)


def _by_reader(device: Gpu, obj: Any, reader: Reader, reading: ArrayView) -> Borrowed | None:
    if reading.ordinal != device.ordinal:
        return None
    export = array_protocols.exported(
        obj, reading.address, reading.shape, reading.strides, reading.dtype, False,
        reader.library.keep(obj),
    )  # fmt: skip
    mark = None
    if reading.stream:
        enter(device)
        # The library's current stream may have changed when work is enqueued here. What a stream
        # holds that is captured is no work yet.
        stream = cu.CUstream(reading.stream)
        is_behind = is_captured(stream) or not cu.cuStreamQuery(stream)[0]
        mark = None if is_behind else _marked(device, reading.stream)
    return Borrowed.exported(reader, reading, export, mark)


def _by_interface(device: Gpu, obj: Any) -> CudaForeign | None:
    interface = obj.__cuda_array_interface__
    export = array_protocols.read_interface(obj, interface)
    if export.nbytes and _ordinal_of(device, obj, export.low) != device.ordinal:
        return None
    enter(device)
    mark = None
    producer = _producer(obj, interface)
    if producer:
        mark = _marked(device, producer)
    return CudaForeign(device, obj, export, mark, False)


def _ordinal_of(device: Gpu, obj: object, address: int) -> int:
    enter(device)  # the driver does not answer without a context
    ordinal = ordinal_at(address)
    if ordinal is None:
        raise OperationError(
            f"__cuda_array_interface__ of {array_protocols.name_of(obj)} says {address:#x}, which "
            "is no address that the driver knows."
        )
    return ordinal


# --- exports ---------------------------------------------------------------------------


class _View:
    """An array for cuda.core, which makes the capsule, with the object that keeps the memory."""

    def __init__(self, interface: dict[str, Any], keep: object) -> None:
        self.__cuda_array_interface__ = interface
        self._keep = keep


class CudaExport:
    """An array as other libraries import it."""

    protocols = frozenset({"__cuda_array_interface__", "__dlpack__", "__dlpack_device__"})
    waits = False

    def __init__(self, device: Gpu, array: CudaArray, memory: CudaMemory, keep: object) -> None:
        self._device = device
        self._array = array
        self._memory = memory
        self._keep = keep

    def interface(
        self, after: Sequence[CudaStream], source: CudaForeign | Borrowed | None
    ) -> dict[str, Any]:
        dtype = self._array.dtype
        if dtypes.is_extension(dtype):  # a library that also reads DLPack then does that
            raise AttributeError(
                f"a tensor of {dtype} has no __cuda_array_interface__, which has no "
                "name for it.\nLend it by DLPack, torch.from_dlpack(t); or its bits, "
                f"t.reinterpret(np.{dtypes.bits_of(dtype)})."
            )
        self._memory.lent = True
        know_borrowers()
        handle = None
        if source is None and len(after) == 1:
            handle = int(after[0].handle)
        elif source is not None or after:
            # The interface can name one stream only.
            handle = self._device.bridges.take()
            self._put_behind(handle, after, source)
        return self._array.cuda_array_interface(handle, _readonly(source))

    def _put_behind(
        self, handle: int, after: Sequence[CudaStream], source: CudaForeign | Borrowed | None
    ) -> None:
        enter(self._device)
        device = self._device
        for stream in after:
            put_behind(device, handle, int(stream.handle))
        if isinstance(source, Borrowed):
            source.follow(
                partial(put_behind, device, handle), lambda mark: wait(handle, int(mark.handle))
            )
        elif source is not None:
            source.follow(handle)

    def _view(self, source: CudaForeign | Borrowed | None) -> Any:
        from cuda.core.utils import StridedMemoryView

        enter(self._device)
        interface = self._array.cuda_array_interface(None, _readonly(source))
        # The address is set for empty arrays, too: without one, cuda.core assumes host memory.
        interface["data"] = self._array.address, _readonly(source)
        return StridedMemoryView.from_cuda_array_interface(_View(interface, self._keep), -1)

    def dlpack_device(self) -> tuple[int, int]:
        device_type, number = self._view(None).__dlpack_device__()
        return int(device_type), int(number)

    def dlpack(
        self,
        after: Sequence[CudaStream],
        source: CudaForeign | Borrowed | None,
        stream: int | None,
        max_version: tuple[int, int] | None,
        dl_device: tuple[int, int] | None,
        copy: bool | None,
    ) -> object:
        if copy:
            raise BufferError("a tensor is lent without a copy; to have one: await t.dup()")
        if dl_device is not None and tuple(dl_device) != self.dlpack_device():
            raise BufferError(
                f"the tensor is on device {self.dlpack_device()}, not on {tuple(dl_device)}, and "
                "lending copies nothing."
            )
        if _readonly(source) and (max_version is None or max_version < (1, 0)):
            raise BufferError("DLPack before 1.0 cannot say that an array is for reading only.")
        if stream == 0:
            raise BufferError("stream 0 may mean two things: say 1 (legacy) or 2 (per thread).")
        self._memory.lent = True
        know_borrowers()
        if stream != -1:
            self._put_behind(LEGACY if stream is None else int(stream), after, source)
        made = self._view(source).__dlpack__(max_version=max_version)
        return array_protocols.retype(made, self._array.dtype)


def _readonly(source: CudaForeign | Borrowed | None) -> bool:
    return source is not None and source.export.readonly
