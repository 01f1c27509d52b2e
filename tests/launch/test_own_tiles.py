"""`tile=` of a launcher: an output that is passed whole is cut by it, in any number of tiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import LauncherError, LaunchError
from numbasync.launch import own_tiles
from tests.common import host

ROWS = 3  # of a block


def counted(tile: Any = (ROWS, None)) -> na.Launcher[Any]:
    """A kernel that gives each element its block's number, plus one."""

    @na.launcher(tile=tile, threads=32, axes=(1, 0))
    def numbered(out: na.KernelOutput) -> None:
        along_y = cuda.blockIdx.y + cuda.gridDim.y * cuda.blockIdx.z
        block = cuda.blockIdx.x + cuda.gridDim.x * along_y
        for row in range(block * ROWS, min((block + 1) * ROWS, out.shape[0])):
            for column in range(cuda.threadIdx.x, out.shape[1], cuda.blockDim.x):
                out[row, column] = block + 1

    return numbered


@pytest.fixture(scope="module")
def numbered() -> na.Launcher[Any]:
    return counted()


def check(kernel: Callable[[na.Tensor], na.DeviceOp[Any]], rows: int = 10) -> None:
    out = na.zeros((rows, 40)).sync()
    kernel(out).sync()
    np.testing.assert_array_equal(host(out)[:, 0], np.arange(rows) // ROWS + 1)
    assert (host(out) == host(out)[:, :1]).all()


def unpickled(kernel: na.Launcher[Any]) -> na.Launcher[Any]:
    """As another process gets it that unpickles it by value: made of the options alone."""
    return na.Launcher(*kernel.Result._made_of)


def test_every_form_of_the_launcher_has_the_tile(
    device: na.Device, numbered: na.Launcher[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBASYNC_CACHE_DIR", str(tmp_path))
    assert numbered.explain(na.meta((10, 40))).grid == (1, 4, 1)
    check(numbered)
    check(lambda out: numbered.prepare(out)())
    tuned: Any = na.autotune(numbered, [{"threads": 64}, {"threads": 128}])
    check(tuned)
    there = unpickled(numbered)
    assert there is not numbered and there.explain(na.meta((10, 40))).grid == (1, 4, 1)
    check(there)
    check(lambda out: there.prepare(out)())
    check(lambda out: numbered(out.partition((ROWS, 40))))


def test_many_tiles_along_y_lie_in_a_row(
    device: na.Device, numbered: na.Launcher[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = replace(device.limits, max_grid=(2**31 - 1, 8, 8))
    monkeypatch.setattr(device, "limits", limits)
    kernel = unpickled(numbered)
    assert kernel.explain(na.meta((8 * ROWS + 1, 40))).grid == (9, 1, 1)
    check(kernel, 8 * ROWS + 1)


@pytest.mark.parametrize(
    "wrong",
    [0, -1, (4, 0), (1, 2, 3, 4), (), "4", (4, "all"), 2.5, True, (4.0, None), {}],
    ids=repr,
)
def test_wrong_tiles_are_refused(wrong: Any) -> None:
    with pytest.raises(LauncherError, match=r"numbered: tile= is .*or None for all of an axis"):
        counted(wrong)


def test_tiles_that_contradict_something_are_refused() -> None:
    with pytest.raises(LauncherError, match=r"tile=4 has 1 axes, and axes=\(1, 0\) has 2: write"):
        counted(4)
    with pytest.raises(LaunchError, match=r"tile=\(3, None\) has 2 axes, the output has 1"):
        own_tiles.grid_of((5,), (ROWS, None), (1, 0), "k")
    with pytest.raises(LauncherError, match=r"cut is a na\.Tile, .*leave tile= out"):

        @na.launcher(tile=4)
        def marked(cut: na.Tile) -> None:
            cut[cuda.threadIdx.x] = 1


def test_one_number_is_the_tile_of_one_axis(device: na.Device) -> None:
    @na.launcher(tile=4, threads=4)
    def numbered(out: na.KernelOutput) -> None:
        i = cuda.blockIdx.x * 4 + cuda.threadIdx.x
        if i < out.shape[0]:
            out[i] = cuda.blockIdx.x

    out = na.zeros(10).sync()
    numbered(out).sync()
    assert host(out).tolist() == [0] * 4 + [1] * 4 + [2] * 2
