"""All exceptions of numbasync, grouped by cause, and the remedies of driver errors.

`CallerError`: an argument was wrong; nothing was enqueued.
`StateError`: the arguments were right, but the program was not in a state for the call.
`DeviceError`: the device could not do the work, or failed while doing it.
`DriverError`: a driver call failed for a reason that none of the above names.
`InternalError`: a bug in numbasync.

Each exception also derives from the matching built-in one, so that `except MemoryError` and
`except TypeError` catch it.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar, NamedTuple

from numbasync import driver_results

DOCUMENTATION = "https://github.com/numbasync/numbasync/tree/HEAD/docs"  # as in pyproject.toml


class NumbasyncError(Exception):
    """Base class of every exception that numbasync raises deliberately. A traceback ends with the
    address of the class's entry on the page of errors.

    Examples:
        >>> try:
        ...     await na.zeros(-1)
        ... except na.errors.NumbasyncError as error:
        ...     print(type(error).__name__, isinstance(error, ValueError))
        ShapeError True
    """

    # The page and heading, below `DOCUMENTATION`, that describe the class.
    _entry: ClassVar[str] = "errors.md"

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # Classes of other modules, and of users, have the entry of the class that they extend.
        if cls.__module__ == __name__ and "_entry" not in vars(cls):
            cls._entry = f"errors.md#{cls.__name__.lower()}"

    @cached_property
    def __notes__(self) -> list[str]:  # type: ignore[override]
        """What a traceback shows below the message, `add_note` appends to, and `str` leaves out.
        Made when one of them asks, so that an error that is caught costs nothing more.
        """
        return [f"See {DOCUMENTATION}/{self._entry}"]


# --- the caller's argument was wrong; nothing was enqueued -------------------------


class CallerError(NumbasyncError):
    """An argument was wrong. The error was found before anything was enqueued.

    Examples:
        >>> na.use_device("gpu")
        Traceback (most recent call last):
            ...
        numbasync.errors.CallerError: there is no device 'gpu'; there are ...
    """

    _entry = "errors.md#the-argument-was-wrong"


class ShapeError(CallerError, ValueError):
    """A shape, a rank, an index or a tile does not fit.

    Examples:
        >>> (await na.zeros(4)).reshape(3)
        Traceback (most recent call last):
            ...
        numbasync.errors.ShapeError: 4 elements of shape (4,) cannot have the shape (3,).
    """


class DTypeError(CallerError, TypeError):
    """An element type does not fit, or a tensor cannot hold it.

    Examples:
        >>> na.rand(3, dtype=np.int32)
        Traceback (most recent call last):
            ...
        numbasync.errors.DTypeError: rand makes float32 or float64, not int32; convert() its result.
    """


class OperationError(CallerError, TypeError):
    """An argument is not an operation where one is required, or has another wrong type.

    Examples:
        >>> na.zip(na.zeros(3), 5)
        Traceback (most recent call last):
            ...
        numbasync.errors.OperationError: argument 1 of zip must be an operation, not int (5).
        To pass a value on, wrap it: na.value(x).
    """


class NotAGraphNodeError(OperationError):
    """An operation that a graph cannot replay, because it allocates or waits for the host.

    Examples:
        >>> with na.CudaGraph.scope(na.default_device().new_stream()) as s:
        ...     s.record(na.zeros(3))
        Traceback (most recent call last):
            ...
        numbasync.errors.NotAGraphNodeError: zeros((3,)) allocates 12 bytes, which a graph cannot
            repeat.
        Allocate before, t = na.empty(...).sync(), and record what writes to it: a launch,
            na.memcpy, na.fill. op.graph_on(stream) allocates once, for the graph.
    """


class LauncherError(CallerError, TypeError):
    """A kernel's declaration, or a call of it, contradicts the kernel's own code.

    Examples:
        >>> saxpy(na.zeros(3), 2.0)
        Traceback (most recent call last):
            ...
        numbasync.errors.LauncherError: kernel saxpy(z, a, x): x is missing.
    """


class LaunchError(CallerError, ValueError):
    """A grid, a block or a precondition of a launch does not fit.

    Examples:
        >>> await saxpy[1, 2048](na.zeros(3), 2.0, na.ones(3))
        Traceback (most recent call last):
            ...
        numbasync.errors.LaunchError: kernel saxpy: 2048 threads a block ((2048, 1, 1)) are more
            than the 1024 that the device allows.
        Use fewer threads a block, such as 256.
    """


class AliasError(CallerError, ValueError):
    """One storage is an output and another argument of the same launch.

    Examples:
        >>> z = await na.zeros(3)
        >>> await saxpy(z, 2.0, z)
        Traceback (most recent call last):
            ...
        numbasync.errors.AliasError: kernel saxpy: z, which may be written, and x are in the same
            storage: <Tensor (3,) float32 on cpu:0>, <Tensor (3,) float32 on cpu:0>.
        Blocks run in no order, so one may read what another has written. Pass a copy (await
            t.dup()), or, if the kernel is written for it, declare it @na.launcher(may_alias=True).
    """


class DeviceMismatchError(CallerError, ValueError):
    """A tensor, stream or pool belongs to another device.

    Examples:
        >>> t = await na.zeros(3)
        >>> na.fill(t, 1).sync_on(na.devices("cpu")[1].new_stream())
        Traceback (most recent call last):
            ...
        numbasync.errors.DeviceMismatchError: fill((3,), 1.0) runs on cpu:1, but uses <Tensor (3,)
            float32 on cpu:0> of cpu:0.
        Name no stream, and it runs on cpu:0, where its tensors are. Behind or inside another
            operation, which runs on cpu:1, await that one first.
    """


class ForeignBufferError(CallerError, ValueError):
    """A buffer of one batch was used in another batch.

    Examples:
        >>> first, second = na.CommandBatch(), na.CommandBatch()
        >>> second.relu(first.upload([1.0, 2.0]))
        Traceback (most recent call last):
            ...
        numbasync.errors.ForeignBufferError: relu: <BufferId 0 (2,) float64> is of
            batch ..., not of batch ...
        Read it there and upload it here, or hand its tensor over: b.use(other.tensor(id))
    """


class KernelCompileError(CallerError, TypeError):
    """Numba could not compile the kernel for these argument types; `__cause__` has the reason.

    Examples:
        >>> @na.launcher
        ... @cuda.jit
        ... def add_rows(z: na.KernelOutput, x: na.KernelInput):
        ...     i = cuda.grid(1)
        ...     if i < z.shape[0]:
        ...         z[i] += x[i]
        >>> await add_rows(na.zeros(8), na.ones((8, 4)))  # x[i] is a row, not a number
        Traceback (most recent call last):
            ...
        numbasync.errors.KernelCompileError: kernel add_rows cannot be compiled for (z:
            array(float32, 1d, C), x: array(float32, 2d, C))
          ..., line 6: z[i] += x[i]
          which uses z: array(float32, 1d, C), x: array(float32, 2d, C)
        ...
    """


class MissingExtraError(CallerError, ImportError):
    """An optional package is not installed; the message holds the command that installs it.

    Examples:
        >>> try:
        ...     import numbasync.ray
        ... except na.errors.MissingExtraError as error:
        ...     told = str(error)  # with the command: pip install ...
    """


# --- the program is not in a state that allows the call ---------------------------


class StateError(NumbasyncError, RuntimeError):
    """The call is valid, but was made too late, too early or twice.

    Examples:
        >>> op = na.value(1)
        >>> await op
        1
        >>> try:
        ...     await op
        ... except na.errors.StateError as error:
        ...     print(type(error).__name__)
        AlreadySubmittedError
    """


class AlreadySubmittedError(StateError):
    """An operation that can run only once was run a second time.

    Examples:
        >>> op = na.value(1)
        >>> await op
        1
        >>> await op
        Traceback (most recent call last):
            ...
        numbasync.errors.AlreadySubmittedError: value(int) was already submitted, or made part of
            another operation.
        To use its result twice, share it before the first use:
        <BLANKLINE>
            op = value(int).shared()
            a, b = await op, await op
    """


class BatchStateError(StateError):
    """A batch was read before it ran, or recorded to after it ran.

    Examples:
        >>> b = na.CommandBatch()
        >>> y = b.upload([1.0, 2.0]) * 2
        >>> await b.read(y)
        Traceback (most recent call last):
            ...
        numbasync.errors.BatchStateError: read of <BufferId 2 (2,) float64>, but batch
            ... is recording.
        Write: await b.execute()        # or b.execute_sync()
    """


class NoResultError(BatchStateError, KeyError):
    """A key is not among the results of a batch.

    Examples:
        >>> b = na.CommandBatch()
        >>> x = b.upload([1.0, 2.0])
        >>> y = x * 2
        >>> results = await b.op()
        >>> results[x]
        Traceback (most recent call last):
            ...
        numbasync.errors.NoResultError: <BufferId 0 (2,) float64> is no result of
            batch ..., which did not write it.
        Write: b.keep(id)        # before it is executed
        or:    await b.read(id)  # afterwards
    """

    __str__ = Exception.__str__  # KeyError's own __str__ would quote the message


class ReentrancyError(StateError):
    """An operation was run inside another operation's closure, on the same thread.

    Examples:
        >>> await na.value(3).map(lambda n: na.zeros(n).sync())
        Traceback (most recent call last):
            ...
        numbasync.errors.ReentrancyError: an operation was run inside a closure of another one, or
            inside a graph's scope, on the same thread.
        Return it instead, and it will run next on the same stream:
        <BLANKLINE>
            op.then(lambda x: kernel(x))       # not: kernel(x).sync()
        <BLANKLINE>
        or use then_unchecked if the closure must wait for a result. In a scope, write s.record(op).
    """


class MovedError(StateError):
    """A handle was used after `take()` had moved its storage to another one.

    Examples:
        >>> t = await na.zeros(3)
        >>> moved = t.take()
        >>> await t.to_host()
        Traceback (most recent call last):
            ...
        numbasync.errors.MovedError: <Tensor (3,) float32 on cpu:0, moved> was moved by take(); use
            the handle that take() returned, or what the launch it was given to returned.
    """


class SharedStorageError(StateError):
    """Exclusive use was requested of a storage that other handles still hold.

    Examples:
        >>> first = (await na.zeros(4)).shared()
        >>> second = first.tensor[:2]
        >>> first.partition(2)
        Traceback (most recent call last):
            ...
        numbasync.errors.SharedStorageError: 1 other tensors or views hold the storage of
            <SharedTensor (4,) float32>.
        Drop them first, or write to a copy: (await s.dup()).partition(...)
    """


class AccessConflictError(StateError):
    """Strict ordering: two streams would access one storage with no edge between them.

    Examples:
        >>> device = na.default_device()
        >>> first, second = device.new_stream(), device.new_stream()
        >>> t = await na.zeros(3)
        >>> with na.ordering("strict"), na.testing.gate(first):
        ...     _ = na.fill(t, 1).async_on(first)
        ...     _ = na.fill(t, 2).async_on(second)
        Traceback (most recent call last):
            ...
        numbasync.errors.AccessConflictError: fill((3,), 2.0) on <Stream ... of cpu:0, 0 in flight>
            and fill((3,), 1.0) on <Stream ... of cpu:0, 1 in flight> both use <Tensor (3,) float32
            on cpu:0>, and at least one writes it.
        Await the first, chain them with then(), or run them on one stream; na.set_ordering('auto')
            does it for you.
    """


class CollectiveError(StateError):
    """The ranks of a group have not called the same collective.

    Examples:
        >>> key = na.collective.new_key(2)
        >>> connecting = (na.collective.connect(key, rank) for rank in range(2))
        >>> first, second = await asyncio.gather(*connecting)
        >>> one = na.collective.all_reduce(await na.ones(2), comm=first)
        >>> other = na.collective.broadcast(await na.ones(2), comm=second)
        >>> found = await na.gather(one, other, return_exceptions=True)
        >>> print(found[0])
        rank 0, all_reduce sum of <f4[2], byte 0: rank 1 has called another collective, or with
            another dtype, shape or reduction. Every rank calls the same ones in the same order.
        >>> first.close(), second.close()
        (None, None)
    """


class RankLostError(CollectiveError, ConnectionError):
    """A process of a group has ended, or has closed its communicator.

    Examples:
        >>> key = na.collective.new_key(2)
        >>> connecting = (na.collective.connect(key, rank) for rank in range(2))
        >>> first, second = await asyncio.gather(*connecting)
        >>> second.close()
        >>> await na.collective.all_reduce(await na.ones(2), comm=first)
        Traceback (most recent call last):
            ...
        numbasync.errors.RankLostError: rank 0, all_reduce sum of <f4[2], byte 0: rank 1 has ended,
            or closed its communicator.
        >>> first.close()
    """


class CollectiveTimeoutError(CollectiveError, TimeoutError):
    """A process of a group has not called a collective within the communicator's time limit.

    Examples:
        >>> key = na.collective.new_key(2)
        >>> await na.collective.connect(key, rank=0, timeout=0.01)  # the other process is missing
        Traceback (most recent call last):
            ...
        numbasync.errors.CollectiveTimeoutError: ranks [1] of 2 have not connected in 0.01 s: they
            were not started, or have failed.
    """


class GraphUpdateError(StateError):
    """A graph cannot be changed in place in this way, and is unchanged. Capture a new graph.

    Examples:
        >>> z = await na.zeros(3)
        >>> graph = na.fill(z, 1).graph()
        >>> graph.recapture(saxpy(z, 2.0, na.ones(3)))
        Traceback (most recent call last):
            ...
        numbasync.errors.GraphUpdateError: saxpy(z, a, x) is of another topology (1 kernel, 1
            memset) than the graph (1 memset): capture a new graph.
    """


class OverloadedError(StateError):
    """A service refused a request at once: as many as it may hold wait already.

    Attributes:
        waiting: the number of requests that waited.

    Examples:
        >>> async def answer_later(items):
        ...     await asyncio.sleep(0.01)
        ...     return items
        >>> async with na.serve.MicroBatcher(answer_later, max_queue=1) as batcher:
        ...     await asyncio.gather(batcher(1), batcher(2), batcher(3))
        Traceback (most recent call last):
            ...
        numbasync.errors.OverloadedError: 1 requests wait for answer_later, and max_queue is 1.
        Answer 503, and let the client try again later; or serve with more processes or devices.
            A longer queue only makes everybody wait longer.
    """

    waiting = 0


class DeadlineError(StateError, TimeoutError):
    """A request was refused because its deadline had passed.

    Examples:
        >>> async def answer_later(items):
        ...     await asyncio.sleep(60)
        >>> async with na.serve.MicroBatcher(answer_later) as batcher:
        ...     await batcher(1, deadline=0.001)
        Traceback (most recent call last):
            ...
        numbasync.errors.DeadlineError: the deadline of 0.001 s has passed, and ...
    """


class BatcherClosedError(StateError):
    """A request came to a batcher that is closed, or that was closed while the request waited.

    Examples:
        >>> batcher = na.serve.MicroBatcher(lambda items: items)
        >>> async with batcher:
        ...     await batcher(1)
        1
        >>> await batcher(2)
        Traceback (most recent call last):
            ...
        numbasync.errors.BatcherClosedError: the batcher of <lambda> is closed.
        Answer 503, and let the client ask another process of the service.
    """


class BatchAbortedError(StateError):
    """The batch of a request ended without results: `f` was cancelled, or was interrupted.

    Examples:
        >>> async def give_up(items):
        ...     raise asyncio.CancelledError
        >>> async with na.serve.MicroBatcher(give_up) as batcher:
        ...     await batcher(1)
        Traceback (most recent call last):
            ...
        numbasync.errors.BatchAbortedError: the batch of the request ended without results: give_up
            was cancelled.
        Nothing was kept of the request: ask again.
    """


# --- the device ------------------------------------------------------------------


class DeviceError(NumbasyncError, RuntimeError):
    """The device cannot do the work, or failed while doing it.

    Examples:
        >>> try:
        ...     with na.testing.inject(na.default_device(), "kernel"):
        ...         await saxpy(na.zeros(3), 2.0, na.ones(3))
        ... except na.errors.DeviceError as error:
        ...     print(type(error).__name__)
        KernelError
    """

    _entry = "errors.md#the-device-could-not-do-it"


class DeviceUnavailableError(DeviceError):
    """No device of the requested kind can be used; the message says what is missing.

    Examples:
        >>> try:
        ...     device = na.default_device()
        ... except na.errors.DeviceUnavailableError:  # NUMBASYNC_DEVICE=cuda, without a GPU
        ...     device = na.devices("cpu")[0]
    """


class OutOfDeviceMemoryError(DeviceError, MemoryError):
    """An allocation did not fit. The device remains usable; a smaller allocation may succeed.

    Examples:
        >>> await na.empty(2**50)
        Traceback (most recent call last):
            ...
        numbasync.errors.OutOfDeviceMemoryError: 4,503,599,627,370,496 bytes do not fit on
            cpu:0: ... are in use.
    """


class KernelError(DeviceError):
    """A kernel raised an exception. The message names kernel, block and thread.

    Examples:
        >>> @na.launcher
        ... @cuda.jit(debug=True, opt=False)
        ... def check(z: na.KernelOutput):
        ...     if z[cuda.grid(1)] < 0:
        ...         raise ValueError("negative")
        >>> await check(na.full(1, -1))
        Traceback (most recent call last):
            ...
        numbasync.errors.KernelError: kernel check, block (0, 0, 0), thread (0, 0, 0): ValueError:
            negative (...)
        ...
    """


class BarrierDivergenceError(KernelError):
    """Some threads of a block wait at a barrier that the other threads will not reach.

    Examples:
        >>> @na.launcher
        ... @cuda.jit
        ... def wait(z: na.KernelOutput):
        ...     if cuda.threadIdx.x < 2:
        ...         cuda.syncthreads()
        >>> await wait[1, 4](na.zeros(4))
        Traceback (most recent call last):
            ...
        numbasync.errors.BarrierDivergenceError: kernel wait, block (0, 0, 0): 2 of 4 threads wait
            at cuda.syncthreads, line 5, but thread (2, 0, 0) has returned or gone another way.
        Guard the work between barriers, not the barriers: if i < n: ...; then cuda.syncthreads()
            outside the if.
        ...
    """


class OutOfBoundsError(KernelError, IndexError):
    """A kernel used an index outside its array.

    Examples:
        >>> @na.launcher
        ... @cuda.jit
        ... def shift(z: na.KernelOutput):
        ...     z[cuda.grid(1) + 1] = 1
        >>> await shift[1, 4](na.zeros(4))
        Traceback (most recent call last):
            ...
        numbasync.errors.OutOfBoundsError: kernel shift, block (0, 0, 0), thread (3, 0, 0):
            IndexError: index 4 is out of bounds for axis 0 of z, which has 4 (...)
        ...
    """


class MisalignedAccessError(KernelError):
    """A kernel used an address that is no multiple of the bytes of a vector access.

    Examples:
        >>> na.vectors.load(np.zeros(8, np.float32), 1, 4)  # bytes 4 to 19; in a kernel, too
        Traceback (most recent call last):
            ...
        numbasync.errors.MisalignedAccessError: 16 bytes of array, from index 1 of its last axis on,
            do not begin at a multiple of 16 bytes
        A vector access to them is a fault on a GPU. Begin at a multiple of the count; tensors are
            aligned, views of them need not be, shared arrays are with alignment=16:
            cuda.shared.array(..., alignment=16). vectors.is_aligned tells.
    """


class UninitialisedReadError(KernelError):
    """A kernel read shared or local memory before writing it. Found in checked kernels.

    Examples:
        >>> @na.launcher
        ... @cuda.jit
        ... def copy(z: na.KernelOutput):
        ...     own = cuda.shared.array(4, np.float32)
        ...     z[cuda.threadIdx.x] = own[cuda.threadIdx.x]
        >>> with na.testing.checked(na.default_device()):
        ...     await copy[1, 4](na.zeros(4))
        Traceback (most recent call last):
            ...
        numbasync.errors.UninitialisedReadError: kernel copy, block (0, 0, 0), thread (0, 0, 0):
            reads an element of own that no thread of its block has written (...)
        A GPU gives what was left in its shared memory. Write it first, and synchronise the threads:
            cuda.syncthreads().
        ...
    """


class DataRaceError(KernelError):
    """Two threads accessed an element, at least one wrote it, and nothing orders the two accesses.
    Found in checked kernels.

    Examples:
        >>> @na.launcher
        ... @cuda.jit
        ... def add_up(z: na.KernelOutput, x: na.KernelInput):
        ...     z[0] += x[cuda.grid(1)]
        >>> with na.testing.checked(na.default_device()):
        ...     await add_up[1, 4](na.zeros(1), na.ones(4))
        Traceback (most recent call last):
            ...
        numbasync.errors.DataRaceError: kernel add_up, block (0, 0, 0), thread (1, 0, 0): reads an
            element of z (...)
        that block (0, 0, 0), thread (0, 0, 0) writes as z (...), and nothing says
            which comes first.
        Synchronise the threads in between, cuda.syncthreads(); or use cuda.atomic.
        ...
    """


class InputModifiedError(KernelError):
    """A kernel wrote the memory of an input. Found in checked kernels.

    Examples:
        >>> @cuda.jit(device=True)
        ... def store_to_second(arrays):  # which the launcher does not see
        ...     arrays[1][0] = 2
        >>> @na.launcher
        ... @cuda.jit
        ... def change(z: na.KernelOutput, x: na.KernelInput):
        ...     store_to_second((z, x))
        >>> with na.testing.checked(na.default_device()):
        ...     await change[1, 1](na.zeros(4), na.ones(4))
        Traceback (most recent call last):
            ...
        numbasync.errors.InputModifiedError: kernel change, block (0, 0, 0), thread (0, 0, 0):
            writes arrays[1], whose memory is of a na.KernelInput (...)
        What is only read may be read elsewhere at the same time. Declare it na.KernelOutput.
        ...
    """


class TileOverrunError(KernelError):
    """A block wrote outside its tile of a partition. Found in checked kernels.

    Examples:
        >>> @na.launcher
        ... @cuda.jit
        ... def next_tile(z: na.KernelOutput):
        ...     z[(cuda.grid(1) + 2) % 4] = 1
        >>> with na.testing.checked(na.default_device()):
        ...     await next_tile((await na.zeros(4)).partition(2))
        Traceback (most recent call last):
            ...
        numbasync.errors.TileOverrunError: kernel next_tile, block (0, 0, 0), thread (0, 0, 0):
            writes an element of z that is not in its block's tile (...)
        Each block may write its tile of a partition. Compare the grid, the threads and the tile; or
            pass the tensor without .partition(...).
        ...
    """


class IndexOverflowError(KernelError, OverflowError):
    """A kernel truncated an index to 32 bits in which it does not fit. Found in checked kernels.

    Examples:
        >>> @na.launcher
        ... @cuda.jit
        ... def far(z: na.KernelOutput, i):
        ...     z[np.int32(i)] = 1
        >>> with na.testing.checked(na.default_device()):
        ...     await far[1, 1](na.zeros(4), 2**32)
        Traceback (most recent call last):
            ...
        numbasync.errors.IndexOverflowError: kernel far, block (0, 0, 0), thread (0, 0, 0): np.int32
            of 4294967296, for an index, does not fit into 32 bits (...)
        Numba counts indices in 64 bits: leave the conversion out, or use np.int64.
        ...
    """


class UnsupportedKernelError(DeviceError, NotImplementedError):
    """This device cannot run a construct that the kernel uses. The message names the construct.

    Examples:
        >>> @cuda.jit(device=True)
        ... def count(n):
        ...     if n > 0:
        ...         cuda.syncthreads()
        ...         return count(n - 1) + 1
        ...     return 0
        >>> @na.launcher
        ... @cuda.jit
        ... def recurse(z: na.KernelOutput):
        ...     z[0] = count(z.shape[0])
        >>> await recurse[1, 1](na.zeros(3))
        Traceback (most recent call last):
            ...
        numbasync.errors.UnsupportedKernelError: kernel recurse uses a barrier in count, which calls
            itself.
    """


class EndlessWaitError(UnsupportedKernelError):
    """A thread waits for one that runs after it, for ever. Found in checked kernels.

    Examples:
        >>> @na.launcher
        ... @cuda.jit
        ... def wait_for_last(flag: na.KernelOutput):
        ...     if cuda.grid(1) == 0:
        ...         while cuda.atomic.add(flag, 0, 0) == 0:
        ...             pass
        ...     else:
        ...         cuda.atomic.add(flag, 0, 1)
        >>> with na.testing.checked(na.default_device()):
        ...     await wait_for_last[2, 1](na.zeros(1, np.int32))
        Traceback (most recent call last):
            ...
        numbasync.errors.EndlessWaitError: kernel wait_for_last, block (0, 0, 0), thread (0, 0, 0):
            has found 2,097,152 times in a row, and done nothing else, an element of flag as it is
            (...)
        On the CPU device threads between two barriers, and blocks, run one after the other, so
            nobody will change it. Let threads and blocks wait only for earlier ones, as a number
            that cuda.atomic.add gives says; or check the kernel on a GPU.
        ...
    """


class DeviceLostError(DeviceError):
    """A fault broke the device's context: every operation fails until the program restarts.

    Examples:
        >>> with na.testing.inject(na.default_device(), "device"):
        ...     await saxpy(na.zeros(3), 2.0, na.ones(3))
        Traceback (most recent call last):
            ...
        numbasync.errors.DeviceLostError: an injected fault has broken the device's context.
        At work then was:
          saxpy(z, a, x), which launched saxpy; submitted at ...
    """

    device: object = None  # the `Device` that the fault has broken, once that is known


class InterpretedKernelWarning(RuntimeWarning):
    """`NUMBASYNC_CPU_ENGINE=interpreted`, or pytest's `--kernel-coverage`, makes kernels run as
    Python code on the CPU device: about a hundred times slower than compiled, and with Python's
    numbers instead of a GPU's. Given once in a process.

    Examples:
        >>> import warnings
        >>> warnings.filterwarnings("ignore", category=na.errors.InterpretedKernelWarning)
    """


# --- the driver, and numbasync --------------------------------------------------


class DriverError(NumbasyncError, RuntimeError):
    """A CUDA driver call failed.

    Attributes:
        call: name of the driver function.
        code: the function's numeric result.
        name: the result's name, such as `CUDA_ERROR_INVALID_VALUE`.

    Examples:
        >>> error = na.errors.DriverError("cuInit", 100, "CUDA_ERROR_NO_DEVICE", "no device")
        >>> print(error)
        cuInit failed: CUDA_ERROR_NO_DEVICE (100): no device
        Cause: the driver sees no GPU.
        Remedy: check `nvidia-smi` and CUDA_VISIBLE_DEVICES, or set NUMBASYNC_DEVICE=cpu.
    """

    def __init__(self, call: str, code: int, name: str, text: str) -> None:
        self.call = call
        self.code = code
        self.name = name
        self._made_of = call, code, name, text
        remedy = REMEDIES.get(name)
        lines = [f"{call} failed: {name} ({code}): {text}"]
        if remedy is not None:
            lines += [f"Cause: {remedy.cause}", f"Remedy: {remedy.remedy}"]
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._made_of, self.__dict__


class InternalError(NumbasyncError, RuntimeError):
    """A bug in numbasync itself. Please report it, with the traceback.

    Examples:
        >>> issubclass(na.errors.InternalError, na.errors.CallerError)  # not the caller's fault
        False
    """


class Remedy(NamedTuple):
    """The usual cause of a driver result, and the remedy.

    Examples:
        >>> na.errors.REMEDIES["CUDA_ERROR_NO_DEVICE"].remedy
        'check `nvidia-smi` and CUDA_VISIBLE_DEVICES, or set NUMBASYNC_DEVICE=cpu.'
    """

    cause: str
    remedy: str


REMEDIES: dict[str, Remedy] = {
    name: Remedy(*texts) for name, texts in driver_results.REMEDIES.items()
}

# Results after which every call in the context fails with the same error.
STICKY: frozenset[str] = driver_results.STICKY
