"""^C at random moments of calls, on every device."""

from __future__ import annotations

import pytest

import numbasync as na
from numbasync import native
from tests.stress.interrupts import interrupt

WAYS = [False, True] if native.core is not None else [False]


@pytest.mark.parametrize("on", WAYS, ids=lambda on: "core" if on else "python")
@pytest.mark.filterwarnings(
    "ignore::RuntimeWarning",  # of operations that did not run
    "ignore::ResourceWarning",  # of loops that were stopped before they were closed
)
def test_random_signals(device: na.Device, on: bool) -> None:
    native.switch(on)
    try:
        assert not interrupt(device, 150)
    finally:
        native.switch(True)
