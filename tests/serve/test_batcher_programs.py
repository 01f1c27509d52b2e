"""Random programs of requests, in virtual time: each is answered or refused exactly once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numbasync.errors import (
    BatchAbortedError,
    BatcherClosedError,
    CallerError,
    DeadlineError,
    OverloadedError,
)
from numbasync.serve import MicroBatcher
from numbasync.serve.batcher import EARLY_S, FAIR
from tests import virtual_time

MS = 0.001


class Stop(BaseException):
    """No `Exception`, as a signal's."""


@dataclass(eq=False)
class One:
    """A request: when it comes and is cancelled, and what has become of it."""

    number: int
    comes: float
    key: int
    priority: int
    deadline: float | None
    cancelled_after: float | None
    is_bad: bool
    arrival: int = -1
    is_cancelled: bool = False
    seen: list[float] = field(default_factory=list)
    end: str = ""
    ended: float = -1.0


@dataclass
class Program:
    """A batcher, what `f` does for each batch, the requests, and the end of the batcher."""

    max_batch: int
    max_wait: float
    max_queue: int
    max_running: int
    works: list[tuple[float, str]]
    requests: list[One]
    closes: float | None
    drain: bool
    timeout: float | None


times = st.integers(0, 40).map(lambda n: n * 0.25 * MS)
works = st.tuples(
    st.integers(0, 30).map(lambda n: n * 0.3 * MS),
    st.sampled_from(["right"] * 6 + ["raise", "too few", "no list", "cancelled", "stop"]),
)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    requests, now = [], 0.0
    for number in range(draw(st.integers(0, 40))):
        now += draw(st.sampled_from([0.0, 0.0, 0.1 * MS, 1 * MS, 5 * MS]))
        requests.append(
            One(
                number, now, key=draw(st.integers(0, 2)), deadline=draw(st.none() | times),
                priority=draw(st.sampled_from([0, 0, 1, 5])), is_bad=draw(st.integers(0, 9)) == 0,
                cancelled_after=draw(st.none() | st.none() | times),
            )
        )  # fmt: skip
    return Program(
        max_batch=draw(st.integers(1, 5)), max_wait=draw(times), max_queue=draw(st.integers(1, 12)),
        max_running=draw(st.integers(1, 3)), works=draw(st.lists(works, min_size=1, max_size=8)),
        requests=requests, closes=draw(st.none() | times), drain=draw(st.booleans()),
        timeout=draw(st.none() | times),
    )  # fmt: skip


