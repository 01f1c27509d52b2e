"""Kernels that are wrong fail, on a machine without a GPU; and as the documents say. Kernels that
are right pass, on every device, in every order.

One file: most of the wrong kernels are right ones with a mistake, which are compiled once here.
"""

from __future__ import annotations

import pytest

import numbasync as na
from tests.planted_bugs import table
from tests.planted_bugs.cases import Case
from tests.planted_bugs.kernels import CASES
from tests.planted_bugs.planted import PLANTED
from tests.planted_bugs.repaired import REPAIRED

pytestmark = pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning")
ALL = [(kind, case) for kind, cases in PLANTED.items() for case in cases]


def test_there_are_five_of_each_kind() -> None:
    assert [len(cases) for cases in PLANTED.values()] == [5] * 6
    lines = table.kept(table.PAGE.read_text())
    assert len(lines) == 2 + 30
    assert len({case.name for _, case in ALL}) == 30


@pytest.mark.parametrize(("kind", "case"), ALL, ids=lambda v: getattr(v, "name", v))
def test_planted_mistakes_are_caught(kind: str, case: Case) -> None:
    line = table.row(kind, case)
    assert "nothing" not in line
    assert line in table.kept(table.PAGE.read_text()), "run: python -m tests.planted_bugs.table"


@pytest.mark.full
@pytest.mark.parametrize(("kind", "case"), ALL, ids=lambda v: getattr(v, "name", v))
def test_without_the_mistake_the_same_test_passes(device: na.Device, kind: str, case: Case) -> None:
    Case(REPAIRED[case.kernel], case.args, case.reference, **case.options).check()


def test_there_are_twenty_right_ones_and_more() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 20


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_right_kernels_pass(device: na.Device, case: Case) -> None:
    case.check()
