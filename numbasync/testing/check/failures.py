"""The failures of `check_kernel`: one class for each kind of error of a kernel."""

from __future__ import annotations

from numbasync import errors
from numbasync.errors import NumbasyncError


class KernelFailure(NumbasyncError, AssertionError):  # noqa: N818 - a failure of a test
    """A kernel failed its test. The message is the report."""


class KernelMismatch(KernelFailure):
    """A result differs from the reference, or between two devices."""


class KernelRace(KernelFailure):
    """Two unordered accesses, or a result that depends on the order of threads."""


class OutOfBounds(KernelFailure):
    """An index outside of the array, or outside of the part that the block may write."""


class UninitialisedRead(KernelFailure):
    """A read of shared or local memory that no thread has written."""


class BarrierDivergence(KernelFailure):
    """A barrier that not all threads of a block reach."""


class InputModified(KernelFailure):
    """An input that the launch has changed."""


class MisalignedAccess(KernelFailure):
    """A vector access to an address that is no multiple of its bytes."""


_KINDS: tuple[tuple[type[errors.KernelError], type[KernelFailure]], ...] = (
    (errors.DataRaceError, KernelRace),
    (errors.UninitialisedReadError, UninitialisedRead),
    (errors.InputModifiedError, InputModified),
    (errors.BarrierDivergenceError, BarrierDivergence),
    (errors.OutOfBoundsError, OutOfBounds),
    (errors.TileOverrunError, OutOfBounds),
    (errors.IndexOverflowError, OutOfBounds),
    (errors.MisalignedAccessError, MisalignedAccess),
)


def kind_of(error: errors.KernelError) -> type[KernelFailure] | None:
    """The failure class for an error found by a device; None for an exception that the kernel
    raised itself.
    """
    return next(
        (failure_class for error_class, failure_class in _KINDS if isinstance(error, error_class)),
        None,
    )
