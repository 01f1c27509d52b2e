"""Streams that are a number, and a loop to watch them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

from numbasync.backend import protocols


class FakeStream:
    """A stream whose position the test sets."""

    def __init__(self, spin_seconds: float = 0.0) -> None:
        self.spin_seconds = spin_seconds
        self.passed = 0
        self.looks = 0
        self.wakers: list[tuple[int, protocols.Waker]] = []
        self.prompt = True
        self.broken = False

    def advance(self) -> int:
        self.looks += 1
        return self.passed

    def wake(self, sequence: int, waker: protocols.Waker) -> bool:
        self.wakers.append((sequence, waker))
        return self.prompt

    def query_device(self) -> bool:
        if self.broken:
            self.passed = sys.maxsize
        return self.broken

    def reach(self, sequence: int) -> None:
        """Pass a position and ring, as a device does."""
        self.passed = sequence
        for number, waker in self.wakers:
            if number <= sequence:
                waker.notify()


class Clock:
    """Stands for the module `time` of the reactor: time passes when the test says so."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


async def turns(n: int = 6) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


def run(factory: Callable[[], Any], main: Any) -> Any:
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)
