"""A loop whose time passes only while nothing else can be done: a timer of an hour rings at once.

Where nothing is left that could happen, waiting is an error, not a hang.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from numbasync.serve import batcher

T = TypeVar("T")


class _Selector(selectors.SelectSelector):
    """Passes the time that it is told to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "all wait for something that will never happen"
            self.now += max(timeout, 0)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop of asyncio with a clock of its own, which begins at 0."""

    def __init__(self) -> None:
        self.selector_of_time = _Selector()
        super().__init__(self.selector_of_time)

    def time(self) -> float:
        return self.selector_of_time.now


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` in virtual time, which batchers use as their own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner, pytest.MonkeyPatch.context() as patch:
        patch.setattr(batcher, "monotonic", runner.get_loop().time)
        return runner.run(main)


def is_held_up(seconds: float) -> None:
    """Let virtual time pass in which the running loop does not turn."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.selector_of_time.now += seconds


async def passes(seconds: float) -> None:
    """Let virtual time pass."""
    await asyncio.sleep(seconds)
