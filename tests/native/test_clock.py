"""The clock of a trace's notes is that of the program, and never goes back."""

from __future__ import annotations

import threading
from itertools import pairwise
from time import perf_counter_ns

import pytest

from numbasync import native

core = native.core
pytestmark = pytest.mark.skipif(core is None, reason="needs the compiled core")

FAR = 100_000  # nanoseconds; ticks of the processor are some thousand off at most
READINGS = 20_000  # some milliseconds: the kernel is asked several times


def test_it_is_the_clock_of_the_program() -> None:
    assert core is not None
    for _ in range(READINGS):
        before, now, after = perf_counter_ns(), core.clock_ns(), perf_counter_ns()
        assert before - FAR <= now <= after + FAR


def test_it_never_goes_back_whoever_reads_it() -> None:
    assert core is not None
    seen: list[tuple[int, ...]] = []
    clock = core.clock_ns

    def read() -> None:
        seen.append(tuple(clock() for _ in range(READINGS)))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(a <= b for own in seen for a, b in pairwise(own)) and len(seen) == 4
