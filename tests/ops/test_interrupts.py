"""^C at places of calls: nothing stays owned, in flight, limited or lost."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import numbasync
import numbasync as na
from numbasync.threads import Answer
from tests.interrupted_calls import WAYS, Interrupted, quietly


@pytest.mark.parametrize("on", WAYS, ids=lambda on: "core" if on else "python")
def test_nothing_is_left_of_a_call(device: na.Device, on: bool) -> None:
    """A few places of half the calls of one device; `tests/stress/test_every_place.py` has all."""
    with quietly(on):
        assert not Interrupted(device, all=False).sweep(211, slice(on, None, 2))


def test_locks_are_taken_by_code_in_c() -> None:
    """^C may come in what takes a lock in Python when it is taken already: `threading.Condition`,
    what has one, and `ExitStack`.
    """
    found = re.compile(
        r"ExitStack\(|threading\.(Condition|Event|\w*Semaphore)\b|with changed\b|= Future\("
    )
    package = Path(numbasync.__file__).parent
    lines = [
        f"{path.relative_to(package)}: {line.strip()}"
        for path in package.rglob("*.py")
        if path.relative_to(package).parts[0] not in ("testing", "tools")
        for line in path.read_text(encoding="utf-8").splitlines()
        if found.search(line) and not line.strip().startswith("#")
    ]
    assert sorted(lines) == [
        "backend/cpu/runtime/workers.py: class _Changed(threading.Condition):",
        "backend/cuda/module_cleanup.py: _deferred = ExitStack()",  # holds no lock
        "threads.py: self._waiting = threading.Condition(self)",  # taken by its lock
    ]
    lock: Any = type(Answer()._condition)
    assert not hasattr(lock.__enter__, "__code__") and not hasattr(lock.__exit__, "__code__")
