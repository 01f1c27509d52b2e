"""The host's side of `numba.cuda`: arrays, streams, events, devices, contexts.

Most of it is Numba's simulator's, which is made for one thread of work: what is submitted has ended
when the call returns.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from numbasync.cpu_cuda import arrays
from numbasync.errors import UnsupportedKernelError

# Of the simulator as they are.
_SIMULATED = (
    "close", "defer_cleanup", "device_array", "device_array_like", "is_float16_supported",
    "pinned", "pinned_array", "pinned_array_like",
)  # fmt: skip
# What only a compiler for GPUs can give.
_OF_A_GPU = (
    "compile", "compile_all", "compile_for_current_device", "compile_ptx",
    "compile_ptx_for_current_device",
)  # fmt: skip
# What only a driver can give.
_OF_A_DRIVER = ("open_ipc_array",)
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


class Stream:
    """A stream of `numba.cuda`: what is submitted to it has ended when the call returns."""

    handle = 0

    def synchronize(self) -> None:
        """Return: there is nothing to wait for."""

    @contextmanager
    def auto_synchronize(self) -> Iterator[Stream]:
        """A block at whose end all work has ended."""
        yield self

    def add_callback(self, callback: Callable[..., object], arg: object = None) -> None:
        """Call `callback(stream, 0, arg)`: what was submitted before has ended."""
        callback(self, 0, arg)

    async def async_done(self) -> Stream:
        """Await what was submitted before, which has ended."""
        return self

    def __int__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return f"<numba.cuda stream on {arrays.cpu().label}>"


_DEFAULT = Stream()


def default_stream() -> Stream:
    """The default stream."""
    return _DEFAULT


def stream() -> Stream:
    """A new stream."""
    return Stream()


def external_stream(ptr: object) -> Stream:
    """A stream of another library, which has nothing in flight here."""
    return Stream()


class Event:
    """An event of `numba.cuda`, which is over when it is recorded."""

    def __init__(self, timing: bool = True) -> None:
        self._recorded: float | None = None

    def record(self, stream: object = 0) -> None:
        """Note the time."""
        self._recorded = time.perf_counter()

    def query(self) -> bool:
        """Whether all work before it has ended."""
        return True

    def wait(self, stream: object = 0) -> None:
        """Return: nothing is in flight."""

    def synchronize(self) -> None:
        """Return: nothing is in flight."""

    def elapsed_time(self, later: Event) -> float:
        """Milliseconds from this event to `later`."""
        if self._recorded is None or later._recorded is None:
            raise RuntimeError("elapsed_time needs two events that were recorded.")
        return (later._recorded - self._recorded) * 1e3


def event(timing: bool = True) -> Event:
    """A new event."""
    return Event(timing)


class CpuAsCudaDevice:
    """The CPU device, with the attributes that programs ask of a GPU."""

    id = 0
    uuid = "GPU-00000000-0000-0000-0000-000000000000"
    compute_capability = _COMPUTE_CAPABILITY
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

    @property
    def name(self) -> bytes:
        return arrays.cpu().name.encode()

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
        if hasattr(
            module("cudadrv.driver").binding.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}"
        ):
            return 0  # what the device is not, or has not
        raise AttributeError(f"the CPU device has no attribute {name} of a GPU.")

    def supports_float16(self) -> bool:
        return True

    def supports_bfloat16(self) -> bool:
        return True

    def supports_fp8(self) -> bool:
        return True

    def get_primary_context(self) -> Any:
        return context()

    def release_primary_context(self) -> None:
        """No effect."""

    def reset(self) -> None:
        """No effect."""

    def __repr__(self) -> str:
        return f"<CUDA device 0, which is {arrays.cpu().label} of numbasync>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass


_DEVICE = CpuAsCudaDevice()


def detect() -> bool:
    """Print what `numba.cuda` finds: the CPU device."""
    print(f"Found 1 CUDA devices\nid 0    {arrays.cpu().name:>20}    [CPU device of numbasync]")  # noqa: T201
    return True


def select_device(device_id: int) -> Any:
    """The context of device 0, the only one."""
    if device_id != 0:
        raise refuse_driver(f"device {device_id}: there is one, of number 0")
    return context()


def refuse_driver(why: str) -> Exception:
    """numba.cuda's own error for a device that is not there."""
    error: Exception = module("cudadrv.error").CudaSupportError(why)
    return error


class Context:
    """The context of device 0."""

    id = 0
    device = _DEVICE
    compute_capability = _COMPUTE_CAPABILITY

    def __init__(self) -> None:
        simulated = module("simulator.cudadrv.devices").get_context()
        self.memalloc, self.memhostalloc = simulated.memalloc, simulated.memhostalloc
        self.get_memory_info, self.defer_cleanup = memory_info, module("simulator").defer_cleanup
        self.deallocations: list[object] = []  # memory is freed at once
        self.synchronize = self.reset = self.push = self.pop = self.prepare_for_use = nothing
        self.create_stream, self.create_event, self.create_external_stream = (
            stream, event, external_stream
        )  # fmt: skip
        self.get_default_stream = self.get_legacy_default_stream = default_stream
        self.get_per_thread_default_stream = default_stream

    def can_access_peer(self, peer: object) -> bool:
        """Whether another device can use the memory of this one: there is none."""
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def __str__(self) -> str:
        return "<CUDA context of device 0>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return refuse(f"{name} of a context")


