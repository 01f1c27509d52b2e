"""Faults planted in the core are caught: a sample here, all of them by `tests.native.mutants`."""

from __future__ import annotations

import pytest

from tests.native.mutants import MUTANTS, Mutant, caught_by
from tests.native.null_device import library


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_what_a_fault_changes_is_there(mutant: Mutant) -> None:
    assert mutant.part().exists() and mutant.fault != mutant.text


@pytest.mark.full  # compiles the core
def test_a_fault_is_caught() -> None:
    name = "lease: a writer on another stream is overlooked"
    pytest.importorskip("Cython", reason="Cython is not installed")
    pytest.importorskip("setuptools", reason="setuptools is not installed")
    library()  # skips the test without a C compiler
    (mutant,) = (m for m in MUTANTS if m.name == name)
    assert caught_by(mutant, ("tests/native/test_driver_calls.py",)).startswith(("FAILED", "ERROR"))
