"""The host's side of `numba.cuda`: its driver, devices, contexts, streams and events.

`numba.cuda` keeps its own code, which asks this driver instead of a GPU's. Its memory is the
host's, and what is submitted has ended when the call returns.
"""

# Pyright reads the numba.cuda that is part of Numba.
# pyright: reportPrivateImportUsage=false, reportAttributeAccessIssue=false
# pyright: reportAssignmentType=false, reportIncompatibleMethodOverride=false, reportCallIssue=false

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

import numpy as np
from numba.cuda.cudadrv import driver

from numbasync.arguments import shown, with_type
from numbasync.cpu_cuda import arrays
from numbasync.device.device import devices
from numbasync.errors import OperationError, UnsupportedKernelError

# What only a compiler for GPUs can give.
_OF_A_GPU = (
    "compile", "compile_all", "compile_for_current_device", "compile_ptx",
    "compile_ptx_for_current_device",
)  # fmt: skip
COUNT = "NUMBASYNC_CPU_DEVICES"  # of the environment
_VERSION = 13, 0  # of CUDA
_PROCESSORS = 16  # as many as a small GPU has: programs make grids of it
_THREADS_OF_A_PROCESSOR = 2048
_COMPUTE_CAPABILITY = (9, 0)


def module(name: str) -> Any:
    """A module of numba-cuda; the empty name is `numba.cuda` itself."""
    return importlib.import_module(f"numba.cuda.{name}".rstrip("."))


def refusal(what: str) -> Exception:
    """The error that says that only a GPU has `what`."""
    return UnsupportedKernelError(
        f"numba.cuda uses the CPU device in this process, which has no {what}.\n"
        "Run this part on a machine with a GPU, without --cuda-on-cpu."
    )


def refuse(what: str) -> Callable[..., Any]:
    """A function that says that only a GPU has `what`."""

    def refused(*args: object, **kwargs: object) -> None:
        raise refusal(what)

    return refused


