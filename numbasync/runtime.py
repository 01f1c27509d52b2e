"""Running a program: `run`, on the fastest event loop, and `Runtime`, a thread for the device."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from importlib import import_module
from typing import Any, Self, TypeVar

from numbasync.arguments import check_bool, with_type
from numbasync.device.device import (
    Device,
    chosen_device,
    current_device,
    default_device,
    use_device,
)
from numbasync.device.stream import Steps
from numbasync.errors import CallerError, DeviceError, OperationError, StateError
from numbasync.extending import describe
from numbasync.launch.call import Compile
from numbasync.launch.declared import compilations
from numbasync.launch.launcher import Launcher
from numbasync.ops import first_use, prerequisites
from numbasync.ops.consume import RunsOnce
from numbasync.ops.future import DeviceFuture
from numbasync.ops.gather import gather
from numbasync.ops.op import DeviceOp
from numbasync.ops.operands import suppress_unused_warnings
from numbasync.ops.run import await_op
from numbasync.ops.task_factory import eager_task_factory, task_factory
from numbasync.tensors.create import zeros
from numbasync.threads import Answer, start

T = TypeVar("T")


def run(main: Awaitable[T], *, debug: bool | None = None, eager_tasks: bool = False) -> T:
    """`asyncio.run` on uvloop, or on asyncio's own loop where uvloop is not installed; with
    `na.task_factory`, by which operations in `asyncio.gather` need no tasks.

    A loop turn of uvloop takes half the time of a turn of asyncio, and an await costs one turn.

    Args:
        main: a coroutine, an operation, or another awaitable.
        eager_tasks: a task runs up to its first wait when it is created, not at the loop's next
            turn (`asyncio.eager_task_factory`, Python 3.12 or later).

    Raises:
        CallerError: `main` cannot be awaited, `debug` or `eager_tasks` is no truth value, or this
            Python has no eager tasks.
        StateError: an event loop runs on this thread already, as in a notebook.

    Examples:
        >>> async def main():
        ...     z = await na.zeros(4)
        ...     await saxpy(z, 2.0, np.ones(4, np.float32))
        ...     return await z.to_host()
        >>> na.run(main())
        array([2., 2., 2., 2.], dtype=float32)
    """
    if not inspect.isawaitable(main):
        raise CallerError(
            f"na.run takes something to await, not {with_type(main)}; call the "
            "function: na.run(main())."
        )
    try:
        _check_run(debug, eager_tasks)
    except Exception:
        if inspect.iscoroutine(main):
            main.close()  # else Python would also warn that it was never awaited
        raise
    coroutine: Coroutine[Any, Any, T] = main if inspect.iscoroutine(main) else await_op(main)
    with asyncio.Runner(debug=debug, loop_factory=_loop_factory()) as runner:
        runner.get_loop().set_task_factory(eager_task_factory if eager_tasks else task_factory)
        return runner.run(coroutine)


def _check_run(debug: Any, eager_tasks: Any) -> None:
    if debug is not None:
        check_bool(debug, "debug of na.run")
    if check_bool(eager_tasks, "eager_tasks of na.run") and sys.version_info < (3, 12):
        raise CallerError(
            f"eager tasks came with Python 3.12, and this is {sys.version.split()[0]}: leave "
            "eager_tasks out."
        )
    if _loop_is_running():
        raise StateError(
            "an event loop runs on this thread already, as in a notebook: write `await main()` "
            "instead of na.run(main())."
        )


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The loop factory of uvloop; None if uvloop is not installed, and on Windows."""
    if sys.platform == "win32":
        return None
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Runtime:
    """A thread that drives a device, for event loops that must never run a driver call.

    ```python
    async with na.Runtime(device) as rt:
        z = await rt.run(na.zeros(1000))
        names = await rt.call(load, path)
    ```

    The thread has an event loop of its own, on which operations are submitted and awaited in the
    order of the calls. Leaving the block waits until all enqueued work is done.

    Args:
        device: the thread's current device; default: the default device.

    Entering the block raises DeviceError if the thread cannot be started; it can be entered again.

    Examples:
        >>> async with na.Runtime() as rt:
        ...     z = await rt.run(na.ones(3))
        ...     print(await rt.run(z.to_host()), await rt.call(sum, [1, 2]))
        [1. 1. 1.] 3
    """

    def __init__(self, device: Device | None = None) -> None:
        self.device = chosen_device(device, "Runtime")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._started: Future[asyncio.AbstractEventLoop] = Answer()  # of the thread
        self._ended: Future[None] = Answer()
        for future in (self._started, self._ended):  # a cancelled wait does not cancel it
            future.set_running_or_notify_cancel()
        self._calls: set[Future[Any]] = set()

    async def __aenter__(self) -> Self:
        if self._thread is not None:
            raise StateError(f"{self!r} has been entered already; make another one.")
        # The thread does not hold the runtime, with which it ends at the latest.
        thread = threading.Thread(
            target=_drive, args=(self.device, self._started, self._ended),
            name=f"numbasync-{self.device.label}", daemon=True,
        )  # fmt: skip
        self._thread = thread
        try:
            start(thread, f"a runtime of {self.device.label}")
        except DeviceError:
            self._thread = None
            raise
        self._loop = await asyncio.wrap_future(self._started)
        return self

    async def __aexit__(self, *exc: object) -> None:
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        try:
            # ^C may have kept one that is done from being removed.
            while calls := [future for future in self._calls.copy() if not future.done()]:
                await asyncio.wait([asyncio.wrap_future(future) for future in calls])
            await self._on_thread(self._idle())
        finally:
            self._loop = None
            self._stop()
            await asyncio.wrap_future(self._ended)  # no executor, which may need a thread
            thread.join()

    def __del__(self) -> None:  # where ^C, or a cancellation, came before the block, or in its end
        if getattr(self, "_thread", None) is not None and not self._ended.done():
            self._stop()

    def _stop(self) -> None:
        """Let the thread end."""
        self._started.add_done_callback(_stop)

    async def _idle(self) -> None:
        # Runs on the runtime's own thread, which may block.
        self.device.synchronize()

    def _on_thread(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        if self._loop is None:
            coroutine.close()
            raise StateError(f"{self!r} is not running: use it inside `async with`.")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        self._calls.add(future)
        future.add_done_callback(self._calls.discard)
        return asyncio.wrap_future(future)

    async def call(self, function: Callable[..., T], *args: Any) -> T:
        """Call `function(*args)` on the thread; returns its value. `function` is no `async def`.

        A cancelled call still waits until the function has returned, so that the objects that the
        function works on are not released meanwhile.
        """
        if inspect.iscoroutinefunction(function):
            raise CallerError(
                f"Runtime.call takes a plain function, and {function.__name__} is an `async def`: "
                "write rt.run(f())."
            )

        async def call() -> T:
            return function(*args)

        future = self._on_thread(call())
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            while not future.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([future])
            future.exception()  # retrieved, so no warning: the cancellation is raised instead
            raise

    async def run(self, op: Awaitable[T]) -> T:
        """Await an operation, or a coroutine, on the thread; returns its value.

        Cancelling this call cancels `op` on the thread: work that is not enqueued yet is dropped,
        enqueued work runs to its end. The call returns once the thread has done so.

        Raises:
            CallerError: `op` cannot be awaited.
        """
        if not inspect.isawaitable(op):
            raise CallerError(
                f"Runtime.run takes an operation or something else to await, not "
                f"{with_type(op)}; a function goes to Runtime.call."
            )
        ended: Future[None] = Answer()
        cancelled = False

        async def run() -> T:
            try:
                if cancelled:  # the call was cancelled before the thread began
                    if inspect.iscoroutine(op):
                        op.close()
                    raise asyncio.CancelledError
                return await op
            finally:
                ended.set_result(None)

        coroutine = run()
        future = self._on_thread(coroutine)
        try:
            return await future
        except asyncio.CancelledError:
            cancelled = True  # first: from now on `op` is not started
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                if isinstance(op, RunsOnce):
                    op.suppress_warning()
                elif isinstance(op, DeviceFuture):
                    op.never_awaited()
            else:
                while not ended.done():  # `op` may still be reading the caller's arrays
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.wait([asyncio.wrap_future(ended)])
            raise

    def __repr__(self) -> str:
        state = "running" if self._loop is not None else "not running"
        return f"<Runtime of {self.device.label}, {state}>"


def _drive(device: Device, started: Future[asyncio.AbstractEventLoop], ended: Future[None]) -> None:
    """The thread of a runtime."""
    try:
        with use_device(device), asyncio.Runner(loop_factory=_loop_factory()) as runner:
            loop = runner.get_loop()
            loop.set_task_factory(task_factory)
            loop.call_soon(started.set_result, loop)
            loop.run_forever()
    except BaseException as error:
        if started.done():
            raise
        started.set_exception(error)  # there is no loop
    finally:
        ended.set_result(None)


def _stop(started: Future[asyncio.AbstractEventLoop]) -> None:
    """Stop the loop of a thread that has started."""
    if started.exception() is not None:
        return
    loop = started.result()
    with contextlib.suppress(RuntimeError):  # it is closed
        loop.call_soon_threadsafe(loop.stop)


# --- beforehand -----------------------------------------------------------------------


# Modules that a program imports when it first uses a name of the package, which says which.
imported_later = set[str]()


class _Thread:
    """A prerequisite: a call on a thread."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.run = call


async def warm_up(*kernels: Launcher[Any] | DeviceOp[None]) -> None:
    """Do beforehand what the first operations of a process would wait for, while the loop turns:
    find the devices, open the current one, import the compilers and what batches, tuning and random
    numbers need, and run one small operation of each kind; then compile `kernels` for that device.

        await na.warm_up(saxpy.compile(z, 2.0, x))

    Launches nothing of `kernels`. What is done already takes no time. Write
    `with na.use_device(device):` around it for another device.

    Args:
        kernels: operations of `kernel.compile(*args)`; and launchers, which are compiled for all
            signatures that are declared, as in `@cuda.jit("void(float32[:], float32)")`. What
            calls of a launcher without signatures are compiled for is not known before: the first
            compiles it, on a thread.

    Raises:
        OperationError: one of `kernels` is something else. Nothing has run then.
        DeviceUnavailableError: NUMBASYNC_DEVICE names a device that cannot be used.
        KernelCompileError: a kernel cannot be compiled.

    Examples:
        >>> await na.warm_up(saxpy.compile(na.meta(1), 2.0, na.meta(1)))
        >>> compiled = na.compile_count()
        >>> _ = await saxpy(na.zeros(3), 2.0, na.ones(3))
        >>> na.compile_count() - compiled
        0
    """
    with suppress_unused_warnings(kernels):
        for kernel in kernels:
            if not isinstance(kernel, Launcher | Compile):
                raise OperationError(
                    f"warm_up takes launchers and operations of kernel.compile(*args), not "
                    f"{describe(kernel)}."
                )
    error = await Steps(first_use.started(current_device()))
    if error is not None:
        raise error
    device = default_device()
    ops: list[DeviceOp[None]] = []

    def prepare() -> None:
        device.backend.warm_up()
        from numbasync.launch import first_kernel  # noqa: F401

        for name in sorted(imported_later):
            import_module(name)

        for kernel in kernels:
            ops.extend(compilations(kernel) if isinstance(kernel, Launcher) else [kernel])

    error = await prerequisites.beside(_Thread(prepare), lambda: None)
    if error is not None:
        raise error
    from numbasync.launch.first_kernel import first_kernel

    t = await zeros(1)
    await first_kernel(t)
    await t.to_host()
    await gather(*ops)
