"""Everything that an operation uses is taken away, at every moment at which Python code runs."""

from __future__ import annotations

import pytest

import numbasync as na
from numbasync import native
from tests.native.moments import KINDS, pass_moment

pytestmark = [
    pytest.mark.skipif(native.core is None, reason="the compiled core is not installed"),
    pytest.mark.filterwarnings("ignore:.*was never awaited"),  # of operations that were refused
]
LONG = {"lazy": 5, "copied_argument": 5, "zip": 2}  # of these, every so-manieth moment


@pytest.mark.parametrize("kind", KINDS)
def test_on_the_null_driver(null: na.Device, kind: str) -> None:
    _take_away(null, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_on_a_device(device: na.Device, kind: str) -> None:
    _take_away(device, kind)


def _take_away(device: na.Device, kind: str) -> None:
    pass_moment(device, kind, 0)
    count = pass_moment(device, kind, 0)  # now nothing is compiled
    for at in range(1, count + 1, LONG.get(kind, 1)):
        pass_moment(device, kind, at)