def blocks_at_once(threads: int) -> int:
    """The blocks of so many threads that the device is said to run at the same time."""
    return _PROCESSORS * (_THREADS_OF_A_PROCESSOR // max(1, threads))


def nothing(*args: object) -> None:
    """Return: nothing is in flight, and no profiler is there."""


class CpuStream(driver.Stream):  # type: ignore[misc]
    """A stream of `numba.cuda`: what is submitted to it has ended when the call returns."""

    def add_callback(self, callback: Callable[..., object], arg: object = None) -> None:
        """Call `callback(stream, 0, arg)`: what was submitted before has ended."""
        callback(self, 0, arg)


class CpuEvent(driver.Event):  # type: ignore[misc]
    """An event of `numba.cuda`, which is over when it is recorded."""

    recorded: float | None = None

    def record(self, stream: object = 0) -> None:
        """Note the time."""
        driver._stream_handle(stream)
        self.recorded = time.perf_counter()

    def query(self) -> bool:
        """Whether all work before it has ended."""
        return True

    def elapsed_time(self, evtend: CpuEvent) -> float:
        """Milliseconds from this event to a later one."""
        return elapsed_time(self, evtend)


def elapsed_time(evtstart: CpuEvent, evtend: CpuEvent) -> float:
    """`cuda.event_elapsed_time`: milliseconds between two events."""
    began, ended = (getattr(event, "recorded", None) for event in (evtstart, evtend))
    if began is None or ended is None:
        missing = shown(evtstart if began is None else evtend)
        raise OperationError(
            f"{missing} was not recorded. The elapsed time is that between two recorded events: "
            "write event.record() where each is to be."
        )
    return float(ended - began) * 1e3


class HostMemory(np.ndarray[Any, Any]):
    """Memory of host and device: of pinned, mapped and managed arrays."""

    @property
    def device_ctypes_pointer(self) -> ctypes.c_size_t:
        return ctypes.c_size_t(self.ctypes.data)


class CpuAsCudaDevice:
    """A CPU device, with the attributes that programs ask of a GPU."""

    compute_capability = _COMPUTE_CAPABILITY
    supports_float16 = supports_bfloat16 = supports_fp8 = True
    WARP_SIZE = 32
    MULTIPROCESSOR_COUNT = _PROCESSORS
    MAX_THREADS_PER_MULTI_PROCESSOR = _THREADS_OF_A_PROCESSOR
    MAX_REGISTERS_PER_BLOCK = MAX_REGISTERS_PER_MULTIPROCESSOR = TOTAL_CONSTANT_MEMORY = 65536
    CLOCK_RATE = MEMORY_CLOCK_RATE = 1_000_000
    COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR = _COMPUTE_CAPABILITY
    UNIFIED_ADDRESSING = CAN_MAP_HOST_MEMORY = CONCURRENT_KERNELS = COOPERATIVE_LAUNCH = 1
    MANAGED_MEMORY = CONCURRENT_MANAGED_ACCESS = PAGEABLE_MEMORY_ACCESS = INTEGRATED = 1
    MAX_BLOCKS_PER_MULTIPROCESSOR, GLOBAL_MEMORY_BUS_WIDTH, L2_CACHE_SIZE = 32, 64, 1 << 20
    MAX_PITCH, TEXTURE_ALIGNMENT, SURFACE_ALIGNMENT = 2**31 - 1, 512, 512
    release_primary_context = reset = nothing

    def __init__(self, number: int) -> None:
        self.id, self.uuid = number, f"GPU-00000000-0000-0000-0000-{number:012}"
        self.primary_context = CpuContext(self)

    @property
    def name(self) -> str:
        return f"{arrays.cpu().name}, CPU device of numbasync"

    def get_primary_context(self) -> CpuContext:
        return self.primary_context

    def get_device_identity(self) -> dict[str, int]:
        return {"pci_domain_id": 0, "pci_bus_id": 0, "pci_device_id": self.id}

    def __getattr__(self, name: str) -> int:
        limits = arrays.cpu().limits
        known = {
            "MAX_THREADS_PER_BLOCK": limits.max_threads_per_block,
            "MAX_SHARED_MEMORY_PER_BLOCK": limits.max_shared_bytes,
            "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": limits.max_dynamic_shared_bytes,
            "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": limits.max_dynamic_shared_bytes,
        }
        for axis, block, grid in zip("XYZ", limits.max_block, limits.max_grid, strict=True):
            known[f"MAX_BLOCK_DIM_{axis}"], known[f"MAX_GRID_DIM_{axis}"] = block, grid
        if name in known:
            return known[name]
        if hasattr(driver.binding.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}"):
            return 0  # what the device is not, or has not
        raise AttributeError(f"the CPU device has no attribute {name} of a GPU.")

    def __repr__(self) -> str:
        return f"<CUDA device {self.id} '{self.name}'>"

    def __enter__(self) -> Self:
        self.primary_context.push()
        return self

    def __exit__(self, *error: object) -> None:
        self.primary_context.pop()


class CpuContext(driver.Context):  # type: ignore[misc]
    """The context of a device: numba.cuda's own, with the memory of the host."""

    compute_capability = _COMPUTE_CAPABILITY
    reset = prepare_for_use = enable_peer_access = nothing

    def __init__(self, device: CpuAsCudaDevice) -> None:
        self.device, self.id = device, device.id
        self.handle = driver.binding.CUcontext(0)
        self.deallocations = driver._PendingDeallocs()  # stays empty: memory is freed at once
        self.extras: dict[str, object] = {}
        self._streams = itertools.count(16)  # greater than the numbers of the default ones

    def memalloc(self, bytesize: int) -> Any:
        return self.mempin(self.memhostalloc(bytesize), 0, bytesize)

    def memhostalloc(self, bytesize: int, *options: object, **named: object) -> HostMemory:
        return np.empty(bytesize, np.uint8).view(HostMemory)

    memallocmanaged = memhostalloc

    def mempin(self, owner: Any, pointer: int, size: int, mapped: bool = False) -> Any:
        address = driver.binding.CUdeviceptr(pointer or owner.ctypes.data)
        return driver.MemoryPointer(self, address, size, owner=owner)

    def defer_cleanup(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def get_memory_info(self) -> Any:
        """Free and total bytes of the device's memory."""
        device = arrays.cpu()
        total = device.backend.total_memory
        return driver.MemoryInfo(total - device.memory_stats().used_current, total)

    def create_stream(self) -> CpuStream:
        return CpuStream(driver.binding.CUstream(next(self._streams)))

    def create_external_stream(self, ptr: Any) -> CpuStream:
        if not isinstance(ptr, int):
            raise OperationError(f"the address of a stream is an int, not {with_type(ptr)}.")
        return CpuStream(driver.binding.CUstream(ptr), external=True)

    def create_event(self, timing: bool = True) -> CpuEvent:
        return CpuEvent(driver.binding.CUevent(0))

    def push(self) -> None:
        """Make the device the one of this thread, until `pop`."""
        _chosen.devices.append(self.device)

    def pop(self) -> None:
        """Make the device that was before the one of this thread again."""
        if _chosen.devices:
            _chosen.devices.pop()

    def can_access_peer(self, peer_device: object) -> bool:
        """Whether another device can use the memory of this one, which is that of the host."""
        return peer_device != self.id

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def __getattribute__(self, name: str) -> Any:
        if name in _OF_A_DRIVER:
            raise refusal(f"{name} of a context")
        return super().__getattribute__(name)


# What of a context only the driver of a GPU can give.
_OF_A_DRIVER = frozenset(
    [
        "get_ipc_handle",
        "open_ipc_handle",
        "create_module_ptx",
        "create_module_image",
        "get_active_blocks_per_multiprocessor",
        "get_max_potential_block_size",
    ]
)


class Devices(tuple[CpuAsCudaDevice, ...]):
    """`cuda.gpus`."""

    __slots__ = ()

    def __getitem__(self, number: Any) -> Any:
        try:
            return super().__getitem__(number if isinstance(number, slice) else int(number))
        except IndexError:
            told = "is one, of number 0" if len(self) == 1 else f"are {len(self)}"
            raise IndexError(f"device {number}: there {told}; see {COUNT}.") from None

    @property
    def current(self) -> CpuAsCudaDevice:
        return _chosen.devices[-1] if _chosen.devices else self[0]

    @property
    def lst(self) -> Devices:
        return self


class _Chosen(threading.local):
    """The devices that a thread has chosen, the current one last."""

    def __init__(self) -> None:
        self.devices: list[CpuAsCudaDevice] = []


_chosen = _Chosen()


@functools.cache
def gpus() -> Devices:
    """The devices that programs see: one, or as many as the program's environment says."""
    count = len(devices("cpu")) if os.environ.get(COUNT) else 1
    return Devices(map(CpuAsCudaDevice, range(count)))


def context(devnum: Any = None) -> CpuContext:
    """The context of the thread's device, or of the device that becomes that."""
    if devnum is not None:
        _chosen.devices[-1:] = [gpus()[devnum]]
    return gpus().current.primary_context


class Runtime:
    """What numba.cuda asks for the context of a thread."""

    get_or_create_context = staticmethod(context)
    ensure_context = staticmethod(contextlib.nullcontext)

    @property
    def gpus(self) -> Devices:
        return gpus()

    def reset(self) -> None:
        _chosen.devices.clear()


def _filled(to: Any, byte: int, count: int, stream: object = 0) -> None:
    ctypes.memset(int(to), byte, count)


def _copied(to: Any, source: Any, size: int, stream: object = 0) -> None:
    ctypes.memmove(int(to), int(source), size)


def checked_stream(stream: Any) -> Any:
    """A stream that a kernel is to be launched on, of numba.cuda or another library."""
    if isinstance(stream, driver.Stream) or hasattr(stream, "__cuda_stream__"):
        return stream
    if stream is None or (isinstance(stream, int) and stream == 0):
        return context().get_default_stream()
    raise OperationError(f"a stream of a launch is cuda.stream() or 0, not {with_type(stream)}.")


@contextlib.contextmanager
def profiling() -> Iterator[None]:
    """A block that no profiler looks at."""
    yield


def replacements() -> list[tuple[Any, str, Any]]:
    """What `numba.cuda` has in the place of its own, as (module, name, value)."""
    cuda, api, decorators, compiler = map(module, ("", "api", "decorators", "compiler"))
    named = {
        "as_cuda_array": arrays.as_cuda_array, "is_cuda_array": arrays.is_cuda_array,
        "from_cuda_array_interface": arrays.from_cuda_array_interface,
        "event_elapsed_time": elapsed_time, "gpus": gpus(), "is_available": lambda: True,
        "is_supported_version": lambda: True, "profiling": profiling,
        "profile_start": nothing, "profile_stop": nothing,
        "open_ipc_array": refuse("open_ipc_array"),
    }  # fmt: skip
    made = [(home, name, value) for name, value in named.items() for home in (cuda, api)]
    made += [(home, name, refuse(name)) for name in _OF_A_GPU for home in (cuda, compiler)]
    home, runtime = map(module, ("cudadrv.devices", "cudadrv.runtime"))
    made += [
        (home, "_runtime", Runtime()), (home, "gpus", gpus()),
        (driver, "_have_nvjitlink", lambda: False),
        (decorators, "_have_nvjitlink", lambda: False),
        (driver, "_to_core_stream", checked_stream),
        (runtime.runtime, "get_version", lambda: _VERSION),
        (module("core.config"), "CUDA_LOW_OCCUPANCY_WARNINGS", 0),  # of multiprocessors
    ]  # fmt: skip
    calls = {
        "get_device": gpus().__getitem__, "get_device_count": lambda: len(gpus()),
        "get_version": lambda: _VERSION, "list_devices": lambda: list(gpus()),
    }  # fmt: skip
    calls |= dict.fromkeys(("cuMemsetD8", "cuMemsetD8Async"), _filled)
    calls |= {
        f"cuMemcpy{way}{how}": _copied for way in ("HtoD", "DtoH", "DtoD") for how in ("", "Async")
    }
    calls |= dict.fromkeys(
        ("cuCtxSynchronize", "cuStreamSynchronize", "cuStreamWaitEvent", "cuEventSynchronize"),
        nothing,
    )
    made += [(driver.driver, name, call) for name, call in calls.items()]
    return made + arrays.replacements()
