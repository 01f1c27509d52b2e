"""^C at random moments of calls, on every device."""

from __future__ import annotations

import pytest

import numbasync as na
from tests.interrupted_calls import WAYS, quietly
from tests.stress.interrupts import interrupt


@pytest.mark.parametrize("on", WAYS, ids=lambda on: "core" if on else "python")
def test_random_signals(device: na.Device, on: bool) -> None:
    with quietly(on):
        assert not interrupt(device, 150, all=False)
