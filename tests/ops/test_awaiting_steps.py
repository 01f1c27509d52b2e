"""Awaiting an operation that is run step by step: at once if it can be, by a future if not."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import OperationError
from numbasync.ops.future import DeviceFuture
from numbasync.ops.op import DeviceOp
from numbasync.testing import Gate
from tests.common import add_one
from tests.waiting import eventually


@pytest.fixture
def futures(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a future was made for."""
    made = list[str]()
    init, begun = DeviceFuture.__init__, DeviceFuture._begun.__func__  # type: ignore[attr-defined]

    def note(self: Any, op: Any, stream: na.Stream) -> None:
        made.append(op.label)
        init(self, op, stream)

    def note_begun(cls: Any, ctx: Any) -> Any:
        made.append(ctx.submission.name)
        return begun(cls, ctx)

    monkeypatch.setattr(DeviceFuture, "__init__", note)
    monkeypatch.setattr(DeviceFuture, "_begun", classmethod(note_begun))
    return made


class Three(DeviceOp[int]):
    """Steps, of which the middle one waits for a prerequisite if `needs`; they end with an error if
    `fails`.
    """

    def __init__(self, needs: object = None, fails: bool = False) -> None:
        self._needs, self._fails = needs, fails
        self.taken = list[str]()

    def steps(self, ctx: Any) -> Generator[Any, None, int]:
        self.taken.append("first")
        ctx.touch()
        if self._needs is not None:
            yield self._needs
        self.taken.append("last")
        if self._fails:
            raise OperationError("it cannot be enqueued")
        return 3

    def _describe(self) -> str:
        return "three"


class Prerequisite:
    def __init__(self, run: Any = lambda: None) -> None:
        self.run = run


async def test_what_waits_for_nothing_makes_no_future(
    device: na.Device, futures: list[str]
) -> None:
    x, y = await na.zeros(4), await na.ones(4)
    futures.clear()
    await na.memcpy(x, y)
    await x.copy_from(np.full(4, 2, np.float32))
    assert await Three() == 3
    a, b = await na.zip(Three(), Three())
    assert (a, b) == (3, 3)
    assert futures == []
    assert (await x.to_host()).tolist() == [2.0] * 4


async def test_a_prerequisite_is_waited_for_by_a_future(
    device: na.Device, futures: list[str]
) -> None:
    op = Three(Prerequisite())
    assert await op == 3
    assert op.taken == ["first", "last"] and futures == ["three"]


async def test_an_operation_behind_a_waiting_one_keeps_its_place(
    device: na.Device, stream: na.Stream
) -> None:
    order = list[str]()
    first = na.spawn(Three(Prerequisite(lambda: order.append("first"))), stream)

    async def second() -> None:
        await Three(Prerequisite(lambda: order.append("second")))

    await second()
    assert order == ["first", "second"]
    assert await first == 3


@pytest.mark.parametrize("needs", [None, Prerequisite()])
async def test_an_error_of_the_steps_is_raised_once(device: na.Device, needs: object) -> None:
    with pytest.raises(OperationError, match="cannot be enqueued"):
        await Three(needs, fails=True)
    assert await Three() == 3, "the thread enqueues nothing"


async def test_an_error_of_a_prerequisite_is_raised(device: na.Device) -> None:
    def fail() -> None:
        raise OSError("no such thing")

    op = Three(Prerequisite(fail))
    with pytest.raises(OSError, match="no such thing"):
        await op
    assert op.taken == ["first"]


async def test_a_cancelled_await_leaves_the_work_running(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    x = await na.zeros(4).schedule(stream)
    device.policy = stream
    gate.close()

    async def wait() -> None:
        await na.zip(add_one(x), na.memcpy(x, np.ones(4, np.float32)))

    task = asyncio.ensure_future(wait())
    await eventually(lambda: stream.in_flight_count)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.open()
    assert (await x.to_host()).tolist() == [1.0] * 4
