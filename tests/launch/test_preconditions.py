"""Preconditions: what may be said, and what a failure says."""

from __future__ import annotations

import numpy as np
import pytest

from numbasync.errors import LauncherError, LaunchError
from numbasync.launch.preconditions import Precondition

NAMES = ["x", "y", "n"]


def values(shape: tuple[int, ...] = (128, 4), n: int = 3) -> dict[str, object]:
    return {"x": np.zeros(shape), "y": np.zeros((4, 7)), "n": n}


@pytest.mark.parametrize(
    "text",
    ["x.shape[0] % 64 == 0", "x.shape[1] == y.shape[0]", "0 < n <= 3 and x.ndim == 2",
     "not n == 4", "x.size == 512 or n > 99", "x.shape == (128, 4)", "n in (1, 2, 3)",
     "x.shape[-1] == 2 ** 2"],
)  # fmt: skip
def test_what_holds_passes(text: str) -> None:
    Precondition(text, "k", NAMES).check(values())


def test_a_failure_names_kernel_condition_and_values() -> None:
    condition = Precondition("x.shape[0] % 64 == n", "k", NAMES)
    with pytest.raises(LaunchError) as caught:
        condition.check(values((100, 4)))
    for part in ("kernel k", "x.shape[0] % 64 == n", "x.shape = (100, 4)", "n = 3"):
        assert part in str(caught.value)


def test_what_cannot_be_evaluated_says_why() -> None:
    condition = Precondition("x.shape[2] == 1", "k", NAMES)
    with pytest.raises(LaunchError, match="cannot be evaluated"):
        condition.check(values())


@pytest.mark.parametrize(
    ("text", "problem"),
    [("x.shape[0] %", "no expression"), ("z.size == 1", "names z"),
     ("__import__('os')", "uses Call"), ("x.__class__ == 1", "uses .__class__"),
     ("[i for i in x]", "uses ListComp"), ("(lambda: 1)", "uses Lambda")],
)  # fmt: skip
def test_impossible_preconditions_are_refused_at_decoration(text: str, problem: str) -> None:
    with pytest.raises(LauncherError, match=problem):
        Precondition(text, "k", NAMES)
