"""Arrays that a kernel allocates, where Numba says that kernels may."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import cuda
from numba.cuda import config

import numbasync as na
from numbasync.errors import KernelCompileError, OutOfBoundsError
from numbasync.testing import checked

pytestmark = pytest.mark.usefixtures("cpu")
TABLE = np.array([3, 1, 2])[::-1]


@pytest.fixture
def _allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CUDA_ENABLE_NRT", True)


@cuda.jit(device=True)
def filled(n, value):  # type: ignore[no-untyped-def]
    made = np.empty(n)
    made[:] = value
    return made


def allocates(out, x, n):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < out.size:
        kept = np.zeros(n)
        turn = kept
        for j in range(3):  # of which the last is kept
            turn = filled(n + j, x[i])
        cuda.syncthreads()
        table = TABLE.copy()
        table[0] += i
        out[i] = turn.sum() + np.max(turn) + kept[n - 1] + table[0]


def launched(kernel: Any, n: int = 4) -> tuple[np.ndarray, np.ndarray]:
    x = np.arange(64.0)
    out = na.zeros(64, np.float64).sync()
    kernel[1, 64](out, x, n).sync()
    return out.to_host().sync(), x * (n + 3) + 2 + x


def made() -> Any:
    return na.launcher(cuda.jit(allocates))


@pytest.mark.usefixtures("_allowed")
def test_kernels_allocate_arrays() -> None:
    kernel = made()
    np.testing.assert_array_equal(*launched(kernel))
    with checked(na.devices("cpu")[0]):
        np.testing.assert_array_equal(*launched(kernel, 5))


@pytest.mark.usefixtures("_allowed")
def test_indices_of_allocated_arrays_are_checked() -> None:
    def past_the_end(z, n):
        a = np.zeros((n, 2))
        a[n, 1] = z[0]

    with pytest.raises(OutOfBoundsError, match="index 3 is out of bounds for axis 0 of a"):
        na.launcher(cuda.jit(past_the_end))[1, 1](na.zeros(1), 3).sync()


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for the process's memory")
@pytest.mark.usefixtures("_allowed")
def test_memory_is_given_back_with_the_last_reference() -> None:
    def resident() -> int:
        pages: Any = Path("/proc/self/statm").read_text().split()[1]
        return int(pages) * 4096

    kernel = made()
    launched(kernel, 1000)
    before = resident()
    for _ in range(100):
        launched(kernel, 1000)  # which allocates 2 MB
    assert resident() - before < 100e6


def test_the_message_says_which_setting_to_write() -> None:
    with pytest.raises(KernelCompileError, match=r"allocates an array\..*NUMBA_CUDA_ENABLE_NRT=1"):
        launched(made())
