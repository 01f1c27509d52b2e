"""Exceptions of `debug=True` kernels, read behind the kernel instead of waited for.

Such a kernel keeps the code of its first exception, and the thread and block that raised it,
in variables of its module. They are cleared before the launch and copied behind it, on its
own stream; who settles the submission looks at the copy.
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
    """One debug kernel's variables, and how they become an exception."""

    def __init__(self, device: Gpu, compiled: Any, function: Any, name: str) -> None:
        self._device = device
        self._name = name
        self._compiled = compiled
        self._addresses = [
            function.module.get_global_symbol(f"{function.name}__{name}__")[0].device_pointer
            for name in ("errcode", *_PLACES)
        ]
        # The variables are one set for all streams: launches on two streams take turns.
        self._lock = threading.Lock()
        self._last: tuple[Handled, Any] | None = None

    def around(self, stream: Handled, launch: Callable[[], None]) -> Found:
        """Launch between clearing the variables and copying them; what reads the copy."""
        found = Found(self, self._copy())
        with self._lock:
            if stream.captures:
                # In a graph it is in no order with launches outside of it.
                self._enqueue(stream, launch, found.numbers)
                return found
            if self._last is not None and self._last[0] is not stream:
                stream.wait(self._last[1])
            self._enqueue(stream, launch, found.numbers)
            event = self._device.new_event(timing=False)
            stream.record(event)
            self._last = stream, event
        return found

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
        """The same of a replay, whose numbers the next replay overwrites."""
        found = Found(self, self._copy())
        (result,) = cu.cuMemcpyAsync(
            found.numbers.ctypes.data, numbers.ctypes.data, numbers.nbytes, stream.handle
        )
        if result:
            fail(result, "cuMemcpyAsync")
        return found

    def exception(self, found: Numbers) -> BaseException | None:
        """What the kernel raised, if it did."""
        code, *at = (int(v) for v in found)
        if code == 0:
            return None
        kind, args, place = self._compiled.call_helper.get_exception(code)
        where = "" if place is None else f" ({place[1]}:{place[2]})"
        said = f"{kind.__name__}: {args[0]}" if args else kind.__name__
        error = KernelError(
            f"kernel {self._name}, block ({at[0]}, {at[1]}, {at[2]}), "
            f"thread ({at[3]}, {at[4]}, {at[5]}): {said}{where}"
        )
        error.__cause__ = kind(*args) if args else kind()
        return error


class Found:
    """Where the variables are copied to behind one launch."""

    def __init__(self, report: ExceptionReport, numbers: Numbers) -> None:
        self.numbers = numbers
        self._report = report

    def __call__(self) -> BaseException | None:
        return self._report.exception(self.numbers)

    def again(self, stream: Handled) -> Found:
        """Of a launch in a graph that has just been replayed on `stream`: of that replay alone."""
        return self._report.copied(self.numbers, stream)
