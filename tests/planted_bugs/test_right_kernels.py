"""Kernels that are right pass, on every device, in every order."""

from __future__ import annotations

import pytest

import numbasync as na
from tests.planted_bugs.cases import Case
from tests.planted_bugs.kernels import CASES

pytestmark = pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning")


def test_there_are_twenty_and_more() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 20


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_right_kernels_pass(device: na.Device, case: Case) -> None:
    case.check()
