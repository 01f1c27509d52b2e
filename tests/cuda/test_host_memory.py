"""Page-locked memory goes back to the system without anyone waiting for it."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest

import numbasync as na

pytestmark = pytest.mark.cuda


def test_surplus_is_unlocked_by_a_thread(
    device: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    from numbasync.backend.cuda import memory

    freed: list[tuple[int, Any]] = []
    done = threading.Event()
    free = memory.cu.cuMemFreeHost

    def watched(address: int) -> Any:
        result = free(address)
        freed.append((threading.get_ident(), result))
        done.set()
        return result

    monkeypatch.setattr(memory.cu, "cuMemFreeHost", watched)
    monkeypatch.setattr(memory.PinnedPool, "KEPT_BYTES", 0)
    host = na.ones(3_000_000).to_host().sync()
    assert host.sum() == 3_000_000
    del host
    gc.collect()
    assert done.wait(20)
    assert freed[0][0] != threading.get_ident()
    assert int(freed[0][1][0]) == 0
    assert na.ones(10).to_host().sync().sum() == 10
