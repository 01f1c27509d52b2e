"""Both ways, and a device on the null driver."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import numbasync as na
from numbasync import native
from tests.native.null_device import null_device


@pytest.fixture(autouse=True)
def _on_again() -> Iterator[None]:
    yield
    native.switch(True)


@pytest.fixture(params=[False, True], ids=["python", "core"])
def on(request: pytest.FixtureRequest) -> bool:
    """Whether the core is on, for the test."""
    way: bool = request.param
    assert native.switch(way) is way
    return way


@pytest.fixture
def null() -> Iterator[na.Device]:
    """A device on the null driver, as the current one."""
    with null_device() as device:
        yield device
