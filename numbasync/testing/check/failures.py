"""What `check_kernel` fails with: one class for each kind of thing that a kernel gets wrong."""

from __future__ import annotations

from numbasync import errors
from numbasync.errors import NumbasyncError


class KernelFailure(NumbasyncError, AssertionError):  # noqa: N818 - a failure of a test
    """A kernel did not do what its test says. The message is the report."""


class KernelMismatch(KernelFailure):
    """A result is not what the reference says, or not the same on two devices."""


class KernelRace(KernelFailure):
    """Two accesses that nothing orders, or a result that depends on the order of threads."""


class OutOfBounds(KernelFailure):
    """An index that the array does not have, or that its block has no right to."""


class UninitialisedRead(KernelFailure):
    """A read of shared or local memory that nobody wrote."""


class BarrierDivergence(KernelFailure):
    """A barrier that not all threads of a block reach."""


class InputModified(KernelFailure):
    """An input that is not, afterwards, what it was before."""


_KINDS: tuple[tuple[type[errors.KernelError], type[KernelFailure]], ...] = (
    (errors.DataRaceError, KernelRace),
    (errors.UninitialisedReadError, UninitialisedRead),
    (errors.InputModifiedError, InputModified),
    (errors.BarrierDivergenceError, BarrierDivergence),
    (errors.OutOfBoundsError, OutOfBounds),
    (errors.TileOverrunError, OutOfBounds),
    (errors.IndexOverflowError, OutOfBounds),
)


def kind_of(error: errors.KernelError) -> type[KernelFailure] | None:
    """What to raise for what a device has found; None if it is no finding, but an exception that
    the kernel raised itself.
    """
    return next((to for kind, to in _KINDS if isinstance(error, kind)), None)
