"""More values for each argument than in the quick tier; all, if NUMBASYNC_ARGUMENTS is 57."""

from __future__ import annotations

import os

import pytest

import numbasync as na
from tests import wrong_arguments

pytestmark = pytest.mark.filterwarnings("ignore")  # operations that nothing runs; NumPy's
MOST = int(os.environ.get("NUMBASYNC_ARGUMENTS", "8"))


def test_functions_refuse_many_wrong_arguments(device: na.Device) -> None:
    made, found = wrong_arguments.faults(wrong_arguments.functions(), MOST, device)
    assert made > 300 * min(MOST, 15) and not found, "\n".join(found)


def test_methods_refuse_many_wrong_arguments(device: na.Device) -> None:
    made, found = wrong_arguments.faults(wrong_arguments.methods(device), MOST, device)
    assert made > 150 * min(MOST, 15) and not found, "\n".join(found)
