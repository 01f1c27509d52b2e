"""More values for each argument than in the quick tier; all, if NUMBASYNC_ARGUMENTS is 57."""

from __future__ import annotations

import os

import pytest

import numbasync as na
from numbasync.algorithms.operators import OPERATORS
from tests import wrong_arguments
from tests.project.test_wrong_arguments import COMPILING

pytestmark = pytest.mark.filterwarnings("ignore")  # operations that nothing runs; NumPy's
MOST = int(os.environ.get("NUMBASYNC_ARGUMENTS", "8"))
# Of functions for which some wrong values are right, and each of those is a kernel to compile.
MOST_COMPILING = int(os.environ.get("NUMBASYNC_ARGUMENTS", "3"))


def test_functions_refuse_many_wrong_arguments(device: na.Device) -> None:
    made, found = 0, list[str]()
    for call in wrong_arguments.functions():
        # `reduce` by the name of an operator: it runs, and the others would each compile a kernel.
        runs = call.name.removeprefix(COMPILING) not in OPERATORS
        most = MOST_COMPILING if runs and call.name.startswith(COMPILING) else MOST
        calls, faults = wrong_arguments.faults([call], most, device, runs)
        made, found = made + calls, found + faults
    assert made > 300 * min(MOST, 15) and not found, "\n".join(found)


def test_methods_refuse_many_wrong_arguments(device: na.Device) -> None:
    made, found = wrong_arguments.faults(wrong_arguments.methods(device), MOST, device)
    assert made > 150 * min(MOST, 15) and not found, "\n".join(found)
