"""What a backend's queue does: the work of one submission, operation by operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from numbasync.backend.executables import Work
from numbasync.backend.formulas import Formula


class Queue(Protocol):
    """Enqueues the work of one submission. A failure of this work fails this submission only.

    The caller keeps every operand alive until the stream has passed the next sequence number
    that is signalled after the work.
    """

    def launch(self, work: Work, args: Sequence[Any]) -> None:
        """Run a kernel.

        Args:
            args: array handles of this device, and host scalars.
        """
        ...

    def upload(self, dst: Any, src: np.ndarray[Any, Any]) -> None:
        """Copy a C-contiguous host array into a device array that `Device.reaches`."""
        ...

    def download(self, dst: np.ndarray[Any, Any], src: Any) -> None:
        """Copy a device array that `Device.reaches` into a C-contiguous host array."""
        ...

    def copy(self, dst: Any, src: Any) -> None:
        """Copy elements between any layouts; converts dtypes as NumPy's unsafe casting does."""
        ...

    def copy_peer(self, dst: Any, src: Any, source: Any) -> None:
        """Copy between contiguous arrays of equal dtype and shape; `src` is of the device `source`,
        which this queue's device `copies_from`.
        """
        ...

    def fill(self, dst: Any, value: np.generic) -> None:
        """Set every element of `dst`; `value` has the array's dtype."""
        ...

    def generate(self, dst: Any, formula: Formula) -> None:
        """Compute the elements of `dst`, a contiguous array of one axis."""

    def replay(self, graph: Any) -> None:
        """Run the commands of a graph of this device."""
        ...

    def call(self, function: Callable[..., None], arrays: Sequence[Any]) -> None:
        """Call a function of another library with the arrays as such libraries take them, which
        have no order of their own. Where other libraries have streams, it is called now, and
        enqueues work on this one; elsewhere in its turn.
        """
        ...

    def failure(self) -> BaseException | None:
        """Why the work of this queue failed, or None; known once the stream has passed it."""
        ...
