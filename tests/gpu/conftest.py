"""Other libraries on the GPU, with everything loaded that a test does while a gate is shut."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import numbasync as na
from numbasync.testing import Gate
from tests.common import add_one, copy_to, saxpy
from tests.libraries import SIZE, Library, cupy_library, torch_library


@pytest.fixture(params=["cupy", "torch"])
def library(request: pytest.FixtureRequest, device: na.Device) -> Library:
    """Each of them, with everything loaded that a test does while a gate is shut."""
    found = {"cupy": cupy_library, "torch": torch_library}[request.param]()
    x, y = found.ones(), found.ones()
    with found.on(device.new_stream()):
        x += 1
        x[:] = y
        x[2:6] += 1
        found.take(na.ones(SIZE).sync())
    t, out = na.as_tensor(x), na.zeros(SIZE).sync()
    for z in (t, t[2:6], t[::2]):
        add_one(z).sync()
        na.fill(z, 1).sync()
        z.to_host().sync()
    copy_to(out, x).sync()
    saxpy(out, 1.0, x).sync()
    device.synchronize()
    return found


@pytest.fixture
def producer(device: na.Device) -> na.Stream:
    """A stream that the other library works on."""
    return device.new_stream()


@pytest.fixture
def shut(producer: na.Stream) -> Iterator[Gate]:
    """An open gate on it; opened again at the end of the test."""
    gate = Gate(producer)
    yield gate
    gate.open()
