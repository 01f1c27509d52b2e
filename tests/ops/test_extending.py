"""Operations that a program writes itself, by the names of `numbasync.extending` only."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import (
    AccessConflictError,
    AlreadySubmittedError,
    DeviceMismatchError,
    OperationError,
)
from numbasync.extending import Context, DeviceOp, Prerequisite, Steps, access, enqueue
from numbasync.testing import gate
from tests.common import add_one, host


class Pause(Prerequisite):
    """Notes the thread that it ran on; may fail."""

    def __init__(self, error: Exception | None = None) -> None:
        self.thread: threading.Thread | None = None
        self._error = error

    def run(self) -> None:
        self.thread = threading.current_thread()
        if self._error is not None:
            raise self._error


class Retry(DeviceOp[Any]):
    """What `make()` gives; after an error of a kind, another one, behind a pause."""

    def __init__(self, make: Callable[[], Any], times: int, kind: type[Exception]) -> None:
        self.make, self.times, self.kind = make, times, kind
        self.pauses = [Pause() for _ in range(times - 1)]

    def steps(self, ctx: Context) -> Steps[Any]:
        for pause in [*self.pauses, None]:
            try:
                return (yield from enqueue(ctx, self.make()))
            except self.kind:
                if pause is None:
                    raise
            yield pause


def failing(times: int, kind: type[Exception] = ValueError) -> Callable[[], Any]:
    """Makes an operation that fails so many times before it gives ones."""
    made: list[None] = []

    def build() -> Any:
        made.append(None)
        if len(made) <= times:
            raise kind(f"{len(made)}. time")
        return na.ones(4)

    return lambda: na.defer(build)


def test_what_fails_is_run_again(device: na.Device) -> None:
    op = Retry(failing(2), 3, ValueError)
    assert host(op.then(lambda t: add_one(t).output()).sync()).tolist() == [2] * 4
    assert [pause.thread for pause in op.pauses] == [threading.current_thread()] * 2


async def test_a_loop_runs_the_pauses_elsewhere(device: na.Device) -> None:
    op = Retry(failing(2), 3, ValueError)
    t = await op
    assert [pause.thread in (None, threading.current_thread()) for pause in op.pauses] == [
        False
    ] * 2
    assert (await t.to_host()).tolist() == [1] * 4


@pytest.mark.parametrize(("times", "kind"), [(2, ValueError), (3, KeyError)])
def test_the_last_error_is_the_awaits(device: na.Device, times: int, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=r"2\. time" if kind is ValueError else r"1\. time"):
        Retry(failing(9, kind), times, ValueError).sync()
    assert device.in_flight == (0, 0)


def test_a_prerequisites_error_is_raised_at_its_yield(device: na.Device) -> None:
    class Careful(DeviceOp[str]):
        def steps(self, ctx: Context) -> Steps[str]:
            try:
                yield Pause(ZeroDivisionError("of the pause"))
            except ZeroDivisionError as error:
                return str(error)
            return "none"

    assert Careful().sync() == "of the pause"


def test_it_is_composed_and_cancelled_as_others(device: na.Device) -> None:
    both = na.zip(Retry(failing(1), 2, ValueError), na.zeros(2)).sync()
    assert [host(t).tolist() for t in both] == [[1] * 4, [0] * 2]
    op = Retry(failing(0), 1, ValueError)
    with pytest.warns(RuntimeWarning, match="retry was never awaited"):
        del op

    async def main() -> None:
        stream = device.new_stream()
        x = await na.ones(4)
        with gate(stream):
            held = na.spawn(na.fill(x, 2), stream)
            task = asyncio.ensure_future(Retry(lambda: x.dup(), 1, ValueError).coroutine())
            await na.testing.settle(device)
            task.cancel()
        await held
        with pytest.raises(asyncio.CancelledError):
            await task

    na.run(main())
    assert device.in_flight == (0, 0)


def test_parts_are_operations_that_have_not_run(device: na.Device) -> None:
    class Whole(DeviceOp[Any]):
        def __init__(self, part: Any) -> None:
            self.part = part

        def steps(self, ctx: Context) -> Steps[Any]:
            return (yield from enqueue(ctx, self.part))

    used = na.ones(2)
    used.sync()
    with pytest.raises(AlreadySubmittedError):
        Whole(used).sync()
    with pytest.raises(OperationError, match="a part of whole must be an operation, not int"):
        Whole(3).sync()
    elsewhere, t = device.new_stream(), na.zeros(4).sync()
    with pytest.raises(OperationError, match="in its brackets"):
        Whole(add_one[1, 4, elsewhere](t)).sync_on(device.new_stream())


def test_a_part_runs_where_its_tensors_are(cpu: na.Device) -> None:
    other = next(d for d in na.devices("cpu") if d is not cpu)
    with na.use_device(other):
        t = na.ones(4).sync()
    copied = Retry(lambda: t.dup(), 1, ValueError).sync()
    assert copied.device is other and host(copied).tolist() == [1] * 4


# --- work of one's own on the stream ---


class Used(DeviceOp[tuple[int, ...]]):
    """Notes an access, and enqueues nothing."""

    def __init__(self, reads: list[na.Tensor], writes: list[na.Tensor]) -> None:
        self.reads, self.writes = reads, writes

    def steps(self, ctx: Context) -> Steps[tuple[int, ...]]:
        with access(ctx, self.reads, self.writes) as addresses:
            return addresses
        yield  # a generator


@pytest.mark.parametrize("writes", [True, False])
def test_an_access_orders_work_of_all_streams(device: na.Device, writes: bool) -> None:
    t = na.zeros(4).sync()
    one, two = device.new_stream(), device.new_stream()
    with gate(one):
        Used([], [t]).async_on(one)
        (Used([], [t]) if writes else Used([t], [])).async_on(two)
        assert not two.query(), "behind the writer"
    two.synchronize()
    with gate(one):
        Used([t], []).async_on(one)
        (Used([], [t]) if writes else Used([t], [])).async_on(two)
        assert two.query() is not writes, "readers do not wait for one another"
    two.synchronize()
    one.synchronize()


def test_an_access_keeps_memory_until_work_ends(device: na.Device) -> None:
    stream = device.new_stream()
    before = device.memory_stats().used_current
    t = na.zeros(4096).sync()
    with gate(stream):
        Used([t], []).async_on(stream)
        del t
        assert device.memory_stats().used_current > before
    stream.synchronize()
    assert device.memory_stats().used_current == before


def test_an_access_gives_addresses(device: na.Device) -> None:
    x, z = na.zeros(8).sync(), na.zeros(8).sync()
    whole, part, other = Used([x, x[3:]], [z]).sync()
    assert part - whole == 12 and other not in (whole, part)


def test_an_access_of_another_device_is_refused(cpu: na.Device) -> None:
    other = next(d for d in na.devices("cpu") if d is not cpu)
    with na.use_device(other):
        t = na.ones(4).sync()
    with pytest.raises(DeviceMismatchError, match="uses <Tensor"):
        Used([t], []).sync()


def test_strict_ordering_sees_an_access(device: na.Device) -> None:
    t, one, two = na.zeros(4).sync(), device.new_stream(), device.new_stream()
    with na.ordering("strict"), gate(one):
        Used([], [t]).async_on(one)
        with pytest.raises(AccessConflictError, match="used on .* and used on"):
            Used([t], []).async_on(two)
    one.synchronize()


def test_an_error_in_the_block_is_the_operations(device: na.Device) -> None:
    t = na.zeros(4).sync()

    class Fails(DeviceOp[None]):
        def steps(self, ctx: Context) -> Steps[None]:
            with access(ctx, writes=[t]):
                raise KeyError("of a library")
            yield

    with pytest.raises(KeyError, match="of a library"):
        Fails().sync()
    na.fill(t, 1).sync()
    np.testing.assert_array_equal(host(t), np.ones(4))


# --- what may be wrong with an operation ---


class YieldsAnOperation(DeviceOp[Any]):
    def steps(self, ctx: Context) -> Any:
        return (yield na.ones(3))


class YieldsNumber(DeviceOp[Any]):
    def steps(self, ctx: Context) -> Any:
        try:
            yield 5
        except OperationError:
            yield Pause()  # the steps may go on
            raise


class NoGenerator(DeviceOp[Any]):
    def steps(self, ctx: Context) -> Any:
        return na.ones(3)


class Coroutine(DeviceOp[Any]):
    async def steps(self, ctx: Context) -> Any:  # type: ignore[override]
        return 5


class NoSteps(DeviceOp[Any]):
    pass


class NowhereAtHome(DeviceOp[Any]):
    home = property(lambda self: 5)  # type: ignore[assignment]

    def steps(self, ctx: Context) -> Any:
        return (yield from enqueue(ctx, na.ones(3)))


PART = r"(.|\n)*value = yield from enqueue\(ctx, op\)"
WRONG = {
    YieldsAnOperation: r"YieldsAnOperation\.steps yielded <DeviceOp ones.*, an operation;" + PART,
    YieldsNumber: r"YieldsNumber\.steps yielded 5, which has no method run\(\);" + PART,
    NoGenerator: r"NoGenerator\.steps gave <DeviceOp ones.*no generator" + PART,
    Coroutine: r"Coroutine\.steps is a coroutine: write def" + PART,
    NoSteps: "NoSteps has no steps: write a generator" + PART,
}
WAYS: dict[str, Callable[[Any], Any]] = {
    "sync": lambda op: op.sync(),
    "async_on": lambda op: op.async_on(na.default_device().new_stream()),
    "zip": lambda op: na.zip(op, na.ones(2)).sync(),
    "then": lambda op: op.then(na.value).sync(),
    "shared": lambda op: op.shared().sync(),
    "graph": lambda op: op.graph(),
}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("way", WAYS)
def test_wrong_steps_are_named(device: na.Device, kind: Any, way: str) -> None:
    with pytest.raises(OperationError, match=WRONG[kind]):
        WAYS[way](kind())


@pytest.mark.parametrize("kind", WRONG)
async def test_wrong_steps_are_named_when_awaited(device: na.Device, kind: Any) -> None:
    with pytest.raises(OperationError, match=WRONG[kind]):
        await kind()
    with pytest.raises(OperationError, match=WRONG[kind]):
        await na.spawn(kind())


async def test_a_wrong_home_is_named(device: na.Device) -> None:
    for run in (lambda op: op.sync(), lambda op: na.spawn(op)):
        op = NowhereAtHome()
        with pytest.raises(OperationError, match=r"home 5: write a na\.Device(.|\n)*property"):
            run(op)
    with pytest.raises(OperationError, match="home 5"):
        await NowhereAtHome()
    with pytest.raises(OperationError, match="NowhereAtHome has the home 5"):
        na.zip(na.ones(1), NowhereAtHome()).sync()
    with pytest.raises(OperationError, match="Never has the home 5"):

        class Never(DeviceOp[Any]):
            home = 5  # type: ignore[assignment]

    with pytest.raises(OperationError, match=r"Never\.home is a method: write @property"):

        class Never(DeviceOp[Any]):  # type: ignore[no-redef]
            def home(self) -> None:  # type: ignore[override]
                """No property."""


def test_steps_returning_a_parts_steps_are_steps(device: na.Device) -> None:
    class Short(DeviceOp[Any]):
        def steps(self, ctx: Context) -> Any:
            return enqueue(ctx, na.ones(3))

    assert host(Short().sync()).tolist() == [1, 1, 1]


def test_an_operation_that_is_stopped_closes_its_steps(device: na.Device) -> None:
    ended: list[str] = []

    class Long(DeviceOp[Any]):
        def steps(self, ctx: Context) -> Any:
            try:
                yield Pause(ValueError("no"))
            finally:
                ended.append("steps")

    with pytest.raises(ValueError, match="no"):
        Long().sync()
    assert ended == ["steps"]
