"""^C at places of calls: nothing stays owned, in flight, limited or lost."""

from __future__ import annotations

import pytest

import numbasync as na
from tests.interrupted_calls import WAYS, Interrupted, quietly


@pytest.mark.parametrize("on", WAYS, ids=lambda on: "core" if on else "python")
def test_nothing_is_left_of_a_call(device: na.Device, on: bool) -> None:
    """A few places of half the calls of one device; `tests/stress/test_every_place.py` has all."""
    with quietly(on):
        assert not Interrupted(device, all=False).sweep(211, slice(on, None, 2))
