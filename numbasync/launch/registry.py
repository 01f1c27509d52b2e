"""Launchers by their result types, with which launchers are pickled."""

from __future__ import annotations

from collections import deque
from typing import Any
from weakref import WeakValueDictionary

from numbasync.launch.result import ResultType

_launchers: WeakValueDictionary[ResultType, Any] = WeakValueDictionary()
# Launchers that were unpickled by value. Keeping them alive keeps their compiled variants for the
# next time that the same launcher is unpickled.
_unpickled: deque[Any] = deque(maxlen=32)


def remember(result: ResultType, launcher: Any) -> None:
    """Note the launcher of a result type."""
    _launchers[result] = launcher


def known_launcher(result: ResultType) -> Any:
    """The launcher of a result type, None if there is none."""
    return _launchers.get(result)


def unpickled(launcher: Any) -> Any:
    """A launcher that has just been unpickled, which is kept for a while."""
    _unpickled.append(launcher)
    return launcher
