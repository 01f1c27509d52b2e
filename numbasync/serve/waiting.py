"""The requests that wait for a batch: by key, by priority, and in the order of arrival.

Knows no event loop and no clock: it is given times, in seconds, and is tested with numbers.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Hashable, Iterator
from itertools import islice
from typing import Any

NEVER = float("inf")


class Request:
    """One item on its way through a batcher.

    Attributes:
        number: of its arrival; later ones are larger.
        arrival: when it came.
        due: when its batch starts at the latest, if another may start then.
        seconds: the limit that its caller has set, and `deadline` when that has passed.
        answer: the future that its caller awaits.
        timer: what refuses it at its deadline.
        batch: the batch that it has become part of.
        is_settled: its caller has been answered or refused, or has left.
    """

    __slots__ = (
        "answer", "arrival", "batch", "deadline", "due", "is_settled", "item", "key", "number",
        "priority", "seconds", "timer",
    )  # fmt: skip

    def __init__(
        self, item: Any, key: Hashable, priority: int, number: int, arrival: float, due: float
    ) -> None:
        self.item = item
        self.key = key
        self.priority = priority
        self.number = number
        self.arrival = arrival
        self.due = due
        self.seconds = NEVER
        self.deadline = NEVER
        self.answer: Any = None
        self.timer: Any = None
        self.batch: Any = None
        self.is_settled = False


class Bucket:
    """The waiting requests of one key."""

    __slots__ = ("_due", "_is_due_known", "by_priority", "key", "size")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.size = 0
        self.by_priority: dict[int, dict[Request, None]] = {}
        self._due = NEVER
        self._is_due_known = True

    def requests(self) -> Iterator[Request]:
        for level in self.by_priority.values():
            yield from level

    def add(self, request: Request) -> None:
        self.by_priority.setdefault(request.priority, {})[request] = None
        self.size += 1
        self._due = min(self._due, request.due)

    def remove(self, request: Request) -> None:
        level = self.by_priority[request.priority]
        del level[request]
        if not level:
            del self.by_priority[request.priority]
        self.size -= 1
        if request.due <= self._due:
            self._is_due_known = False  # looked for when it is asked for: many may leave at once

    def due(self) -> float:
        """When the first of its requests is due."""
        if not self._is_due_known:
            self._due = min((r.due for r in self.requests()), default=NEVER)
            self._is_due_known = True
        return self._due

    def rank(self, in_order_of_arrival: bool) -> tuple[int, int]:
        """Buckets of the least rank are served first."""
        if in_order_of_arrival:
            return 0, min(next(iter(level)).number for level in self.by_priority.values())
        highest = max(self.by_priority)
        return -highest, next(iter(self.by_priority[highest])).number

    def first(self, most: int, in_order_of_arrival: bool) -> list[Request]:
        """Its next `most` requests."""
        if in_order_of_arrival:
            merged = heapq.merge(*self.by_priority.values(), key=lambda r: r.number)
        else:
            levels = sorted(self.by_priority, reverse=True)
            merged = (r for level in levels for r in self.by_priority[level])
        return list(islice(merged, most))


class Waiting:
    """All requests that wait, and which of them make the next batch.

    Of the buckets that may start, the one whose first request has the highest priority goes first;
    of equals, the one whose request came first. Within a bucket it is the same. The batcher asks
    for every so many a batch in the order of arrival alone, so that nobody waits for ever.

    Args:
        most_of_batch: the most requests of one batch.
    """

    def __init__(self, most_of_batch: int) -> None:
        self._most = most_of_batch
        self._buckets: dict[Hashable, Bucket] = {}
        self._priorities = Counter[int]()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Request]:
        for bucket in self._buckets.values():
            yield from bucket.requests()

    def add(self, request: Request) -> bool:
        """Whether a batch of its key is full now."""
        bucket = self._buckets.get(request.key)
        if bucket is None:
            bucket = self._buckets[request.key] = Bucket(request.key)
        bucket.add(request)
        self._priorities[request.priority] += 1
        self._size += 1
        return bucket.size >= self._most

    def remove(self, request: Request) -> None:
        bucket = self._buckets[request.key]
        bucket.remove(request)
        if not bucket.size:
            del self._buckets[request.key]
        self._priorities[request.priority] -= 1
        if not self._priorities[request.priority]:
            del self._priorities[request.priority]
        self._size -= 1

    def due(self) -> float:
        """When the first of all requests is due."""
        return min((bucket.due() for bucket in self._buckets.values()), default=NEVER)

    def take(self, now: float, is_all_due: bool, in_order_of_arrival: bool) -> list[Request]:
        """The requests of the next batch, which wait no more; none if no batch may start.

        Args:
            is_all_due: batches need neither be full nor due.
            in_order_of_arrival: priorities do not count this time.
        """
        may_start = [
            bucket for bucket in self._buckets.values()
            if is_all_due or bucket.size >= self._most or bucket.due() <= now
        ]  # fmt: skip
        if not may_start:
            return []
        chosen = min(may_start, key=lambda bucket: bucket.rank(in_order_of_arrival))
        taken = chosen.first(self._most, in_order_of_arrival)
        for request in taken:
            self.remove(request)
        return taken

    def last_below(self, priority: int) -> Request | None:
        """The request that gives way to one of `priority`: of those of the lowest priority that
        wait, the one that came last. None: nobody has a lower priority than `priority`.
        """
        lowest = min(self._priorities, default=priority)
        if lowest >= priority:
            return None
        levels = (bucket.by_priority.get(lowest) for bucket in self._buckets.values())
        return max((next(reversed(level)) for level in levels if level), key=lambda r: r.number)
