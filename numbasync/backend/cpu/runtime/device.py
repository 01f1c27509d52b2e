"""One virtual CPU device: its limits, its threads, and its arrays and kernels."""

from __future__ import annotations

import atexit
import contextlib
import enum
import math
import os
import platform
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn

import numpy as np
from numba import typeof

from numbasync import dtypes
from numbasync.arguments import with_type
from numbasync.backend import array_protocols
from numbasync.backend.cpu.kernel import scheduling
from numbasync.backend.cpu.library.options import types
from numbasync.backend.cpu.limits import LIMITS
from numbasync.backend.cpu.runtime import choose_engine, workers
from numbasync.backend.cpu.runtime.array import CpuArray, CpuTensorMap
from numbasync.backend.cpu.runtime.events import CpuEvent
from numbasync.backend.cpu.runtime.export_array import CpuExport
from numbasync.backend.cpu.runtime.graph import CpuGraph
from numbasync.backend.cpu.runtime.memory import CpuForeign, CpuHost, CpuMemory, CpuPool
from numbasync.backend.cpu.runtime.seeded import stepping
from numbasync.backend.cpu.runtime.streams import CpuStream
from numbasync.backend.cpu.runtime.workers import Engine
from numbasync.backend.protocols import (
    Checks,
    Command,
    CompletionPath,
    Formula,
    NamedTupleKey,
    Peaks,
    Work,
    counters,
)
from numbasync.errors import DeviceMismatchError, DTypeError, OutOfDeviceMemoryError
from numbasync.fork import in_child


