"""Exceptions of `debug=True` kernels, read behind the kernel instead of waited for.

Such a kernel keeps the code of its first exception, and the thread and block that raised it,
in variables of its module. They are cleared before the launch and copied behind it, on its
own stream; who settles the submission looks at the copy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from numbasync.backend.cuda.driver import cu, fail
from numbasync.errors import KernelError

if TYPE_CHECKING:
    from numbasync.backend.cuda.device import CudaDevice
    from numbasync.backend.cuda.stream import CudaEvent, CudaStream

# In the order in which messages name them.
_PLACES = ("ctaidx", "ctaidy", "ctaidz", "tidx", "tidy", "tidz")


class ExceptionReport:
    """One debug kernel's variables, and how they become an exception."""

    def __init__(self, device: CudaDevice, compiled: Any, function: Any, name: str) -> None:
        self._device = device
        self._name = name
        self._compiled = compiled
        self._addresses = [
            function.module.get_global_symbol(f"{function.name}__{name}__")[0].device_pointer
            for name in ("errcode", *_PLACES)
        ]
        # The variables are one set for all streams: launches on two streams take turns.
        self._lock = threading.Lock()
        self._last: tuple[CudaStream, CudaEvent] | None = None

    def around(
        self, stream: CudaStream, launch: Callable[[], None]
    ) -> Callable[[], BaseException | None]:
        """Launch between clearing the variables and copying them; what reads the copy."""
        nbytes = 4 * len(self._addresses)
        found = self._device.host_buffer(nbytes)[:nbytes].view(np.int32)
        with self._lock:
            if self._last is not None and self._last[0] is not stream:
                stream.wait(self._last[1])
            (result,) = cu.cuMemsetD32Async(self._addresses[0], 0, 1, stream.handle)
            if result:
                fail(result, "cuMemsetD32Async")
            launch()
            for i, address in enumerate(self._addresses):
                to = found.ctypes.data + 4 * i
                (result,) = cu.cuMemcpyDtoHAsync(to, address, 4, stream.handle)
                if result:
                    fail(result, "cuMemcpyDtoHAsync")
            event = self._device.new_event(timing=False)
            stream.record(event)
            self._last = stream, event
        return lambda: self._exception(found)

    def _exception(self, found: np.ndarray[Any, np.dtype[np.int32]]) -> BaseException | None:
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
