"""Kernels and their compiled variants: one for each device and list of argument types.

Compiling is slow, so it is a `Prerequisite`: whoever submits decides on which thread it
happens. However many threads ask for one variant, it is compiled once; a failure reaches
all who asked, and the next one who asks tries again.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Hashable
from types import TracebackType
from typing import Any, NamedTuple

from numbasync.backend import protocols
from numbasync.fork import in_child

Keys = tuple[Hashable, ...]

_count = 0
_with_lines = False
_kernels: weakref.WeakSet[Kernel] = weakref.WeakSet()


@in_child
def _after_fork() -> None:
    for kernel in list(_kernels):
        kernel.start_over()


class CpuEngine(NamedTuple):
    """What runs a kernel on the CPU device.

    Attributes:
        name: `"compiled"`, `"interpreted"` or `"none yet"`.
        why: what cannot be compiled, and its line; empty if all can.
    """

    name: str
    why: str


def compile_count() -> int:
    """How many kernel variants this process has compiled; what `cache=True` found on disk does
    not count.
    """
    return _count


class Compilation:
    """One variant being compiled. `run` compiles it, or waits for the thread that does."""

    def __init__(self, kernel: Kernel, device: protocols.Device, keys: Keys) -> None:
        self._kernel = kernel
        self._device = device
        self._keys = keys
        self._lock = threading.Lock()
        self._settled = threading.Event()
        self._begun = False
        self._error: BaseException | None = None
        self._trace: TracebackType | None = None

    def run(self) -> None:
        with self._lock:
            mine, self._begun = not self._begun, True
        if not mine:
            self._settled.wait()
            if isinstance(self._error, Exception):
                raise self._error.with_traceback(self._trace)
            if self._error is not None:
                # The thread that compiled was interrupted, which is no business of this one.
                self._kernel.compilation(self._device, self._keys).run()
            return
        try:
            # Another one may have ended between the search and this attempt.
            if self._kernel.find(self._device, self._keys) is None:
                made = self._device.compile(self._kernel.dispatcher, self._keys)
                self._kernel.add(self._device, self._keys, made)
        except BaseException as error:
            self._error, self._trace = error, error.__traceback__
            raise
        finally:
            self._kernel.forget(self._device, self._keys)
            self._settled.set()


def compile_with_lines() -> None:
    """From now on, compile kernels with line numbers, for tools that report them. Costs nothing
    at run time.
    """
    global _with_lines
    _with_lines = True


class Kernel:
    """A Numba dispatcher and what has been compiled of it.

    Attributes:
        dispatcher: the object that `numba.cuda.jit` made.
        name: the function's name.
    """

    def __init__(self, dispatcher: Any) -> None:
        self.dispatcher = dispatcher
        if _with_lines and not dispatcher.targetoptions.get("debug"):  # Numba takes one of them
            dispatcher.targetoptions["lineinfo"] = True
        self.name: str = dispatcher.py_func.__name__
        self._variants: dict[tuple[protocols.Device, Keys], protocols.Executable] = {}
        self._running: dict[tuple[protocols.Device, Keys], Compilation] = {}
        self._lock = threading.Lock()
        _kernels.add(self)

    def start_over(self) -> None:
        """In a forked child: nobody goes on with what was being compiled."""
        self._lock = threading.Lock()
        self._running.clear()

    def find(self, device: protocols.Device, keys: Keys) -> protocols.Executable | None:
        """The variant, if it has been compiled."""
        return self._variants.get((device, keys))

    def compilation(self, device: protocols.Device, keys: Keys) -> Compilation:
        """What compiles the variant; the one that is under way, if there is one."""
        with self._lock:
            return self._running.setdefault((device, keys), Compilation(self, device, keys))

    def add(self, device: protocols.Device, keys: Keys, made: protocols.Executable) -> None:
        global _count
        with self._lock:
            self._variants[device, keys] = made
            _count += not made.from_disk

    def engines(self) -> list[tuple[str, str]]:
        """What runs its variants, and why, on devices where there is a choice."""
        with self._lock:
            return [(v.engine, v.why) for v in self._variants.values() if v.engine]

    def forget(self, device: protocols.Device, keys: Keys) -> None:
        """A compilation has ended; if it failed, the next request is a new attempt."""
        with self._lock:
            self._running.pop((device, keys), None)

    def __repr__(self) -> str:
        return f"<Kernel {self.name}, {len(self._variants)} variants>"
