"""Several devices that share a stream of parts: each part is worked on by one of them."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

from numbasync.arguments import shown
from numbasync.device.device import Device, checked_devices, use_device
from numbasync.errors import CallerError, DeviceMismatchError
from numbasync.ops.op import DeviceOp
from numbasync.ops.operands import check_closure, check_op, not_a_coroutine
from numbasync.public import Public
from numbasync.tensors.partition import Partition
from numbasync.tensors.tensor import SharedTensor, Tensor

T = TypeVar("T")
Running: TypeAlias = dict["asyncio.Task[Any]", Device]
U = TypeVar("U")


@dataclass(frozen=True)
class GroupStatistics:
    """What a `DeviceGroup` has worked on since it was created, in the order of its devices.

    Attributes:
        submitted: the parts given to each device.
        done: of these, the parts that have ended, also by an error or a cancellation.

    Examples:
        >>> group = na.DeviceGroup(na.devices("cpu")[:2])
        >>> _ = await group.map(lambda n: na.zeros(n), [1, 2, 3])
        >>> group.statistics()
        GroupStatistics(submitted=(2, 1), done=(2, 1))
    """

    submitted: tuple[int, ...]
    done: tuple[int, ...]


class DeviceGroup(Public):
    """Several devices, to which the parts of a computation are given.

    Args:
        devices: a list or a tuple of devices, each named once.

    Raises:
        CallerError: `devices` is empty, holds something else, or a device twice.

    Examples:
        >>> group = na.DeviceGroup(na.devices("cpu")[:2])
        >>> parts = await na.scatter(np.arange(4, dtype=np.float32), group.devices)
        >>> doubled = await group.map(lambda x: saxpy(na.zeros(x.shape), 2.0, x).output(), parts)
        >>> await na.gather_parts(doubled).to_host()
        array([0., 2., 4., 6.], dtype=float32)
    """

    def __init__(self, devices: Sequence[Device]) -> None:
        self._devices = checked_devices(devices, "DeviceGroup")
        if len(set(self._devices)) < len(self._devices):
            raise CallerError(
                f"DeviceGroup of {', '.join(d.label for d in self._devices)}: name each device "
                "once; map(f, parts, most=n) sets how much of it is used."
            )
        self._submitted = dict.fromkeys(self._devices, 0)
        self._done = dict.fromkeys(self._devices, 0)

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices, as given."""
        return self._devices

    async def map(
        self,
        f: Callable[[T], DeviceOp[U]],
        parts: Iterable[T] | AsyncIterable[T],
        *,
        most: int = 4,
    ) -> list[U]:
        """Run the operation `f(part)` for each part, on the devices of the group at the same time.

        `f` is called with the part's device as the current one, so that its operations go there. A
        tensor goes to its own device, anything else to the device that has the fewest operations in
        flight. Parts are taken in order, the next one when its device may have it in flight.

        Args:
            f: a function of a part that returns an operation.
            parts: an iterable or an asynchronous one, of any length.
            most: operations of this call in flight on one device at a time.

        Returns:
            The values, in the order of the parts.

        Raises:
            The first error of `f`, of an operation, or of `parts`. Operations that are not enqueued
            are cancelled then, as when the await is cancelled; enqueued ones run to their end.
            CallerError: `most` is no positive number, or `f` returns no operation.
            DeviceMismatchError: a tensor is of no device of the group.
        """
        check_closure(f, "map")
        if not isinstance(most, int) or isinstance(most, bool) or most < 1:
            raise CallerError(f"map of a DeviceGroup with most={shown(most)}: write 1 or more.")
        source = _iterator(parts)
        running: Running = {}
        tasks: list[asyncio.Task[U]] = []
        try:
            async with aclosing(_taken(source, running)) as taken:
                async for part in taken:
                    own = self._device_of(part)
                    choice = self._devices if own is None else (own,)
                    await _until(partial(self._has_room, choice, running, most), running)
                    device = self._least(choice, running)
                    task = asyncio.ensure_future(self._run(f, part, device))
                    running[task] = device
                    tasks.append(task)
            await _until(lambda: not running, running)
            return [task.result() for task in tasks]
        except BaseException:
            await _stop(running)
            with suppress(AttributeError):  # only asynchronous generators have to be closed
                await source.aclose()  # type: ignore[union-attr]
            raise

    def _device_of(self, part: object) -> Device | None:
        tensor = part.tensor if isinstance(part, SharedTensor | Partition) else part
        device = tensor.device if isinstance(tensor, Tensor) else None
        if device is not None and device not in self._submitted:
            raise DeviceMismatchError(
                f"{part!r} is on {device.label}, which is no device of {self!r}.\n"
                f"Move it first: await na.to_device(t, group.devices[0])"
            )
        return device

    def _least(self, choice: Sequence[Device], running: Running) -> Device:
        """Of the devices, the one with the fewest operations in flight, or of this call, which may
        not be enqueued yet; of equals, the one that was given the fewest parts.
        """
        used = list(running.values())
        return min(choice, key=lambda d: (used.count(d) + d.in_flight.ops, self._submitted[d]))

    def _has_room(self, choice: Sequence[Device], running: Running, most: int) -> bool:
        return list(running.values()).count(self._least(choice, running)) < most

    async def _run(self, f: Callable[[T], DeviceOp[U]], part: T, device: Device) -> U:
        self._submitted[device] += 1
        try:
            with use_device(device):
                returned = not_a_coroutine(f(part), "map", f)
                op: DeviceOp[U] = check_op(returned, "what the function of map returns")
                return await op
        finally:
            self._done[device] += 1

    def statistics(self) -> GroupStatistics:
        """The parts given to each device so far, and those that have ended.

        Examples:
            >>> na.DeviceGroup(na.devices("cpu")[:2]).statistics()
            GroupStatistics(submitted=(0, 0), done=(0, 0))
        """
        return GroupStatistics(tuple(self._submitted.values()), tuple(self._done.values()))

    def __repr__(self) -> str:
        labels = ", ".join(device.label for device in self._devices)
        pending = sum(self._submitted.values()) - sum(self._done.values())
        return f"<DeviceGroup {labels}, {pending} in flight>"


