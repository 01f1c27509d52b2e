"""Threads that wait for one another, of a block or of the blocks of a cluster: each is a greenlet,
which runs until it waits.

Threads that meet, at a barrier of the block or at an operation of a whole warp, stop until the last
of them has come; it computes what all of them get. If no thread can go on, an error says what each
of them waits for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Protocol

import greenlet
import numpy as np

from numbasync.backend.cpu.interpreter.places import Index3, Place, line_of
from numbasync.backend.protocols import GENERATED
from numbasync.errors import BarrierDivergenceError

GUARD = (
    "Guard the work between barriers, not the barriers: if i < n: ...; then cuda.syncthreads() "
    "outside the if."
)
_WAITS = object()  # what a thread tells the scheduler when it stops; None when it has returned


class Wait:
    """What a thread waits for.

    Args:
        what: the call, for a message.
        detail: what is missing, asked when no thread can go on.
        is_block: whether all threads of the block are waited for.
    """

    __slots__ = ("detail", "is_block", "place", "what")

    def __init__(
        self,
        what: str,
        place: Place,
        detail: Callable[[], str] | None = None,
        is_block: bool = False,
    ) -> None:
        self.what, self.place, self.detail, self.is_block = what, place, detail, is_block

    def __str__(self) -> str:
        text = f"at {self.what}, line {line_of(self.place)}"
        return text if self.detail is None else f"{text}: {self.detail()}"


class Thread:
    """A thread of a block: its index, its number in the block, and what it waits for."""

    __slots__ = ("block", "greenlet", "has_returned", "index", "number", "wait")

    def __init__(self, block: Threads, index: Index3, number: int, lane: greenlet.greenlet) -> None:
        self.block, self.index, self.number, self.greenlet = block, index, number, lane
        self.wait: Wait | None = None
        self.has_returned = False


class Launch(Protocol):
    """The launch whose blocks run: the extents of a block, and the thread that runs."""

    block_extent: Index3
    thread: Index3

    def enter(self) -> None:
        """The block whose thread runs is that of this object."""
        ...


class Threads:
    """The threads of one block after the other.

    Args:
        indices: of the threads, in the order in which they run.
        beside: a block of the cluster, of which all run together.

    Attributes:
        all: the threads of the block that runs, in that order.
        count: of the threads of a block.
        current: the thread that runs.
    """

    current: Thread

    def __init__(
        self, state: Launch, indices: Sequence[Index3], beside: Threads | None = None
    ) -> None:
        self._state = state
        self._indices = indices
        self._greenlets = [greenlet.greenlet(_run) for _ in indices]
        self._ready: deque[tuple[Thread, Any]] = deque() if beside is None else beside._ready
        self._meetings: dict[Hashable, list[tuple[Thread, Any]]] = {}
        self.all: list[Thread] = []
        self.count = len(indices)

    def run_blocks(
        self, body: Callable[..., None], args: list[Any], others: Sequence[Threads] = ()
    ) -> None:
        """Run all threads to their ends.

        Args:
            others: blocks of the cluster that are `beside` this one.

        Raises:
            BarrierDivergenceError: threads wait, and none can go on.
        """
        blocks = (self, *others)
        for block in blocks:
            block._begin(body, args)
        left = self.count * len(blocks)
        while left:
            if not self._ready:
                raise _stuck(blocks)
            thread, message = self._ready.popleft()
            thread.block._enter(thread)
            if thread.greenlet.switch(message) is None:
                thread.has_returned = True
                left -= 1

    def _enter(self, thread: Thread) -> None:
        self.current, self._state.thread = thread, thread.index
        self._state.enter()

    def _begin(self, body: Callable[..., None], args: list[Any]) -> None:
        wide, high, _ = self._state.block_extent
        self.all = [
            Thread(self, i, i.x + wide * (i.y + high * i.z), lane)
            for i, lane in zip(self._indices, self._greenlets, strict=True)
        ]
        self._meetings.clear()
        self._ready.extend((thread, (body, args)) for thread in self.all)

    def wait(self, wait: Wait) -> Any:
        """Stop the thread that runs until `resume`, whose result is given."""
        thread = self.current
        thread.wait = wait
        parent: Any = thread.greenlet.parent
        result = parent.switch(_WAITS)
        thread.wait = None
        return result

    def resume(self, thread: Thread, result: Any = None) -> None:
        """Let a thread that waits go on, after those that may go on already."""
        self._ready.append((thread, result))

    def meet(
        self,
        key: Hashable,
        need: int,
        wait: Wait,
        value: Any,
        combine: Callable[[list[int], list[Any]], Sequence[Any]],
    ) -> Any:
        """Wait until `need` threads have come to the same `key`.

        Args:
            value: what the thread brings.
            combine: gives what each of the threads gets, from their numbers, in order, and what
                they have brought.
        """
        meeting = self._meetings.setdefault(key, [])
        meeting.append((self.current, value))
        if len(meeting) < need:
            if wait.detail is None and not wait.is_block:
                wait.detail = lambda: f"{len(meeting)} of {need} threads have come"
            return self.wait(wait)
        del self._meetings[key]
        in_order = sorted(meeting, key=lambda pair: pair[0].number)
        numbers = [thread.number for thread, _ in in_order]
        results = combine(numbers, [brought for _, brought in in_order])
        result_of = dict(zip(numbers, results, strict=True))
        for thread, _ in meeting:  # also the one that runs: they go on in the order of arrival
            self.resume(thread, result_of[thread.number])
        return self.wait(wait)

    def end(self) -> None:
        """End the greenlets, also those that are in the middle of a block."""
        for lane in self._greenlets:
            if lane:  # started, and not at its end
                lane.throw(greenlet.GreenletExit)


def _run(job: tuple[Callable[..., None], list[Any]]) -> None:
    """Run one thread of each block: the body, then a report to the parent that it has returned."""
    parent: Any = greenlet.getcurrent().parent
    with np.errstate(all="ignore"):  # a greenlet has a context of its own, and so NumPy's settings
        while True:
            body, args = job
            body(*args)
            job = parent.switch(None)


# --- threads that cannot go on ---


def _stuck(blocks: Sequence[Threads]) -> BarrierDivergenceError:
    if len(blocks) > 1:
        lines = ["no thread of the cluster can go on:"]
        for rank, block in enumerate(blocks):
            lines += [f" block {rank}:", *_states(block.all)]
        return BarrierDivergenceError("\n".join(lines))
    threads = blocks[0].all
    waits = [(thread, thread.wait) for thread in threads if thread.wait is not None]
    if all(wait.is_block for _, wait in waits):
        return BarrierDivergenceError(_at_block_barriers(threads, waits))
    lines = ["no thread of the block can go on:", *_states(threads)]
    return BarrierDivergenceError("\n".join(lines))


def _states(threads: Sequence[Thread]) -> list[str]:
    """What the threads of a block wait for, and which have returned, a line for each."""
    waiting: dict[str, list[int]] = {}
    for thread in threads:
        if thread.wait is not None:
            waiting.setdefault(str(thread.wait), []).append(thread.number)
    lines = [f"  {ranges(numbers)}: waiting {text}" for text, numbers in waiting.items()]
    returned = [thread.number for thread in threads if thread.has_returned]
    if returned:
        lines.append(f"  {ranges(returned)}: returned")
    return lines


def ranges(numbers: Iterable[int]) -> str:
    """Numbers of threads in words: threads 0 to 31, 64."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    texts = [str(first) if first == last else f"{first} to {last}" for first, last in runs]
    is_one = len(texts) == 1 and runs[0][0] == runs[0][1]
    return f"thread{'' if is_one else 's'} {', '.join(texts)}"


def _at_block_barriers(threads: Sequence[Thread], waits: list[tuple[Thread, Wait]]) -> str:
    first, wait = waits[0]
    for thread, other in waits:
        if other.place != wait.place:
            in_tile = GENERATED in (wait.place[0].co_filename, other.place[0].co_filename)
            return (
                f"thread {tuple(first.index)} {_stopped(wait)}, while thread "
                f"{tuple(thread.index)} {_stopped(other)}.\n"
                + (GUARD if in_tile else "Every thread of a block must come to the same barrier.")
            )
    absent = next(thread for thread in threads if thread.wait is None)
    return (
        f"{len(waits)} of {len(threads)} threads wait {wait}, but thread {tuple(absent.index)} has "
        f"returned.\n{GUARD}"
    )


def _stopped(wait: Wait) -> str:
    return "is done with its tile" if wait.place[0].co_filename == GENERATED else f"waits {wait}"
