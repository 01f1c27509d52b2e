"""^C at places of all calls: nothing stays owned, in flight, limited or lost."""

from __future__ import annotations

import os

import pytest

import numbasync as na
from tests.interrupted_calls import WAYS, Interrupted, quietly

# At every which place of a call ^C comes; 1: at each.
STEP = int(os.environ.get("NUMBASYNC_INTERRUPTS", "83"))


@pytest.mark.full  # of the places that tests/ops/test_interrupts.py has, many more
@pytest.mark.parametrize("on", WAYS, ids=lambda on: "core" if on else "python")
def test_nothing_is_left_of_any_call(device: na.Device, on: bool) -> None:
    with quietly(on):
        assert not Interrupted(device).sweep(STEP)