class Checker:
    """Runs a program, and looks at each batch as `f` begins."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.now = asyncio.get_running_loop().time
        self.running = self.batches = 0
        self.is_closing = False
        self.batcher: MicroBatcher[One, int] = MicroBatcher(
            self.f, program.max_batch, program.max_wait, program.max_queue,
            key=lambda one: one.key, max_running=program.max_running,
        )  # fmt: skip

    def waiting(self) -> list[One]:
        """Requests that have come, were in no batch, and have no end; also those that have one, of
        which their tasks hear in this turn.
        """
        return [one for one in self.program.requests if one.end == "waits" and not one.seen]

    def surely_waiting(self) -> list[One]:
        """Without the latter."""
        if self.is_closing and not self.program.drain:
            return []
        return [
            one for one in self.waiting()
            if not one.is_cancelled
            and (one.deadline is None or self.now() < one.comes + one.deadline - EARLY_S)
        ]  # fmt: skip

    def check_batch(self, items: list[One]) -> None:
        program, now = self.program, self.now()
        assert 1 <= len(items) <= program.max_batch and len({one.key for one in items}) == 1
        assert self.running < program.max_running
        for one in items:
            assert not one.seen and one.end == "waits", one
            assert one.deadline is None or now < one.comes + one.deadline
        key = items[0].key
        left = [one for one in self.surely_waiting() if one not in items and one.key == key]
        for one in items:
            same = [other for other in left if other.priority == one.priority]
            before = [other for other in same if other.arrival < one.arrival]
            assert before == [], f"not in the order of arrival: {now}, {before}, {items}"
        order = [(-one.priority, one.arrival) for one in items]
        lowest = min(one.priority for one in items)
        # Those of this moment may have come after the batch was made.
        overtaken = [one for one in left if one.priority > lowest and one.comes < now]
        if order != sorted(order) or overtaken:
            numbers = [one.arrival for one in items]
            assert numbers == sorted(numbers) and all(max(numbers) < o.arrival for o in left)
            self.unordered += 1
        # A full batch may have lost callers in the turn before it begins.
        is_exempt = self.is_closing or self.was_full or self.cancelled_at == now
        if len(items) < program.max_batch and not is_exempt:
            due = min(one.comes + self.patience(one) for one in items)
            assert due <= now + EARLY_S + 1e-9, "it started early"

    arrivals = unordered = 0
    was_full = False
    cancelled_at = -1.0

    def patience(self, one: One) -> float:
        half = float("inf") if one.deadline is None else one.deadline / 2
        return min(self.program.max_wait, half)

    async def f(self, items: list[One]) -> Any:
        self.check_batch(items)
        seconds, how = self.program.works[self.batches % len(self.program.works)]
        self.batches += 1
        self.running += 1
        for one in items:
            one.seen.append(self.now())
        try:
            await virtual_time.passes(seconds)
        finally:
            self.running -= 1
        if how == "raise":
            raise ValueError(how)
        if how == "cancelled":
            raise asyncio.CancelledError
        if how == "stop":
            raise Stop
        if how == "no list":
            return 7
        answers: list[Any] = [
            KeyError(one.number) if one.is_bad else 10 * one.number for one in items
        ]
        return answers[1:] if how == "too few" else answers

    async def ask(self, one: One) -> None:
        await virtual_time.passes(one.comes - self.now())
        one.comes, one.end, one.arrival = self.now(), "waits", self.arrivals
        self.arrivals += 1
        waiting = len(self.waiting()) - 1
        self.was_full = self.was_full or waiting + 1 >= self.program.max_queue
        end = "none"
        try:
            answer = await self.batcher(one, deadline=one.deadline, priority=one.priority)
            assert answer == 10 * one.number and not one.is_bad and len(one.seen) == 1
            end = "answered"
        except OverloadedError as error:
            is_right = not one.seen and error.waiting == self.program.max_queue
            end = "overloaded" if is_right else "wrong"
        except DeadlineError:
            assert one.deadline is not None
            late = self.now() - (one.comes + one.deadline)
            assert abs(late) < EARLY_S
            end = "expired"
        except BatcherClosedError:
            assert self.is_closing and not one.seen
            end = "closed"
        except BatchAbortedError:
            assert one.seen
            end = "closed" if self.is_aborted else "failed"
        except KeyError as error:
            end = "failed" if one.is_bad and error.args == (one.number,) else "wrong"
        except (ValueError, CallerError):
            assert one.seen
            end = "failed"
        except asyncio.CancelledError:
            end = "cancelled"
        finally:
            assert one.end == "waits", "it ended twice"
            one.end, one.ended = end, self.now()

    is_aborted = False

    async def asked(self, one: One) -> None:
        """A request, which is cancelled after its time."""
        task = asyncio.ensure_future(self.ask(one))
        if one.cancelled_after is not None:
            await virtual_time.passes(one.comes - self.now() + one.cancelled_after)
            one.is_cancelled = task.cancel()
            self.cancelled_at = self.now()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()

    async def run(self) -> None:
        program = self.program
        async with self.batcher:
            asking = asyncio.gather(*map(self.asked, program.requests))
            if program.closes is not None:
                await virtual_time.passes(program.closes)
                self.is_closing = True
                closing = asyncio.ensure_future(self.batcher.close(program.drain, program.timeout))
                if program.timeout is not None:
                    await asyncio.wait([closing], timeout=program.timeout)
                    self.is_aborted = True
                await closing
                assert self.running == 0
            await asking
        self.check_end()

    def check_end(self) -> None:
        requests, seen = self.program.requests, self.batcher.statistics()
        came = [one for one in requests if one.end]
        counted = {
            end: sum(one.end == end for one in came)
            for end in ("answered", "failed", "expired", "cancelled", "overloaded", "closed")
        }
        # Cancelled before it came: not in the queue, and not counted.
        never = sum(not one.end for one in requests)
        # A caller that is cancelled in the turn in which it is answered counts as answered.
        cancelled = counted.pop("cancelled")
        assert cancelled >= seen.cancelled
        assert all(number <= getattr(seen, end) for end, number in counted.items())
        assert all(one.end in (*counted, "cancelled") for one in came)
        assert seen.requests == len(came) == len(requests) - never
        assert (seen.waiting, seen.running, seen.batches) == (0, 0, self.batches)
        assert all(len(one.seen) <= 1 for one in requests)
        assert seen.answer_seconds.count == seen.answered
        assert self.unordered <= self.batches // FAIR + 1


@given(programs())
@settings(max_examples=25)
def test_each_request_ends_once_and_in_order(program: Program) -> None:
    async def main() -> None:
        await Checker(program).run()

    virtual_time.run(main())


@pytest.mark.full
@given(programs())
@settings(max_examples=1000)
def test_each_request_of_many_programs_ends_once(program: Program) -> None:
    async def main() -> None:
        await Checker(program).run()

    virtual_time.run(main())
