"""NumPy arrays as outputs of a launch: uploaded before the kernel, downloaded into after it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from numbasync import dtypes, layout
from numbasync.arguments import with_type
from numbasync.device.submission import Submission
from numbasync.errors import AliasError, OperationError, StateError
from numbasync.layout import Layout
from numbasync.ops.context import Context
from numbasync.ops.unfilled import check_filled, overlap
from numbasync.tensors.copies import HostArray
from numbasync.tensors.host_arrays import plain
from numbasync.tensors.partition import Partition
from numbasync.tensors.pinned import direct
from numbasync.tensors.tensor import Tensor


class InOut:
    """An array as the output of a launch; see `inout`.

    Attributes:
        array: the array that is uploaded, and written when the operation is done.
        cut: the partition, of a tensor without memory; None: the array is not partitioned.
        given: the caller's array, in the same memory, of which `array` may be a view.

    Examples:
        >>> z = np.zeros(5, np.float32)
        >>> output = na.inout(z).partition(2)  # blocks of two threads
        >>> _ = await saxpy(output, 1.0, np.ones(5, np.float32))
        >>> z
        array([1., 1., 1., 1., 1.], dtype=float32)
    """

    def __init__(
        self, array: HostArray, cut: Partition | None = None, given: HostArray | None = None
    ) -> None:
        self.array = array
        self.cut = cut
        self.given = array if given is None else given
        if not isinstance(array, np.ndarray) or not (cut is None or isinstance(cut, Partition)):
            raise OperationError(
                f"an InOut is of a NumPy array and its tiles, not of {with_type(array)} and "
                f"{with_type(cut)}: write na.inout(array)."
            )

    def partition(self, tile: int | tuple[int, ...]) -> InOut:
        """The array cut into tiles, one per block, as `Tensor.partition`."""
        return InOut(self.array, self._described().partition(tile), self.given)

    def partition_prefix(self, tile: int | tuple[int, ...]) -> InOut:
        """`partition` for a launch whose grid may cover fewer tiles."""
        return InOut(self.array, self._described().partition_prefix(tile), self.given)

    def map(self, blocks: int) -> InOut:
        """The same tiles shared by `blocks` blocks; see `Partition.map`."""
        if self.cut is None:
            raise OperationError(
                f"{self!r} has no tiles to map: write partition(tile).map(blocks)."
            )
        return InOut(self.array, self.cut.map(blocks), self.given)

    def _described(self) -> Tensor:
        shape, dtype = self.array.shape, self.array.dtype
        strides = layout.contiguous_strides(shape, dtype.itemsize)
        return Tensor(None, None, Layout(0, shape, strides), dtype)

    def __repr__(self) -> str:
        cut = "" if self.cut is None else f", {self.cut.grid} tiles of {self.cut.tile}"
        return f"<inout of a NumPy array {self.array.shape} {self.array.dtype}{cut}>"


def inout(array: HostArray) -> InOut:
    """A NumPy array as an output: `kernel(na.inout(z), 2.0, x)`.

    The elements are uploaded when the operation is enqueued, and downloaded into `array` when the
    operation is done; the kernel call returns `array` in the place of the output. The caller must
    neither read nor write `array` until then. Its strides may be any; page-locked memory
    (`na.pinned`) is copied by the device directly.

    Raises:
        OperationError: `array` is no NumPy array, is read-only, or has masked elements.
        DTypeError: device memory cannot hold the elements.

    Examples:
        >>> z = np.ones(4, np.float32)
        >>> result = await saxpy(na.inout(z), 2.0, np.arange(4, dtype=np.float32))
        >>> result.z is z
        True
        >>> z
        array([1., 3., 5., 7.], dtype=float32)
    """
    if not isinstance(array, np.ndarray):
        raise OperationError(
            f"na.inout takes a NumPy array, not {with_type(array)}.\n"
            "A tensor is an output as it is: pass it without na.inout."
        )
    original, array = array, plain(array)
    dtypes.check_dtype(array.dtype, records=True)
    if not array.flags.writeable:
        raise OperationError(
            f"na.inout of a read-only array of shape {array.shape}: the result could not be "
            "written into it.\nPass a copy: na.inout(array.copy())"
        )
    return InOut(array, None, original)


# --- arrays that operations in flight are going to write ---------------------------------

# Arrays that a submission will write: until it is done, they hold their old elements. Arrays in
# page-locked memory are not listed, since their copies are ordered like tensors' work.
_written: list[tuple[HostArray, Submission, tuple[Any, ...]]] = []
_lock = threading.Lock()


def check_apart(
    kernel: str, outputs: Sequence[tuple[str, HostArray]], others: Iterable[tuple[str, HostArray]]
) -> None:
    """Refuse arrays of one launch that share host memory if one of them is an output.

    Raises:
        AliasError: the download of one array would overwrite the other.
    """
    seen = list(others)
    for name, array in outputs:
        for other, its_array in seen:
            if overlap(array, its_array):
                raise AliasError(
                    f"kernel {kernel}: {name}, a na.inout, and {other} share memory of the host; "
                    "the device has a copy of each.\nPass a copy: array.copy()"
                )
        seen.append((name, array))


def check_settled(
    kernel: str, arrays: Iterable[tuple[str, HostArray]], submission: Submission
) -> None:
    """Refuse to upload an array that an operation in flight is still going to write, or one that
    the launch, which belongs to `submission`, comes too early for.

    Raises:
        StateError: such an operation exists; the caller must await it first.
    """
    for name, array in arrays:
        if direct(array) is None:
            for target, writer in _pending():
                if overlap(array, target):
                    raise StateError(
                        f"kernel {kernel}: {name} is an array of shape {array.shape} that "
                        f"{writer.described} writes through na.inout when it is done, and it is "
                        "not.\nAwait that first; or keep a tensor, t = await na.from_host(array), "
                        "whose operations are ordered by themselves."
                    )
            check_filled(array, submission, f"kernel {kernel}: {name}")


def _pending() -> list[tuple[HostArray, Submission]]:
    """The arrays that are still to be written, and by whom."""
    if not _written:
        return []
    with _lock:
        _written[:] = [entry for entry in _written if _is_open(*entry[1:])]
        return [(array, submission) for array, submission, _ in _written]


def note(ctx: Context, array: HostArray) -> None:
    """Record that the submission of `ctx` writes `array` when it is done."""
    if direct(array) is None:
        with _lock:
            _written.append((array, ctx.submission, ctx.copy_backs))


def _is_open(submission: Submission, copy_backs: tuple[Any, ...]) -> bool:
    if not submission.done and submission.sequence:
        submission.stream.advance()
    return not submission.done or any(copy_back.is_pending for copy_back in copy_backs)
