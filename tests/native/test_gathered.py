"""The order of calls behind a queue, and which results `gather` takes without a wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import numbasync as na
from numbasync import native
from numbasync.device.submission import Submission
from numbasync.ops.gather import add_values
from tests.common import add_one, fresh
from tests.native.null_device import launches

pytestmark = pytest.mark.skipif(native.core is None, reason="the compiled core is not installed")


@contextmanager
def queued(z: na.Tensor, stream: na.Stream) -> Iterator[Callable[[], None]]:
    """An operation that waits for its compilation, in this thread's submission queue. What is
    yielded holds that it was launched first of two.
    """
    first = len(launches())
    future = na.spawn(fresh()(z), stream)

    def in_order() -> None:
        functions = [launch.function for launch in launches(first)]
        # Kernels are numbered as they are compiled.
        assert len(functions) == 2 and functions[0] > functions[1]

    yield in_order
    future.sync()


@pytest.mark.parametrize("way", ["async_on", "sync_on", "await", "gather"])
def test_nothing_is_enqueued_before_what_waits(null: na.Device, on: bool, way: str) -> None:
    null.policy = na.StreamPoolRoundRobin(null, 1)
    stream, z = null.policy.next_stream(), na.zeros(8).sync()
    for _ in range(2):
        add_one(z).sync_on(stream)

    async def main() -> None:
        with queued(z, stream) as in_order:
            if way == "await":
                await add_one(z)
            elif way == "gather":
                await na.gather(add_one(z))
            else:
                getattr(add_one(z), way)(stream)
            in_order()

    na.run(main())


class Result:
    """An operation whose value is a text."""

    def result(self) -> str:
        return "a value"


@pytest.mark.parametrize(
    "state", [{}, {"done": False}, {"error": ValueError("wrong")}, {"verified": 2}], ids=str
)
def test_gather_takes_what_is_done_and_verified(
    null: na.Device, on: bool, state: dict[str, Any]
) -> None:
    """And free of errors; everything behind something else is awaited."""
    stream = null.new_stream()
    stream._sequence, stream.verified = 3, state.get("verified", 3)
    well, other = Submission(stream, "work"), Submission(stream, "work")
    well.done, well.sequence = True, 1
    other.done, other.error, other.sequence = state.get("done", True), state.get("error"), 3
    ops: tuple[Any, ...] = (Result(), Result(), Result())
    started: list[Any] = [well, other, well]
    values: list[Any] = []
    add_values(ops, started, values)
    assert values == ["a value"] * (1 if state else 3)
    values = ["a value"]
    started[1] = ValueError("an operation that could not be started")
    add_values(ops, started, values)
    assert values == ["a value"]
