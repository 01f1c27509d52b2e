"""Operations in asyncio's own functions: with the task factory of `na.run` no tasks are made of
them, and the meaning is that of tasks.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import warnings
import weakref
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import pytest

import numbasync as na
from numbasync.errors import (
    AlreadySubmittedError,
    KernelError,
    LaunchError,
    ReentrancyError,
)
from numbasync.ops.task_factory import OperationFuture
from numbasync.testing import Gate, counters, inject, settle
from tests.common import add_one, saxpy, used, waited
from tests.waiting import begin, loops, run

pytestmark = pytest.mark.usefixtures("core")


def tasks() -> int:
    """The tasks besides the test's own."""
    return len(asyncio.all_tasks()) - 1


async def shielded(op: Any) -> Any:
    return await asyncio.shield(op)


async def first_of_many(op: Any) -> Any:
    (first,) = asyncio.as_completed([op])
    return await first


FORMS: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "gather": asyncio.gather,
    "ensure_future": asyncio.ensure_future,
    "wait_for": lambda op: asyncio.wait_for(op, 300),
    "no timeout": lambda op: asyncio.wait_for(op, 0 if sys.version_info < (3, 11) else None),
    "shield": shielded,
    "as_completed": first_of_many,
    "create_task": lambda op: asyncio.create_task(op.coroutine()),
}


# --- values, without tasks ---


@pytest.mark.parametrize("form", FORMS)
async def test_every_form_gives_the_value(device: na.Device, form: str) -> None:
    x = await na.arange(4)
    made = [na.value(3), add_one(x), x.to_host(), na.zip(na.full(2, 5).to_host(), na.value(1))]
    values = []
    for op in made:
        value = await FORMS[form](op)
        values.append(value[0] if form == "gather" else value)
    assert values[0] == 3 and values[1].z is x
    assert values[2].tolist() == [1, 2, 3, 4]
    assert values[3][0].tolist() == [5, 5] and values[3][1] == 1


@loops
@pytest.mark.parametrize("is_set", [True, False], ids="factory={}".format)
def test_a_thousand_operations_take_equal_tasks_or_none(
    device: na.Device, loop: str, is_set: bool
) -> None:
    async def main() -> None:
        if is_set:
            asyncio.get_running_loop().set_task_factory(na.task_factory)
        z = await na.zeros(8)
        futures = [
            *(asyncio.ensure_future(add_one(z)) for _ in range(500)),
            *(asyncio.create_task(add_one(z).coroutine()) for _ in range(500)),
        ]
        together = asyncio.gather(*futures, add_one(z))
        assert tasks() == (0 if is_set else 1001)
        assert all(isinstance(future, OperationFuture) is is_set for future in futures)
        results = await together
        assert all(result.z is z for result in results)
        assert (await z.to_host()).tolist() == [1001] * 8

    run(loop, main())


async def test_coroutines_are_tasks(device: na.Device) -> None:
    task = asyncio.create_task(waited(na.value(1)), name="mine")
    other = asyncio.ensure_future(waited(na.value(2)))
    assert type(task) is type(other) is asyncio.Task and task.get_name() == "mine"
    named = asyncio.create_task(na.value(3).coroutine(), name="operation")
    loop = asyncio.get_running_loop()
    later = na.task_factory(loop, na.value(4).coroutine(), name="operation")  # Python 3.14's way
    assert named.get_name() == later.get_name() == "operation"
    assert await asyncio.gather(task, other, named, later) == [1, 2, 3, 4]