def context() -> Any:
    """The context of device 0."""
    return Context()


def memory_info() -> Any:
    """Free and total bytes of the device's memory."""
    named = module("simulator.cudadrv.devices")._MemoryInfo
    device = arrays.cpu()
    total = device.backend.total_memory
    return named(total - device.memory_stats().used_current, total)


def nothing() -> None:
    """Return: nothing is in flight, and no profiler is there."""


@contextmanager
def profiling() -> Iterator[None]:
    """A block that no profiler looks at."""
    yield


class _Devices(tuple[CpuAsCudaDevice, ...]):
    """`cuda.gpus`."""

    __slots__ = ()

    @property
    def current(self) -> CpuAsCudaDevice:
        return self[0]

    @property
    def lst(self) -> _Devices:
        return self


def mapped_array(
    shape: Any, dtype: Any = float, strides: Any = None, order: str = "C", **_: Any
) -> Any:
    """An array of host and device."""
    return arrays.devicearray.device_array(shape, dtype=dtype, strides=strides, order=order)


def managed_array(
    shape: Any, dtype: Any = float, strides: Any = None, order: str = "C", **_: Any
) -> Any:
    """An array of host and device."""
    return arrays.devicearray.managed_array(shape, dtype=dtype, strides=strides, order=order)


@contextmanager
def mapped(*arrays_of_host: Any, **_: Any) -> Iterator[Any]:
    """A block in which the device has arrays of the host: as device arrays in their memory."""
    found = [arrays.as_cuda_array(array) for array in arrays_of_host]
    yield found[0] if len(found) == 1 else found


def mapped_array_like(ary: Any, **_: Any) -> Any:
    """An array of host and device, as `ary` is."""
    return arrays.devicearray.device_array_like(ary)


def replacements() -> list[tuple[Any, str, Any]]:
    """What `numba.cuda` has in the place of its own, as (module, name, value)."""
    cuda, api, decorators, compiler = map(module, ("", "api", "decorators", "compiler"))
    simulator = module("simulator")
    own = {
        "as_cuda_array": arrays.as_cuda_array, "is_cuda_array": arrays.is_cuda_array,
        "current_context": lambda devnum=0: context(), "default_stream": default_stream,
        "legacy_default_stream": default_stream, "per_thread_default_stream": default_stream,
        "detect": detect, "event": event, "event_elapsed_time": Event.elapsed_time,
        "external_stream": external_stream,
        "from_cuda_array_interface": arrays.from_cuda_array_interface,
        "get_current_device": lambda: _DEVICE, "gpus": _Devices((_DEVICE,)),
        "is_available": lambda: True, "is_bfloat16_supported": lambda: True,
        "is_fp8_supported": lambda: True, "mapped": mapped,
        "is_supported_version": lambda: True, "list_devices": lambda: _Devices((_DEVICE,)),
        "managed_array": managed_array, "mapped_array": mapped_array,
        "mapped_array_like": mapped_array_like, "select_device": select_device,
        "profile_start": nothing, "profile_stop": nothing, "profiling": profiling,
        "stream": stream, "synchronize": nothing, "to_device": arrays.to_device,
    }  # fmt: skip
    own |= {name: getattr(simulator, name) for name in _SIMULATED}
    made = [(home, name, value) for name, value in own.items() for home in (cuda, api)]
    made += [(home, name, refuse(name)) for name in _OF_A_GPU for home in (cuda, compiler)]
    made += [(home, name, refuse(name)) for name in _OF_A_DRIVER for home in (cuda, api)]
    devicearray, devices, driver = map(
        module, ("cudadrv.devicearray", "cudadrv.devices", "cudadrv.driver")
    )
    made += [
        (devicearray, name, getattr(arrays.devicearray, name))
        for name in ("auto_device", "is_cuda_ndarray")
    ] + [(devicearray, "to_device", arrays.to_device)]
    made += [
        (devices, "get_context", lambda devnum=0: context()),
        (devices, "gpus", _Devices((_DEVICE,))),
        (devicearray, "DeviceNDArray", arrays.device_array_in),
        (driver, "_have_nvjitlink", lambda: False),
        (decorators, "_have_nvjitlink", lambda: False),
        (driver, "_to_core_stream", lambda stream: stream or _DEFAULT),
        (module("core.config"), "CUDA_LOW_OCCUPANCY_WARNINGS", 0),  # of multiprocessors
    ]
    return made + [(arrays.Plain, name, value) for name, value in arrays.METHODS.items()]
