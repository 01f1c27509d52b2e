"""CUPTI's records of what ran on GPUs, where the package `cupti-python` is installed.

An event is passed between the works of a stream, so the time between two has the way to the next
work in it, some microseconds. CUPTI tells when each kernel, copy and fill itself began and ended.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any, NamedTuple

from numbasync.device.journal import Row

BUFFER = 8 << 20  # bytes, in which CUPTI collects records
TRIES = 20  # comparisons of clocks, of which the quickest counts
MOST_AROUND = 64  # operations that may surround a call of the driver, on all threads
KINDS = ("CONCURRENT_KERNEL", "MEMCPY", "MEMCPY2", "MEMSET")

Span = tuple[int, int]  # nanoseconds of the host's clock


class Work(NamedTuple):
    """A kernel, a copy or a fill, in CUPTI's time.

    Attributes:
        call: the number of the driver's call that enqueued it.
        stream: CUPTI's number of the stream, and of the device.
    """

    call: int
    began: int
    ended: int
    stream: tuple[int, int]


class Activities:
    """What CUPTI has recorded since `start`.

    Args:
        cupti: the module `cupti.cupti`, or what a test puts in its place.

    Attributes:
        error_ns: how far a time may be off, as far as the comparison of the clocks goes.
    """

    def __init__(self, cupti: Any) -> None:
        self._cupti = cupti
        self._works: list[Work] = []
        self._calls: dict[int, int] = {}  # the time at which each began
        self._clocks: list[tuple[int, int]] = []  # CUPTI's time, and how far it is ahead
        self._is_on = False
        self.error_ns = 0

    def start(self) -> None:
        """Record from now on. Raises what CUPTI raises, as where a profiler uses it."""
        cupti = self._cupti
        cupti.activity_register_callbacks(lambda: (BUFFER, 0), self._take)
        self._is_on = True
        try:
            for activity in self._kinds():
                cupti.activity_enable(activity)
        except BaseException:
            self.stop()
            raise
        self._clocks = [self._compared()]

    def stop(self) -> None:
        """Record no more."""
        if self._is_on:
            self._is_on = False
            self._clocks = [*self._clocks[:1], self._compared()]
            self._cupti.activity_flush_all(1)
            for activity in self._kinds():
                self._cupti.activity_disable(activity)

    def _kinds(self) -> list[Any]:
        kinds = self._cupti.ActivityKind
        return [getattr(kinds, name) for name in (*KINDS, "DRIVER")]

    def _compared(self) -> tuple[int, int]:
        def once() -> tuple[int, int, int]:
            before, time, after = perf_counter_ns(), self._cupti.get_timestamp(), perf_counter_ns()
            return after - before, time, time - (before + after) // 2

        took, time, ahead = min(once() for _ in range(TRIES))
        self.error_ns = max(self.error_ns, took)
        return time, ahead

    def _take(self, records: Sequence[Any]) -> None:
        """Called by CUPTI, on any thread."""
        driver = self._cupti.ActivityKind.DRIVER
        for one in records:
            what = one.kind
            if what == driver:
                self._calls[one.correlation_id] = one.start
            elif hasattr(one, "stream_id"):
                place = one.device_id, one.stream_id
                self._works.append(Work(one.correlation_id, one.start, one.end, place))

    def _host_time(self, time: int) -> int:
        """A time of CUPTI's in the host's clock; the two may drift apart."""
        (first, ahead), (last, later) = self._clocks[0], self._clocks[-1]
        drift = (later - ahead) * (time - first) // (last - first) if last > first else 0
        return time - ahead - drift

    def of(self, rows: Sequence[Row]) -> dict[int, list[Span]]:
        """For the places of operations in `rows` when their kernels, copies and fills ran.

        A work is of the operation in whose time on the host the driver was called. Where several
        threads submitted at that time, it is of the one on the work's stream, which is known from
        the other works.
        """
        if self._is_on:
            self._cupti.activity_flush_all(1)
        order = sorted(range(len(rows)), key=lambda i: rows[i].began)
        begun = [rows[i].began for i in order]
        streams: dict[tuple[int, int], Counter[int]] = defaultdict(Counter)
        around: list[tuple[Work, list[int]]] = []
        for work in list(self._works):
            call = self._calls.get(work.call)
            if call is None:
                continue  # of another time, or no call of the driver
            at = self._host_time(call)
            last = bisect_right(begun, at)
            near = order[max(0, last - MOST_AROUND) : last]
            found = [i for i in near if rows[i].ended >= at]
            if found:
                around.append((work, found))
                if len({rows[i].stream for i in found}) == 1:
                    streams[work.stream][rows[found[0]].stream] += 1
        spans: dict[int, list[Span]] = defaultdict(list)
        for work, found in around:
            usual = streams[work.stream].most_common(1)
            own = [i for i in found if usual and rows[i].stream == usual[0][0]] or found
            # The last to begin: it is a part of the others.
            spans[own[-1]].append((self._host_time(work.began), self._host_time(work.ended)))
        return {i: sorted(one) for i, one in spans.items()}
