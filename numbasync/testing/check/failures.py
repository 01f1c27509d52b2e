"""The failures of `check_kernel`: one class for each kind of error of a kernel."""

from __future__ import annotations

from numbasync import errors
from numbasync.errors import NumbasyncError


class KernelFailure(NumbasyncError, AssertionError):  # noqa: N818 - a failure of a test
    """A kernel failed its test. The message is the report.

    Examples:
        >>> x = np.ones(3, np.float32)
        >>> try:
        ...     na.testing.check_kernel(saxpy, [x, 2.0, x.copy()], lambda z, a, x: z, races=0)
        ... except na.testing.KernelFailure as failure:
        ...     print(type(failure).__name__, isinstance(failure, AssertionError))
        KernelMismatch True
    """

    _entry = "testing.md#when-it-is-wrong"


class KernelMismatch(KernelFailure):
    """A result differs from the reference, or between two devices.

    Examples:
        >>> x = np.ones(3, np.float32)
        >>> na.testing.check_kernel(saxpy, [x, 2.0, x.copy()], lambda z, a, x: a * x, races=0)
        Traceback (most recent call last):
            ...
        numbasync.testing.check.failures.KernelMismatch: kernel saxpy on cpu:0: 3 of 3 elements of z
            are wrong (default tolerance)
          first at (0,): got 3.0, want 2.0: off by 1, 4.19e+06 ulp
          elements of shape (3,) (# all wrong, + some, . none):
            ###
        again: ...
    """


class KernelRace(KernelFailure):
    """Two unordered accesses, or a result that depends on the order of threads.

    Examples:
        >>> @cuda.jit
        ... def add_up(z, x):
        ...     z[0] += x[cuda.grid(1)]
        >>> arrays = [np.zeros(1, np.float32), np.ones(4, np.float32)]
        >>> na.testing.check_kernel(add_up, arrays, lambda z, x: x.sum(), grid=1, block=4)
        Traceback (most recent call last):
            ...
        numbasync.testing.check.failures.KernelRace: kernel add_up, block (0, 0, 0), thread (1, 0,
            0): reads an element of z (...)
        that block (0, 0, 0), thread (0, 0, 0) writes as z (...), and nothing says
            which comes first.
        Synchronise the threads in between, cuda.syncthreads(); or use cuda.atomic.
        ...
        kernel add_up on cpu:0, grid=1, block=4, threads in forward order
        again: ...
    """

    _entry = "testing.md#a-race"


class OutOfBounds(KernelFailure):
    """An index outside of the array, or outside of the part that the block may write.

    Examples:
        >>> @cuda.jit
        ... def shift(z):
        ...     z[cuda.grid(1) + 1] = 1
        >>> na.testing.check_kernel(shift, [np.zeros(4)], None, grid=1, block=4, races=0)
        Traceback (most recent call last):
            ...
        numbasync.testing.check.failures.OutOfBounds: kernel shift, block (0, 0, 0), thread (3, 0,
            0): IndexError: index 4 is out of bounds for axis 0 of z, which has 4 (...)
        ...
        kernel shift on cpu:0, grid=1, block=4
        again: ...
    """


class UninitialisedRead(KernelFailure):
    """A read of shared or local memory that no thread has written.

    Examples:
        >>> @cuda.jit
        ... def copy(z):
        ...     own = cuda.shared.array(4, np.float32)
        ...     z[cuda.threadIdx.x] = own[cuda.threadIdx.x]
        >>> na.testing.check_kernel(copy, [np.zeros(4)], None, grid=1, block=4)
        Traceback (most recent call last):
            ...
        numbasync.testing.check.failures.UninitialisedRead: kernel copy, block (0, 0, 0), thread (0,
            0, 0): reads an element of own that no thread of its block has written (...)
        A GPU gives what was left in its shared memory. Write it first, and synchronise the threads:
            cuda.syncthreads().
        ...
        kernel copy on cpu:0, grid=1, block=4, threads in forward order
        again: ...
    """


class BarrierDivergence(KernelFailure):
    """A barrier that not all threads of a block reach.

    Examples:
        >>> @cuda.jit
        ... def wait(z):
        ...     if cuda.threadIdx.x < 2:
        ...         cuda.syncthreads()
        ...     z[cuda.threadIdx.x] = 1
        >>> na.testing.check_kernel(wait, [np.zeros(4)], None, grid=1, block=4, races=0)
        Traceback (most recent call last):
            ...
        numbasync.testing.check.failures.BarrierDivergence: kernel wait, block (0, 0, 0): 2 of 4
            threads wait at cuda.syncthreads, line 4, but thread (2, 0, 0) has returned or gone
            another way.
        Guard the work between barriers, not the barriers: if i < n: ...; then cuda.syncthreads()
            outside the if.
        ...
        kernel wait on cpu:0, grid=1, block=4
        again: ...
    """


class InputModified(KernelFailure):
    """An input that the launch has changed.

    Examples:
        >>> @cuda.jit(device=True)
        ... def store_to_second(arrays):  # which the launcher does not see
        ...     arrays[1][0] = 2
        >>> @na.launcher
        ... @cuda.jit
        ... def change(z: na.KernelOutput, x: na.KernelInput):
        ...     store_to_second((z, x))
        >>> arrays = [np.zeros(4, np.float32), np.ones(4, np.float32)]
        >>> na.testing.check_kernel(change, arrays, None, grid=1, block=1, races=0)
        Traceback (most recent call last):
            ...
        numbasync.testing.check.failures.InputModified: kernel change on cpu:0, grid=1, block=1: 1
            of 4 elements of x, which is an input, were changed
          first at (0,): was 1.0, is 2.0
        Declare it na.KernelOutput, or do not write to it.
        again: ...
    """


class MisalignedAccess(KernelFailure):
    """A vector access to an address that is no multiple of its bytes.

    Examples:
        >>> @cuda.jit
        ... def load(z, x):
        ...     z[0] = na.vectors.load(x, 1, 4)[0]
        >>> arrays = [np.zeros(1, np.float32), np.zeros(8, np.float32)]
        >>> na.testing.check_kernel(load, arrays, None, grid=1, block=1, races=0)
        Traceback (most recent call last):
            ...
        numbasync.testing.check.failures.MisalignedAccess: kernel load, block (0, 0, 0), thread (0,
            0, 0): 16 bytes of x, from index 1 of its last axis on, do not begin at a multiple of 16
            bytes (...)
        A vector access to them is a fault on a GPU. Begin at a multiple of the count; tensors are
            aligned, views of them need not be, shared arrays are with alignment=16:
            cuda.shared.array(..., alignment=16). vectors.is_aligned tells.
        ...
        kernel load on cpu:0, grid=1, block=1
        again: ...
    """


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
