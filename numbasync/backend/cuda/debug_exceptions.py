"""Exceptions of `debug=True` kernels, copied behind the kernel without waiting for it.

A debug kernel stores the code of its first exception, and the thread and block that raised it,
in variables of its module. The variables are cleared before the launch and copied after it, on
the same stream. The copy is examined when the submission is retired.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from numbasync.backend.cuda.driver import cu, fail
from numbasync.errors import KernelError

if TYPE_CHECKING:
    from numbasync.backend.cuda.gpu import Gpu, Handled

Numbers: TypeAlias = "np.ndarray[Any, np.dtype[np.int32]]"

# In the order in which messages name them.
_PLACES = ("ctaidx", "ctaidy", "ctaidz", "tidx", "tidy", "tidz")


class ExceptionReport:
    """One debug kernel's exception variables, and their conversion to an exception."""

    def __init__(self, device: Gpu, compiled: Any, function: Any, name: str) -> None:
        self._device = device
        self._name = name
        self._compiled = compiled
        self._addresses = [
            function.module.get_global_symbol(f"{function.name}__{name}__")[0].device_pointer
            for name in ("errcode", *_PLACES)
        ]
        # All streams share one set of variables, so launches on two streams run in turn.
        self._lock = threading.Lock()
        self._last: tuple[Handled, Any] | None = None

    def around(self, stream: Handled, launch: Callable[[], None]) -> Found:
        """Clear the variables, launch, and copy the variables. Returns the reader of the copy."""
        report = Found(self, self._copy())
        with self._lock:
            if stream.captures:
                # A launch in a graph has no order with launches outside of the graph.
                self._enqueue(stream, launch, report.numbers)
                return report
            if self._last is not None and self._last[0] is not stream:
                stream.wait(self._last[1])
            self._enqueue(stream, launch, report.numbers)
            event = self._device.new_event(timing=False)
            stream.record(event)
            self._last = stream, event
        return report

    def _copy(self) -> Numbers:
        nbytes = 4 * len(self._addresses)
        return self._device.host_buffer(nbytes)[:nbytes].view(np.int32)

    def _enqueue(self, stream: Handled, launch: Callable[[], None], to: Numbers) -> None:
        (result,) = cu.cuMemsetD32Async(self._addresses[0], 0, 1, stream.handle)
        if result:
            fail(result, "cuMemsetD32Async")
        launch()
        for i, address in enumerate(self._addresses):
            (result,) = cu.cuMemcpyDtoHAsync(to.ctypes.data + 4 * i, address, 4, stream.handle)
            if result:
                fail(result, "cuMemcpyDtoHAsync")

    def copied(self, numbers: Numbers, stream: Handled) -> Found:
        """A copy of a replay's numbers, which the next replay overwrites."""
        report = Found(self, self._copy())
        (result,) = cu.cuMemcpyAsync(
            report.numbers.ctypes.data, numbers.ctypes.data, numbers.nbytes, stream.handle
        )
        if result:
            fail(result, "cuMemcpyAsync")
        return report

    def exception(self, found: Numbers) -> BaseException | None:
        """The exception that the kernel raised, or None."""
        code, *position = (int(v) for v in found)
        if code == 0:
            return None
        cls, args, place = self._compiled.call_helper.get_exception(code)
        where = "" if place is None else f" ({place[1]}:{place[2]})"
        description = f"{cls.__name__}: {args[0]}" if args else cls.__name__
        error = KernelError(
            f"kernel {self._name}, block ({position[0]}, {position[1]}, {position[2]}), "
            f"thread ({position[3]}, {position[4]}, {position[5]}): {description}{where}"
        )
        error.__cause__ = cls(*args) if args else cls()
        return error


class Found:
    """The copy of the variables that is made behind one launch."""

    def __init__(self, report: ExceptionReport, numbers: Numbers) -> None:
        self.numbers = numbers
        self._report = report

    def __call__(self) -> BaseException | None:
        return self._report.exception(self.numbers)

    def again(self, stream: Handled) -> Found:
        """The reader for one replay, just enqueued on `stream`, of a launch in a graph."""
        return self._report.copied(self.numbers, stream)
