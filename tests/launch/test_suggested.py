"""`na.suggest_threads`."""

from __future__ import annotations

import pytest

import numbasync as na
from numbasync.errors import LauncherError
from numbasync.testing import counters
from tests.common import saxpy


def test_it_is_what_a_call_without_threads_has(device: na.Device) -> None:
    n = 4096
    args = na.meta(n), 2.0, na.meta(n)
    launches = counters().launches
    threads = na.suggest_threads(saxpy, *args)
    assert threads == saxpy.explain(*args).suggested_threads
    if device.kind == "cuda":
        assert 0 < threads <= 256 and not threads % 32
    assert saxpy.explain(*args).block == (threads, 1, 1)
    assert counters().launches == launches, "nothing is launched"
    assert na.suggest_threads(saxpy, x=args[2], a=1.0, z=args[0]) == threads


def test_other_things_are_refused(device: na.Device) -> None:
    with pytest.raises(LauncherError, match=r"suggest_threads of .*int.*@na\.launcher"):
        na.suggest_threads(3)  # type: ignore[arg-type]
    with pytest.raises(LauncherError, match="x is missing"):
        na.suggest_threads(saxpy, na.meta(3), 1.0)
