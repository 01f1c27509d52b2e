"""Large copies as on a machine with several processors."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import numbasync as na
from numbasync.device import copy_threads
from numbasync.device.staging_ring import Ring
from tests.common import add_one
from tests.tensors.large_arrays import CHUNK


@pytest.fixture
def several_threads(device: na.Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a machine with more processors than this one may have."""
    monkeypatch.setattr(copy_threads, "THREADS", 4)
    copy_threads.start_over()
    add_one.compile(na.meta(4)).sync()
    na.from_host(np.zeros(3 * CHUNK, np.uint8)).to_host().sync()
    # Kept for whoever asks next: to lock pages may wait for a stream that a test holds.
    blocks = [device.backend.host_buffer(CHUNK) for _ in range(Ring.MOST + 48)]
    blocks.append(device.backend.host_buffer(device.ring.nbytes + 3 * CHUNK + 512))
    del blocks
    yield
    copy_threads.settle()
    copy_threads.start_over()


@pytest.fixture(params=["direct", "through the host"])
def pair(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[na.Device, na.Device]]:
    """Two CPU devices, the first of them current: they copy directly, or as if they could not."""
    near, far = na.devices("cpu")[:2]
    if request.param != "direct":
        monkeypatch.setattr(type(near.backend), "copies_from", lambda *_: False)
    with na.use_device(near):
        yield near, far
