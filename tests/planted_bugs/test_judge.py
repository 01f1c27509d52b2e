"""The judge by numba-cuda's tests: every kind of argument, and what becomes of each launch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from enum import IntEnum

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.cpu_cuda import launches
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
    with na.cuda_on_cpu():
        for record in (plain[0], plain.view(np.recarray)[0]):
            all_kinds[1, 8](z, record, (x, 10), Factor.TWO, np.int64(50))
            assert z.tolist() == [103, 113, 123, 133]
            z[:] = 0


@pytest.fixture
def _notes() -> Iterator[None]:
    yield
    for names in (launch.launched, launch.attempts, launch.refused):
        names.clear()


@pytest.mark.usefixtures("_notes")
@pytest.mark.parametrize("debug", [False, True], ids=["plain", "debug"])
def test_what_becomes_of_a_launch(debug: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "launch", launch.noted(launches.launch))

    def stop(z):
        if z[0] == 0:
            raise ValueError("at zero")

    def unknown(z):
        z[0] = z.nothing

    with na.cuda_on_cpu():
        stops, refused = cuda.jit(debug=debug, opt=not debug)(stop), cuda.jit(unknown)
        stops[1, 1](np.ones(1))
        said = pytest.raises(ValueError, match=r"ctaid=\[0, 0, 0\]: at zero$")
        with said if debug else nullcontext():
            stops[1, 1](np.zeros(1))  # without debug=True a GPU drops it
        with pytest.raises(Exception, match="nothing"):
            refused[1, 1](np.ones(1))
    assert launch.attempts == ["stop", "stop", "unknown"]
    assert launch.launched == ["stop", "stop"] and launch.refused == ["unknown"]
