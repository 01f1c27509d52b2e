"""Kernels and their compiled variants: one variant per device and list of argument types.

Compilation is slow, so it is a `Prerequisite`: the submitting code chooses the thread. A variant is
compiled once, however many threads request it; a failure reaches every thread that requested the
variant, and the next request tries again.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Hashable
from types import TracebackType
from typing import Any, NamedTuple

from numbasync.backend import protocols
from numbasync.device import tracing
from numbasync.fork import in_child

__all__ = ["CpuEngine", "compile_count", "compile_with_lines"]

Keys = tuple[Hashable, ...]
_log = logging.getLogger("numbasync.compile")

_count = 0
_with_lines = False
_kernels: weakref.WeakSet[Kernel] = weakref.WeakSet()


@in_child
def _after_fork() -> None:
    for kernel in list(_kernels):
        kernel.start_over()


class CpuEngine(NamedTuple):
    """The engine that runs a kernel on the CPU device.

    Attributes:
        name: `"compiled"`, `"interpreted"` or `"none yet"`.
        why: the setting that asks for an interpreted kernel; empty if the kernel is compiled.

    Examples:
        >>> _ = await saxpy(na.zeros(3), 2.0, na.ones(3))
        >>> saxpy.cpu_engine()
        CpuEngine(name='compiled', why='')
    """

    name: str
    why: str


def compile_count() -> int:
    """The number of kernel variants that this process has compiled; variants that `cache=True`
    loaded from disk do not count.

    Examples:
        >>> await saxpy.compile(na.meta(1, np.float64), 2.0, na.meta(1, np.float64))
        >>> compiled = na.compile_count()
        >>> await saxpy.compile(na.meta(9, np.float64), 2.0, na.meta(7, np.float64))  # as before
        >>> na.compile_count() - compiled
        0
    """
    return _count


class Compilation:
    """One variant being compiled. `run` compiles the variant, or waits for the thread that does."""

    def __init__(self, kernel: Kernel, device: protocols.Device, keys: Keys) -> None:
        self._kernel = kernel
        self._device = device
        self._keys = keys
        self._turn = threading.Lock()  # held by the thread that compiles
        self._is_over = False
        self._error: BaseException | None = None
        self._trace: TracebackType | None = None

    def run(self) -> None:
        with self._turn:
            if not self._is_over:  # also if ^C has stopped another thread before it was
                self._compile()
                return
        if isinstance(self._error, Exception):
            raise self._error.with_traceback(self._trace)
        if self._error is not None:
            # An interruption of the compiling thread does not concern this one: try again.
            self._kernel.compilation(self._device, self._keys).run()

    def _compile(self) -> None:
        try:
            # Another compilation may have finished between the look-up and this attempt.
            if self._kernel.find(self._device, self._keys) is None:
                recorder, kernel = tracing.recorder, self._kernel
                began = time.perf_counter_ns()
                executable = self._device.compile(kernel.dispatcher, self._keys)
                took = time.perf_counter_ns() - began
                kernel.seconds.append(took / 1e9)
                kernel.add(self._device, self._keys, executable)
                where = f"{self._device.kind}:{self._device.ordinal}"
                if recorder is not None:
                    recorder.compiled(kernel.name, where, began)
                _log.info(
                    "%s for %s: %s in %.1f ms", kernel.name, where,
                    "read from disk" if executable.from_disk else "compiled", took / 1e6,
                )  # fmt: skip
        except BaseException as error:
            self._error, self._trace = error, error.__traceback__
            raise
        finally:
            self._kernel.forget(self._device, self._keys)
            self._is_over = True


def compile_with_lines() -> None:
    """From now on, compile kernels with line numbers, for tools that report them: no cost at run
    time, but compiling takes up to half as long again, and Numba's linker refuses them in kernels
    with operations on float16.
    """
    global _with_lines
    _with_lines = True


class Kernel:
    """A Numba dispatcher and its compiled variants.

    Attributes:
        dispatcher: the object that `numba.cuda.jit` created.
        name: the function's name.
        seconds: what each compilation of a variant has taken.
    """

    def __init__(self, dispatcher: Any) -> None:
        self.dispatcher = dispatcher
        self.seconds: list[float] = []
        # Numba accepts only one of the two
        if _with_lines and not dispatcher.targetoptions.get("debug"):
            dispatcher.targetoptions["lineinfo"] = True
        self.name: str = dispatcher.py_func.__name__
        self._variants: dict[tuple[protocols.Device, Keys], protocols.Executable] = {}
        self._running: dict[tuple[protocols.Device, Keys], Compilation] = {}
        self._lock = threading.Lock()
        _kernels.add(self)

    def start_over(self) -> None:
        """Reset in a forked child: the threads that were compiling do not exist there."""
        self._lock = threading.Lock()
        self._running.clear()

    def find(self, device: protocols.Device, keys: Keys) -> protocols.Executable | None:
        """The variant, if it has been compiled."""
        return self._variants.get((device, keys))

    def compilation(self, device: protocols.Device, keys: Keys) -> Compilation:
        """The compilation of the variant; the one in progress, if there is one."""
        with self._lock:
            return self._running.setdefault((device, keys), Compilation(self, device, keys))

    def add(self, device: protocols.Device, keys: Keys, made: protocols.Executable) -> None:
        global _count
        with self._lock:
            self._variants[device, keys] = made
            _count += not made.from_disk

    def engines(self) -> list[tuple[str, str]]:
        """The engine of each variant and the reason, on devices that have more than one engine."""
        with self._lock:
            return [(v.engine, v.why) for v in self._variants.values() if v.engine]

    def forget(self, device: protocols.Device, keys: Keys) -> None:
        """End a compilation; if it failed, the next request is a new attempt."""
        with self._lock:
            self._running.pop((device, keys), None)

    def __repr__(self) -> str:
        return f"<Kernel {self.name}, {len(self._variants)} variants>"