async def test_a_task_group_takes_the_coroutine(device: na.Device) -> None:
    z = await na.zeros(4)
    with pytest.raises(ExceptionGroup) as failed:
        async with asyncio.TaskGroup() as group:
            futures = [group.create_task(add_one(z).coroutine()) for _ in range(3)]
            group.create_task(na.value(0).map(lambda _: 1 // 0).coroutine())
    assert isinstance(failed.value.exceptions[0], ZeroDivisionError)
    async with asyncio.TaskGroup() as group:
        futures = [group.create_task(add_one(z).coroutine()) for _ in range(3)]
        assert tasks() == 0
    assert all(future.result().z is z for future in futures)


def test_two_threads_with_a_loop_each(device: na.Device) -> None:
    async def main(n: int) -> list[float]:
        values = await asyncio.gather(*(na.full(4, 100 * n + i).to_host() for i in range(40)))
        return [float(v[3]) for v in values]

    results = [begin(lambda n=n: na.run(main(n))) for n in range(2)]
    for n, result in enumerate(results):
        assert result() == [100 * n + i for i in range(40)]


# --- when it is submitted ---


async def test_operations_are_submitted_next_turn_in_creation_order(device: na.Device) -> None:
    seen: list[int] = []
    before = counters()
    z = await na.zeros(4)

    def op(i: int) -> Any:
        return add_one(z).inspect(lambda _: seen.append(i))

    one = asyncio.gather(op(0), op(1))
    two = asyncio.ensure_future(op(2))
    assert seen == [] and (counters() - before).launches <= 1  # of `zeros`
    await asyncio.sleep(0)
    assert seen == [0, 1, 2]
    await asyncio.gather(one, two, op(3))
    assert seen == [0, 1, 2, 3]


async def test_cancelled_before_that_it_does_not_run(device: na.Device) -> None:
    z = await na.zeros(4)
    future = add_one(z).schedule(device.policy)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        together = asyncio.gather(add_one(z), add_one(z), future)
        together.cancel()
        with pytest.raises(asyncio.CancelledError):
            await together
        assert future.cancelled()
        del together, future
        gc.collect()
    assert (await z.to_host()).tolist() == [0] * 4


async def test_the_context_is_that_of_the_creation(device: na.Device) -> None:
    variable: ContextVar[int] = ContextVar("variable")
    variable.set(1)
    seen = [asyncio.ensure_future(na.value(0).map(lambda _: variable.get()))]
    variable.set(2)
    seen.append(asyncio.ensure_future(na.value(0).map(lambda _: variable.get())))
    variable.set(3)
    assert await asyncio.gather(*seen) == [1, 2]
    other = na.devices("cpu")[1]
    with na.use_device(other):
        there = asyncio.gather(na.zeros(2))
    (tensor,) = await there
    assert tensor.device is other


# --- what is awaited, and what is told ---


async def test_an_operation_runs_once(device: na.Device) -> None:
    op, shared = na.zeros(2), na.ones(2).shared()
    one, two = await asyncio.gather(op, op)
    assert one is two
    assert isinstance((await asyncio.gather(op, return_exceptions=True))[0], AlreadySubmittedError)
    with pytest.raises(AlreadySubmittedError):
        await asyncio.ensure_future(op)
    first, again = asyncio.ensure_future(shared), asyncio.ensure_future(shared)
    assert await first is await again is await shared


async def test_futures_of_spawn_and_schedule(device: na.Device) -> None:
    z = await na.zeros(4)
    spawned, scheduled = na.spawn(add_one(z)), add_one(z).schedule(device.policy)
    values = await asyncio.gather(spawned, scheduled, spawned, asyncio.ensure_future(spawned))
    assert all(value.z is z for value in values)
    assert (await z.to_host()).tolist() == [2] * 4
    withdrawn = add_one(z).schedule(device.policy)
    withdrawn.cancel()
    (error,) = await asyncio.gather(withdrawn, return_exceptions=True)
    assert isinstance(error, asyncio.CancelledError)


@pytest.mark.parametrize("has_steps", [False, True], ids="steps={}".format)
async def test_errors(device: na.Device, has_steps: bool) -> None:
    z = await na.zeros(4)

    def raises(error: BaseException) -> Any:
        def fail(_: object) -> None:
            raise error

        return (na.zip(add_one(z)) if has_steps else add_one(z)).map(fail)

    async def nested(op: Any) -> Any:
        return await na.value(0).map(lambda _: op.sync())

    errors = await asyncio.gather(
        raises(LookupError("own")), raises(StopIteration(1)), saxpy[1, 5000](z, 1.0, z.dup()),
        asyncio.ensure_future(raises(asyncio.CancelledError("said"))), nested(na.value(1)),
        return_exceptions=True,
    )  # fmt: skip
    cancelled = asyncio.ensure_future(raises(asyncio.CancelledError("said")))
    await asyncio.wait([cancelled])
    assert cancelled.cancelled()
    kinds = [LookupError, RuntimeError, LaunchError, asyncio.CancelledError, ReentrancyError]
    assert [type(error) for error in errors] == kinds
    with pytest.raises(LookupError, match="own"):
        await asyncio.gather(add_one(z), raises(LookupError("own")), raises(ValueError()))
    await settle(device)


async def test_an_error_that_nobody_asks_for_is_reported(device: na.Device) -> None:
    said: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: said.append(what["message"]))
    future = asyncio.ensure_future(na.value(1).map(lambda _: 1 // 0))
    await settle(device)
    assert said == []
    del future
    gc.collect()
    assert said == ["OperationFuture exception was never retrieved"]


@pytest.mark.parametrize("when", ["submitted", "run by steps", "run at once", "run later"])
async def test_an_error_leaves_no_cycle(
    device: na.Device, stream: na.Stream, gate: Gate, when: str
) -> None:
    async def fail() -> weakref.ref[Any]:
        z = await na.zeros(2**18)
        if when == "submitted":
            op = na.zeros(2**18).map(lambda _: 1 // 0)
        elif when == "run by steps":
            op = na.zip(add_one(z))
        else:
            op = add_one[1, 4, stream](z)
        del z
        failing = asyncio.ensure_future(op)
        future = weakref.ref(failing)
        with inject(device, "kernel"), pytest.raises((ZeroDivisionError, KernelError)):
            if when == "run later":
                gate.close()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                gate.open()
            await failing
        del failing, op
        return future

    await fail()
    await settle(device)
    start = used(device)
    gc.disable()
    try:
        future = await fail()
        await settle(device)
        assert future() is None
        assert device.memory_stats().used_current == start
    finally:
        gc.enable()


async def test_an_error_names_the_line_of_the_program(device: na.Device) -> None:
    z, x = await na.zeros(4), await na.ones(4)
    with inject(device, "kernel"), pytest.raises(KernelError, match="submitted at") as caught:
        await asyncio.gather(saxpy(z, 1.0, x))
    assert "in test_an_error_names_the_line_of_the_program" in str(caught.value)


def test_control_c_ends_one_and_submits_the_others(device: na.Device) -> None:
    seen: list[int] = []

    def stop(_: object) -> None:
        raise KeyboardInterrupt

    async def main() -> None:
        alone = asyncio.ensure_future(na.value(2).map(stop))  # nobody awaits it
        last = na.value(3).inspect(seen.append)
        await asyncio.gather(na.value(1).inspect(seen.append), last)
        await asyncio.get_running_loop().create_future()
        del alone

    with pytest.raises(KeyboardInterrupt):
        na.run(main())
    assert seen == [1, 3]  # submitted before the loop ended