async def _until(
    done: Callable[[], object], running: Running, also: asyncio.Task[Any] | None = None
) -> None:
    """Wait until `done()`, and remove what has ended from `running`; raises the first error.

    Args:
        also: one more task that is waited for.
    """
    while True:
        for task in [task for task in running if task.done()]:
            del running[task]
            task.result()
        if done():
            return
        waited = [*running] if also is None else [*running, also]
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)


async def _stop(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel the tasks, and wait until they have ended."""
    stopped = list(tasks)
    for task in stopped:
        task.cancel()
    if stopped:
        await asyncio.wait(stopped)
    for task in stopped:
        if not task.cancelled():
            task.exception()  # seen: another error is being raised


def _iterator(parts: Iterable[T] | AsyncIterable[T]) -> Iterator[T] | AsyncIterator[T]:
    if isinstance(parts, AsyncIterable):
        return aiter(parts)
    if not isinstance(parts, Iterable):
        raise CallerError(
            f"map of a DeviceGroup takes an iterable of parts, not {type(parts).__name__} "
            f"({shown(parts)}): write [x], say."
        )
    return iter(parts)


async def _taken(
    source: Iterator[T] | AsyncIterator[T], running: Running
) -> AsyncGenerator[T, None]:
    """The parts. While one is awaited, an error of what is running is raised."""
    if isinstance(source, Iterator):
        for part in source:
            yield part
        return
    while True:
        coming = asyncio.ensure_future(_next(source))
        try:
            await _until(coming.done, running, coming)
            part = coming.result()
        except StopAsyncIteration:
            return
        finally:
            await _stop([coming])
        yield part


async def _next(source: AsyncIterator[T]) -> T:
    return await anext(source)
