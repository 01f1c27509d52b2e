"""The first operation of a device: what takes long of it holds no event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import OperationError
from numbasync.ops import first_use
from numbasync.tensors import create
from numbasync.tensors.parallel_copy import LARGE
from tests.common import add_one, compiled


@pytest.fixture
def unused(device: na.Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[na.Device]:
    """The current device, as if it had not been used, with a note of who starts it."""
    compiled()
    policy = device.policy
    monkeypatch.setattr(device, "_policy", None)
    yield device
    device.policy = policy


@pytest.fixture
def starters(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads that have started a device."""
    found: list[int] = []
    run = first_use._Start.run

    def noted(start: first_use._Start) -> None:
        found.append(threading.get_ident())
        run(start)

    monkeypatch.setattr(first_use._Start, "run", noted)
    return found


async def group(*ops: na.DeviceOp[Any]) -> None:
    async with asyncio.TaskGroup() as tasks:
        for op in ops:
            tasks.create_task(op.coroutine())


FORMS: dict[str, Callable[..., Awaitable[Any]]] = {
    "gather": na.gather,
    "asyncio.gather": asyncio.gather,
    "group": group,
    "wait_for": lambda *ops: asyncio.gather(*(asyncio.wait_for(op, None) for op in ops)),
    "chain": lambda *ops: asyncio.gather(*(op.map(lambda v: v) for op in ops)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("run", [asyncio.run, na.run], ids=["asyncio", "na"])
def test_one_thread_starts_a_device_in_waiters_order(
    unused: na.Device, starters: list[int], core: bool, form: str, run: Callable[[Any], Any]
) -> None:
    async def main() -> None:
        order: list[int] = []
        ops = [na.zeros(3).inspect(lambda _, i=i: order.append(i)) for i in range(6)]  # type: ignore[misc]
        await FORMS[form](*ops[:4], *ops[4:])
        assert order == list(range(6))
        assert unused.is_started and len(starters) == 1
        assert starters[0] != threading.get_ident()
        await FORMS[form](*(na.zeros(3) for _ in range(3)))
        assert len(starters) == 1

    run(main())


def test_blocking_calls_start_a_device_themselves(
    unused: na.Device, starters: list[int], core: bool
) -> None:
    async def main() -> None:
        spawned = na.spawn(na.zeros(3))
        assert unused.is_started and not starters
        await spawned

    asyncio.run(main())


async def test_who_is_cancelled_meanwhile_runs_nothing(
    unused: na.Device, starters: list[int], core: bool
) -> None:
    ran: list[int] = []
    ops = [na.zeros(3).inspect(lambda _, i=i: ran.append(i)) for i in range(4)]  # type: ignore[misc]
    tasks = [
        asyncio.ensure_future(ops[0]), asyncio.ensure_future(na.gather(*ops[1:3])),
        asyncio.ensure_future(ops[3]),
    ]  # fmt: skip
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for task in tasks[:2]:
        task.cancel()
    await tasks[2]
    assert [task.cancelled() for task in tasks] == [True, True, False] and ran == [3]


async def test_another_device_is_started_by_a_thread_too(
    device: na.Device, starters: list[int], monkeypatch: pytest.MonkeyPatch, core: bool
) -> None:
    far = next(d for d in na.devices("cpu") if d is not device)
    t = na.ones(3).sync_on(far.new_stream())
    policy = far.policy
    monkeypatch.setattr(far, "_policy", None)
    assert (await add_one(t)).z is t
    assert (await t.to_host()).tolist() == [2] * 3
    assert len(starters) == 1
    far.policy = policy


async def test_an_error_of_the_start_is_the_awaiters(
    unused: na.Device, monkeypatch: pytest.MonkeyPatch, core: bool
) -> None:
    def fails() -> None:
        raise OSError("no such device")

    with monkeypatch.context() as patch:
        patch.setattr(unused, "new_stream", lambda *_: fails())
        for awaited in (na.zeros(3), na.gather(na.zeros(3), na.zeros(3)), na.warm_up()):
            with pytest.raises(OSError, match="no such device"):
                await awaited
    await na.zeros(3)


async def test_warming_up_takes_launchers_and_compilations(device: na.Device) -> None:
    z = await na.ones(8)
    before = na.compile_count()
    for wrong in (3, None, z, add_one, add_one(z), (add_one,), "add_one"):
        kernels: list[Any] = [add_one.compile(z), wrong]
        if wrong is add_one:
            await na.warm_up(*kernels)
            continue
        with pytest.raises(OperationError, match=r"launchers and operations of kernel\.compile"):
            await na.warm_up(*kernels)
    assert na.compile_count() <= before + 2
    assert (await z.to_host()).tolist() == [1] * 8


async def test_many_elements_are_made_on_a_thread(
    device: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_by: list[int] = []
    make = create._spaced
    tiny = 5e-324  # no step of which is a number, so that NumPy computes the elements

    def noted(*args: Any) -> Any:
        made_by.append(threading.get_ident())
        return make(*args)

    monkeypatch.setattr(create, "_spaced", noted)
    few = await na.linspace(0.0, tiny, 3, np.float64)
    assert made_by == [threading.get_ident()] and len(await few.to_host()) == 3
    n = LARGE // 8 + 1
    many = await na.linspace(0.0, tiny, n, np.float64)
    assert threading.get_ident() not in made_by[1:] and len(made_by) == 2
    np.testing.assert_array_equal(await many.to_host(), np.linspace(0.0, tiny, n))
    # No loop turns: on this thread.
    assert na.linspace(0.0, tiny, n, np.float64).sync().shape == (n,)
    assert made_by[-1] == threading.get_ident()
