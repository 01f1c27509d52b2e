"""The forms in which a program that writes asyncio awaits operations, a row each."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import numbasync as na
from benchmarks import report
from benchmarks.measure import Case, awaited, per_part
from benchmarks.tables import table
from benchmarks.work import STREAMS, THREADS, N, check, saxpy
from numbasync.device.device import Device
from numbasync.ops.task_factory import eager_task_factory

COUNT = 500
BASE = "numbasync: na.gather(*ops)"
METHOD = (
    "{calls} operations, saxpy(z[1024], f32, x[1024]) with a z of their own each, over {streams} "
    "streams where the form does not name one; building them is included. One after the other: "
    "each is awaited before the next one is built. `f` is a coroutine that awaits an operation. On "
    "{loop}, with the task factory of na.run unless the name says otherwise. Per operation."
)

Await = Callable[[], Awaitable[object]]


async def forms(device: Device, rounds: int) -> report.Record:
    policy = device.policy
    device.policy = na.StreamPoolRoundRobin(device, STREAMS)
    try:
        return await table(
            device, rounds, "asyncio", "forms of awaiting operations, per op",
            await cases(device), calls=COUNT, method=METHOD, base=BASE, streams=STREAMS,
        )  # fmt: skip
    finally:
        device.policy = policy


async def cases(device: Device) -> list[Case]:
    """A case for each form."""
    zs = await na.gather(*[na.zeros(N) for _ in range(COUNT)])
    x = await na.ones(N)
    parts = [z.partition(THREADS) for z in zs]
    stream = device.new_stream()

    def op(i: int) -> Any:
        return saxpy(parts[i], 2.0, x)

    def ops() -> list[Any]:
        return [saxpy(part, 2.0, x) for part in parts]

    async def f(op: Awaitable[Any]) -> None:
        await op

    async def in_turn() -> None:
        for i in range(COUNT):
            await op(i)

    async def scheduled() -> None:
        for i in range(COUNT):
            await op(i).schedule(stream)

    async def waited_for() -> None:
        for i in range(COUNT):
            await asyncio.wait_for(op(i), 60)

    async def in_timeouts() -> None:
        for i in range(COUNT):
            async with asyncio.timeout(60):
                await op(i)

    async def gathered() -> None:
        await asyncio.gather(*ops())

    async def spawned() -> None:
        await asyncio.gather(*map(na.spawn, ops()))

    async def grouped(coroutines: list[Coroutine[Any, Any, Any]]) -> None:
        async with asyncio.TaskGroup() as group:
            for coroutine in coroutines:
                group.create_task(coroutine)

    async def by_coroutines() -> None:
        await grouped([op.coroutine() for op in ops()])

    async def by_tasks() -> None:
        await grouped([f(op) for op in ops()])

    async def tasks_gathered() -> None:
        await asyncio.gather(*map(f, ops()))

    def case(name: str, form: Await) -> Case:
        async def check_all() -> None:
            for z in zs:
                await na.fill(z, 0)
            await form()
            for z in zs:
                check(await z.to_host())

        return Case(f"numbasync: {name}", per_part(awaited(form), COUNT), check_all)

    forms = [
        case("await op, one after the other", in_turn),
        case("await op.schedule(stream), one after the other", scheduled),
        case("asyncio.timeout, await op, one after the other", in_timeouts),
        case("asyncio.wait_for(op), one after the other", waited_for),
        case("na.gather(*ops)", lambda: na.gather(*ops())),
        case("asyncio.gather(*ops)", gathered),
        case("asyncio.gather(*ops), asyncio's task factory", _with(None, gathered)),
        case("asyncio.gather of na.spawn(op)", spawned),
        case("asyncio.gather of f(op)", tasks_gathered),
        case("TaskGroup, create_task(op.coroutine())", by_coroutines),
        case("TaskGroup, create_task(f(op))", by_tasks),
    ]
    if sys.version_info >= (3, 12):
        eager = _with(eager_task_factory, by_tasks)
        forms.append(case("TaskGroup, create_task(f(op)), eager tasks", eager))
    return forms


def _with(factory: Any, form: Await) -> Await:
    """`form`, with another task factory."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        usual = loop.get_task_factory()
        loop.set_task_factory(factory)
        try:
            await form()
        finally:
            loop.set_task_factory(usual)

    return run
