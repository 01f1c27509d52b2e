"""What the tests of prepared launches share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import numbasync as na
from numbasync import native

N = 64


@pytest.fixture(params=["core", "python"])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """The compiled core is on, or off."""
    if request.param == "core" and native.core is None:
        pytest.skip("the compiled core is not installed")
    native.switch(request.param == "core")
    yield request.param
    native.switch(True)


@pytest.fixture
def tensors(stream: na.Stream) -> tuple[na.Tensor, na.Tensor]:
    return na.zeros(N).sync_on(stream), na.ones(N).sync_on(stream)
