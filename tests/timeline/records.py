"""Records of timelines that tests make up."""

from __future__ import annotations

from typing import Any

import numbasync as na


def operation(
    name: str, stream: int, sequence: int, *spans: tuple[float, float | None], **others: Any
) -> na.TracedOperation:
    """An operation on a stream; it is enqueued when its work begins."""
    began = spans[0][0] if spans else 0.0
    settings: dict[str, Any] = {
        "kernels": (), "line": "", "device": "cpu:0", "task": "Task-1", "thread": "MainThread",
        "submitted": began, "enqueued": began, "nbytes": 0, "waits_for": (), "parent": None,
        "error": "", "is_measured": True, "copied": 0,
    }  # fmt: skip
    settings |= others
    shapes = ((),) * len(settings["kernels"])
    return na.TracedOperation(
        name=name, stream=stream, sequence=sequence, spans=spans, **{"shapes": shapes, **settings}
    )


def wait(stream: int, sequence: int, began: float, ended: float, **others: Any) -> na.TracedWait:
    """An await of work on a stream."""
    settings: dict[str, Any] = {
        "how": "await", "name": "work", "task": "Task-1", "thread": "MainThread", "ready": None,
    }  # fmt: skip
    return na.TracedWait(
        stream=stream, sequence=sequence, began=began, ended=ended, **(settings | others)
    )
