"""The ways to run an operation, as its methods."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Generator
from typing import Any, TypeVar, cast

from numbasync.device.policies import SchedulingPolicy
from numbasync.device.stream import AnyStream
from numbasync.native import compiled
from numbasync.ops import run
from numbasync.ops.future import DeviceFuture
from numbasync.ops.home import Home
from numbasync.ops.protocols import Operation

T = TypeVar("T")


class Runs:
    """The methods of an operation that run it: see the table of `DeviceOp`."""

    @property
    def home(self) -> Home:
        """Where the operation runs if nobody names a stream: the device of its tensors, on its
        policy's streams; of a graph, the graph's stream; None: on the default device.
        """
        return None

    def home_of_element(self, index: int) -> Home:
        """`home`, for one element of the tuple that the operation gives."""
        return self.home

    @compiled
    def __await__(self: Operation[T]) -> Generator[Any, None, T]:
        return run.await_on_loop(self)

    @compiled
    def sync(self: Operation[T]) -> T:
        """Run on a stream of the policy of `home`; block until the stream is done.

        Examples:
            >>> na.ones(3).to_host().sync()
            array([1., 1., 1.], dtype=float32)
        """
        return run.sync(self)

    @compiled
    def sync_on(self: Operation[T], stream: AnyStream) -> T:
        """Run on `stream` and block until the stream is done, also after an error.

        Examples:
            >>> stream = na.default_device().new_stream()
            >>> na.ones(3).to_host().sync_on(stream)
            array([1., 1., 1.], dtype=float32)
        """
        return run.sync_on(self, stream)

    @compiled
    def async_on(self: Operation[T], stream: AnyStream | None = None) -> T:
        """Enqueue on `stream` and return the value; device data is valid in stream order only.

        Args:
            stream: None for the one that the operation names, as `kernel[grid, block, stream]`
                does.

        Examples:
            >>> stream = na.default_device().new_stream()
            >>> z = na.zeros(3).async_on(stream)
            >>> _ = saxpy(z, 2.0, na.ones(3)).async_on(stream)  # behind it, on the same stream
            >>> z.to_host().sync_on(stream)
            array([2., 2., 2.], dtype=float32)
        """
        return run.async_on(self, stream)

    @compiled
    def schedule(self: Operation[T], policy: SchedulingPolicy | AnyStream) -> DeviceFuture[T]:
        """A future on the policy's next stream; the work starts at its first await.

        Examples:
            >>> future = na.ones(3).to_host().schedule(na.SingleStream(na.default_device()))
            >>> await future
            array([1., 1., 1.], dtype=float32)
        """
        return run.schedule(self, policy)

    def coroutine(self: Operation[T]) -> Coroutine[Any, Any, T]:
        """A coroutine that awaits the operation, for `create_task`, also of a task group, which
        takes nothing else. In `na.run`, no task is made of it: see `na.task_factory`.

        Examples:
            >>> async def main():
            ...     async with asyncio.TaskGroup() as group:
            ...         task = group.create_task(na.ones(3).to_host().coroutine())
            ...     return task.result()
            >>> na.run(main())
            array([1., 1., 1.], dtype=float32)
        """
        return run.await_op(cast("Awaitable[T]", self))
