"""The CPU device, for tests that are of it whichever device is tested."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import numbasync as na


@pytest.fixture
def on_the_cpu_device() -> Iterator[None]:
    with na.use_device(na.devices("cpu")[0]):
        yield
