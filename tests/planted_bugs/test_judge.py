"""The judge passes to the CPU device what a launch would pass."""

from __future__ import annotations

from enum import IntEnum
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from tests.numba_suite import launch

RECORD = np.dtype([("a", np.float32), ("b", np.int32)])


class Factor(IntEnum):
    TWO = 2


@cuda.jit
def all_kinds(z, record, pair, factor, number):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = record.a + record.b + pair[0][i] * pair[1] + factor * number


def test_every_kind_of_argument() -> None:
    z, x = np.zeros(4, np.float32), np.arange(4, dtype=np.float32)
    plain = np.array([(1, 2)], RECORD)
    for record in (plain[0], plain.view(np.recarray)[0]):
        arguments: list[Any] = [z, record, (x, 10), Factor.TWO, np.int64(50)]
        setup = SimpleNamespace(griddim=(1, 1, 1), blockdim=(8, 1, 1), sharedmem=0)
        launch.call(all_kinds, arguments, setup)
        assert z.tolist() == [103, 113, 123, 133]
        z[:] = 0


class Rows(NamedTuple):
    x: Any
    scale: int


@cuda.jit
def of_names_and_times(z, rows, begin):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = begin + rows.x[i] * rows.scale


def test_named_tuples_and_times() -> None:
    z, begin = np.zeros(4, "M8[D]"), np.datetime64("2026-01-01")
    days = np.arange(4).astype("m8[D]")
    setup = SimpleNamespace(griddim=(1, 1, 1), blockdim=(8, 1, 1), sharedmem=0)
    launch.call(of_names_and_times, [z, Rows(days, 2), begin], setup)
    assert z.tolist() == [begin.item() + 2 * day.item() for day in days]
