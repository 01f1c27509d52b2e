"""What `--strict-leaks` waits for before it says that something was left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from numbasync.testing.plugin import leaks


@dataclass
class Queue:
    """A device that has done what is enqueued when it is quiet, and is told of it when it is asked.

    Attributes:
        dropped: operations that were dropped half-enqueued, which the next look enqueues.
        ops: that are enqueued, and not seen to be done.
        done: the part of them that the device has done.
        gated: that wait for a gate.
    """

    dropped: int = 0
    ops: int = 0
    done: int = 0
    gated: int = 0

    @property
    def backend(self) -> Queue:
        return self

    @property
    def in_flight(self) -> Queue:
        return self

    def quiesce(self) -> None:
        self.done = self.ops - self.gated

    def reclaim(self) -> None:
        self.ops, self.done = self.ops - self.done + self.dropped, 0
        self.dropped = 0


@pytest.mark.parametrize(
    "queue", [Queue(), Queue(ops=3), Queue(dropped=2), Queue(dropped=1, ops=2, gated=1)], ids=str
)
def test_work_enqueued_by_a_look_is_awaited(monkeypatch: pytest.MonkeyPatch, queue: Any) -> None:
    monkeypatch.setattr(leaks, "_in_use", lambda: [queue])
    leaks._settle()
    assert (queue.ops, queue.dropped) == (queue.gated, 0)
