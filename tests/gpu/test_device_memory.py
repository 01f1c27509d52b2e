"""Blocks of device memory that are kept for whoever asks for as many bytes next."""

from __future__ import annotations

from typing import Any

import pytest

import numbasync as na

pytestmark = pytest.mark.cuda
MOST = 64 * 1024


@pytest.fixture
def pool(device: na.Device, monkeypatch: pytest.MonkeyPatch) -> na.MemoryPool:
    """The device's, empty, that keeps few."""
    device.synchronize()
    device.pool.trim()
    monkeypatch.setattr(device.pool._pool, "_most_spare", MOST)
    return device.pool


def spare(pool: na.MemoryPool) -> int:
    """Bytes."""
    backend: Any = pool._pool
    found = sum(nbytes * len(blocks) for nbytes, blocks in backend._spare.items())
    assert found == backend._spare_bytes
    return found


def test_new_sizes_take_the_place_of_old_ones(pool: na.MemoryPool) -> None:
    sizes = list(range(1000, 20_000, 256))
    for size in sizes:
        na.zeros(size, "u1").sync()
        assert spare(pool) <= MOST
    assert pool.reuse(sizes[0]) is None
    assert pool.reuse(sizes[-1]) is not None


def test_one_block_does_not_replace_very_many(pool: na.MemoryPool) -> None:
    many = [na.zeros(256, "u1").sync() for _ in range(250)]
    del many
    assert spare(pool) == 250 * 256
    na.zeros(60_000, "u1").sync()
    assert 200 * 256 <= spare(pool) <= MOST
    assert pool.reuse(60_000) is None
