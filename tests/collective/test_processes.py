"""Collectives of a group of processes, each with a CPU device."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.collective import Communicator, GroupKey, group_ops, new_key
from numbasync.errors import (
    CallerError,
    CollectiveTimeoutError,
    DTypeError,
    NotAGraphNodeError,
    ShapeError,
    StateError,
)
from tests.collective.ranks import Processes, part

SIZE = 3


@pytest.fixture(scope="module")
def processes() -> Any:
    processes = Processes(SIZE, "cpu")
    yield processes
    processes.end()


def test_results_are_numpys_in_order_of_ranks(processes: Processes) -> None:
    parts, large = ([part(r, n) for r in range(SIZE)] for n in (6, 2_000_001))
    wide, narrow, bits = ([part(r, 6, kind) for r in range(SIZE)] for kind in ("c16", "c8", "?"))
    rows = len(parts[0]) // SIZE
    for rank, got in enumerate(processes.results_of("everything")):
        expected = [
            (parts[0] + parts[1]) + parts[2],
            (large[0] + large[1]) + large[2],
            np.maximum.reduce(parts)[rank * rows : (rank + 1) * rows],
            np.concatenate(parts),
            parts[1],
            np.zeros((0, 3), np.float32),
            (wide[0] + wide[1]) + wide[2],
            (((wide[0] + wide[1]) + wide[2]).view("f8") / SIZE).view("c16"),
            (narrow[0] * narrow[1]) * narrow[2],
            np.logical_or.reduce(bits),
            np.logical_and.reduce(bits),
            bits[1],
            np.concatenate(narrow),
        ]
        for value, right in zip(got, expected, strict=True):
            np.testing.assert_array_equal(value, right)


def test_many_at_once_run_in_starting_order(processes: Processes) -> None:
    parts = [part(r, 40) for r in range(SIZE)]
    whole = ((parts[0] + parts[1]) + parts[2]).reshape(20, 2).tolist()
    assert processes.results_of("in_a_row") == [[*whole, [1.0] * 3]] * SIZE


def test_sends_and_receives_at_the_same_time(processes: Processes) -> None:
    assert processes.results_of("both_ways") == [2.0, 0.0, 1.0]


def test_an_absent_process_fails_the_others_in_time(processes: Processes) -> None:
    first, second, _ = processes.results_of("one_is_late", timeout=3.0)
    assert "rank 2 has not called the same in 3.0 s" in first
    assert "rank 2 has not called the same" in second


def test_processes_that_call_different_collectives(processes: Processes) -> None:
    got = processes.results_of("one_differs")
    assert all("has called another collective, or with another dtype, shape" in e for e in got)


def test_a_dying_process_fails_the_others_at_once(processes: Processes) -> None:
    """The second time, too: the group is broken. Last: it ends a process of the fixture."""
    got = processes.results_of("one_dies", lost=1)
    for errors in got[:2]:
        assert len(errors) == 2 and all("rank 2 has ended" in error for error in errors)


# --- one process, a group of one ---


@pytest.fixture
def alone(device: na.Device) -> Any:
    with Communicator(new_key(1), 0, device, 1.0) as comm:
        yield comm


def test_a_group_of_one(alone: Communicator, stream: na.Stream) -> None:
    t = na.from_host(part(0)).sync_on(stream)
    for op in (
        group_ops.all_reduce(t, "avg", alone),
        group_ops.reduce_scatter(t, "prod", alone),
        group_ops.all_gather(t, alone),
        group_ops.broadcast(t, 0, alone),
    ):
        np.testing.assert_array_equal(op.sync_on(stream).to_host().sync_on(stream), part(0))
    assert repr(alone).startswith("<Communicator rank 0 of 1, ")


def test_what_is_wrong_is_refused(alone: Communicator, stream: na.Stream) -> None:
    t, whole = na.ones((3, 2)).sync_on(stream), na.ones(3, np.int32).sync_on(stream)
    with pytest.raises(CallerError, match="one of sum, prod, min, max, avg, not 'mean'"):
        group_ops.all_reduce(t, "mean", alone)
    with pytest.raises(DTypeError, match="avg of elements of int32"):
        group_ops.all_reduce(whole, "avg", alone)
    for op in ("min", "max"):
        with pytest.raises(DTypeError, match="complex numbers have no order"):
            group_ops.all_reduce(na.ones(3, "c8").sync_on(stream), op, alone)
    with pytest.raises(CallerError, match="ranks 0 to 0, and not 1"):
        group_ops.broadcast(t, 1, alone)
    with pytest.raises(CallerError, match="rank 0 is this process itself"):
        group_ops.send(t, 0, alone)
    with pytest.raises(ShapeError, match="a scalar has not"):
        group_ops.all_gather(t[0, 0], alone)
    with pytest.raises(NotAGraphNodeError, match="no replay can do"):
        group_ops.all_reduce(t, "sum", alone).graph_on(stream)
    with pytest.raises(TypeError, match="Pickle the key"):
        pickle.dumps(alone)
    alone.close()
    with pytest.raises(StateError, match="connect again, with a new key"):
        group_ops.all_reduce(t, "sum", alone)


def test_a_communicator_that_cannot_be(device: na.Device, tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="ranks of a group, is 0"):
        new_key(0)
    key = new_key(2)
    with pytest.raises(CallerError, match="ranks 0 to 1, not 2"):
        Communicator(key, 2, device)
    with pytest.raises(CallerError, match="positive number of seconds, not 0"):
        Communicator(key, 0, device, 0)
    with pytest.raises(CallerError, match=r"key of na.collective.new_key, not 'key'"):
        Communicator("key", 0, device)  # type: ignore[arg-type]
    with pytest.raises(CollectiveTimeoutError, match=r"ranks \[1\] of 2 have not connected in"):
        Communicator(key, 0, device, 0.05)
    with pytest.raises(CollectiveTimeoutError, match="has not reached rank 0 in"):
        Communicator(GroupKey(str(tmp_path), 2), 1, device, 0.05)
