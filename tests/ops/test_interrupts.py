"""^C at bytecodes of calls: nothing stays owned, in flight, limited or lost."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator

import pytest

import numbasync as na
from numbasync import native
from tests.interrupted_calls import Interrupted

WAYS = [False, True] if native.core is not None else [False]
# At every which bytecode of a call ^C comes; 1: at each.
STEP = int(os.environ.get("NUMBASYNC_INTERRUPTS", "499"))


@pytest.fixture(params=WAYS, ids=lambda on: "core" if on else "python")
def interrupted(
    request: pytest.FixtureRequest, device: na.Device, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Interrupted]:
    # Python prints what comes in a finaliser.
    monkeypatch.setattr("sys.unraisablehook", lambda _: None)
    native.switch(request.param)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of operations that did not run
            warnings.simplefilter("ignore", ResourceWarning)  # of loops, before they were closed
            yield Interrupted(device)
    finally:
        native.switch(True)


def test_nothing_is_left_of_a_call(interrupted: Interrupted) -> None:
    """A few bytecodes of each call, others in each place of the table."""
    found = list[str]()
    for i, name in enumerate(interrupted.calls):
        found += interrupted.sweep(name, 7 * i % min(STEP, 97), STEP)
    assert not found