class CpuDevice:
    """The embedded device. All virtual devices share the processor and its memory."""

    kind = "cpu"
    compute_capability = (0, 0)
    limits = LIMITS
    peaks = Peaks()
    coarsener = None
    locks_pages = False
    has_cub = False
    is_host = True
    completion = CompletionPath("worker", "the worker thread writes the stream's word itself")

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self.name = f"{_processor_name()} ({os.cpu_count()} threads)"
        self.total_memory = _total_memory()
        self._engine = Engine(f"cpu{ordinal}", threads=min(4, os.cpu_count() or 1))
        self._engine_name = choose_engine.requested_engine()
        atexit.register(self._engine.stop)
        in_child(scheduling.after_fork)
        in_child(self._engine.after_fork)

    @property
    def spin_seconds(self) -> float:
        # A poll from Python would take the interpreter lock from the workers; but a stepped device
        # advances only through polls.
        return 0.0 if self._engine.stepper is None else math.inf

    def cupti(self) -> None:
        return None

    @property
    def counts_steps(self) -> bool:
        return self._engine.stepper is not None

    def seeded(self, seed: int) -> AbstractContextManager[object]:
        return stepping(self._engine, seed)

    @contextmanager
    def checked(self, checks: Checks) -> Iterator[None]:
        outer, self._engine.checks = self._engine.checks, checks
        try:
            yield
        finally:
            self._engine.checks = outer

    def _poisons(self) -> bool:
        return self._engine.stepper is not None

    @property
    def versions(self) -> dict[str, str]:
        return {"interpreter": f"{platform.python_implementation()} {platform.python_version()}"}

    def new_stream(self, priority: int) -> CpuStream:
        """A stream. `priority` has no effect: workers take streams first come, first served."""
        return CpuStream(self, self._engine)

    def foreign_stream(self, number: int) -> NoReturn:
        raise DeviceMismatchError(f"a stream of CUDA cannot be one of cpu:{self.ordinal}.")

    def foreign_event(self, number: int) -> NoReturn:
        raise DeviceMismatchError(f"an event of CUDA cannot be one of cpu:{self.ordinal}.")

    def is_captured(self, number: int) -> bool:
        return False

    def launch_at(self, number: int, work: Work, args: list[Any]) -> bool:
        return False

    def new_event(self, timing: bool) -> CpuEvent:
        return CpuEvent()

    def new_pool(self) -> CpuPool:
        return CpuPool(f"cpu:{self.ordinal}", self.total_memory, self._poisons)

    def host_buffer(self, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        try:
            return CpuMemory(nbytes).bytes
        except MemoryError as error:
            raise OutOfDeviceMemoryError(
                f"the system has no {nbytes:,} bytes of host memory left for cpu:{self.ordinal}.\n"
                "Drop arrays that are no longer needed, or copy less at a time."
            ) from error

    def host_block(self, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]] | None:
        try:
            # Not aligned as `CpuMemory`, which takes microseconds.
            return np.empty(nbytes, np.uint8)
        except MemoryError:
            return None  # `host_buffer`, which the caller tries next, reports the size

    def host_arrays(
        self, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Callable[[Any], tuple[CpuArray, np.ndarray[Any, Any]]]:
        def arrays(block: np.ndarray[Any, Any]) -> tuple[CpuArray, np.ndarray[Any, Any]]:
            view: np.ndarray[Any, Any] = np.ndarray(shape, dtype, block)
            return CpuArray(view.reshape(-1)), view

        return arrays

    def host_memory(self, block: Any) -> CpuHost:
        return CpuHost(block)

    def array(
        self,
        memory: CpuHost | CpuForeign,
        offset: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: np.dtype[Any],
    ) -> CpuArray:
        return CpuArray(np.ndarray(shape, dtype, memory.bytes, offset, strides))

    def tensor_map(self, array: CpuArray, box: tuple[int, ...], swizzle: int) -> CpuTensorMap:
        return CpuTensorMap(array.array, box, swizzle)

    def foreign(self, obj: object) -> CpuForeign | None:
        if isinstance(obj, np.ndarray):  # NumPy does not export all its dtypes by DLPack
            return CpuForeign(array_protocols.read_interface(obj, obj.__array_interface__))
        place = array_protocols.place(obj)
        if place is None or place[0] not in array_protocols.HOST:
            return None
        return CpuForeign(array_protocols.read_dlpack(obj))

    def lend(self, array: CpuArray, memory: object, keep: object) -> CpuExport:
        return CpuExport(array.array, keep)

    def scalar_key(self, value: object) -> Hashable:
        if type(value) is int:
            int_type: Hashable = types.int64 if -(2**63) <= value < 2**63 else types.uint64
            return int_type
        if value is None or isinstance(value, (np.generic, bool, int, float, complex)):
            if isinstance(value, np.generic) and dtypes.is_extension(value.dtype):
                return dtypes.numba_type(value.dtype)  # type: ignore[no-any-return]
            numba_type: Hashable = typeof(value)
            return numba_type
        if isinstance(value, enum.Enum):
            with contextlib.suppress(ValueError):  # its members have values of several types
                return typeof(value)  # type: ignore[no-any-return]
        if isinstance(value, tuple):
            parts = tuple(self.scalar_key(v) for v in value)
            return NamedTupleKey(type(value), parts) if hasattr(value, "_fields") else parts
        raise DTypeError(
            f"a kernel cannot take a {with_type(value)}.\n"
            "Pass a tensor, a NumPy array, a number, or a tuple of numbers."
        )

    def compile(self, dispatcher: Any, keys: tuple[Hashable, ...]) -> choose_engine.Engine:
        most = self.limits.max_threads_per_block
        is_checked = self._engine.checks is not None
        kernel = choose_engine.prepare_kernel(dispatcher, keys, most, self._engine_name, is_checked)
        counters.compiles += not kernel.from_disk
        return kernel

    def reaches(self, array: CpuArray) -> bool:
        return True

    def copy_needs(self, dst: CpuArray, src: CpuArray) -> None:
        """None: NumPy copies between all layouts and types."""

    def generate_needs(self, dst: CpuArray, formula: Formula) -> None:
        """None: NumPy computes all formulas."""

    def graph(self, commands: Sequence[Command]) -> CpuGraph:
        return CpuGraph(self._engine, commands)

    def synchronize(self) -> None:
        """No effect: `device`, which knows all streams, synchronises each of them."""

    def warm_up(self) -> None:
        """No effect: the device has nothing compiled of its own."""

    def quiesce(self) -> None:
        self._engine.schedule_again()
        workers.wait_for(self._engine.is_quiet)

    def can_access(self, other: Any) -> bool:
        return isinstance(other, CpuDevice)

    @property
    def collectives(self) -> None:
        return None

    def copies_from(self, other: Any) -> bool:
        return isinstance(other, CpuDevice)


def _total_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 2**34  # Windows has no sysconf


def _processor_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "CPU"
