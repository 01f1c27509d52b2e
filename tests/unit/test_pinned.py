"""How much page-locked memory is kept, where there is no GPU to have it."""

from __future__ import annotations

import os

import pytest


def test_a_system_that_does_not_say_how_much_memory_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = pytest.importorskip("numbasync.backend.cuda.pinned", exc_type=ImportError)
    assert pinned._memory() > 0
    assert pinned.PinnedPool.KEPT_BYTES >= 256 * 2**20
    monkeypatch.delattr(os, "sysconf")
    assert pinned._memory() == 0
