"""One reading of a function serves all questions, as long as its outer names stay what they are."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from numba import cuda

from numbasync.facts import ir
from numbasync.facts.bounds import Integers

STEP = 1


def steps(z: Any) -> None:
    z[0] = STEP


def test_a_function_is_read_once() -> None:
    assert ir.read(steps) is ir.read(steps)


def test_a_changed_global_is_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    before = ir.read(steps)
    monkeypatch.setitem(steps.__globals__, "STEP", -1)
    names = ir.read(steps)
    (store,) = [s for s in names.statements if hasattr(s, "index")]
    assert names is not before and names.constant(store.value) == -1
    assert not Integers(names).is_nonnegative(store.value)


def test_a_changed_enclosing_variable_is_read_anew() -> None:
    step = 1

    def own(z: Any) -> None:
        z[0] = step

    before = ir.read(own)
    assert ir.read(own) is before
    step = 2
    assert ir.read(own) is not before


def test_a_deleted_global_is_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    before = ir.read(steps)
    monkeypatch.delitem(steps.__globals__, "STEP")
    assert ir.read(steps) is not before


def test_a_reading_keeps_no_function() -> None:
    def own(z: Any) -> None:
        z[cuda.grid(1)] = 0

    ir.read(own)
    gone = weakref.ref(own)
    del own
    gc.collect()
    assert gone() is None


def test_old_readings_go(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(z: Any) -> None:
        z[0] = 0

    monkeypatch.setattr(ir, "MOST_READINGS", 1)
    before = ir.read(steps)
    ir.read(other)
    assert ir.read(steps) is not before
