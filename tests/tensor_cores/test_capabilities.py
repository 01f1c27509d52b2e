"""Operations that a GPU does not have are refused before its assembler sees them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync import tensor_cores as tc
from numbasync.backend.cpu.target import functions
from numbasync.backend.cpu.target.refusals import check
from numbasync.backend.declared_signatures import type_of
from numbasync.backend.protocols import ArrayKey
from numbasync.errors import UnsupportedKernelError
from numbasync.tensor_cores.capabilities import OF_MAPS, OF_WARPGROUPS, OF_WARPS

TILES = na.shared_layout(
    a=tc.tile(np.float16, (64, 64)), b=tc.tile(np.float16, (64, 64)), full=tc.barriers(1)
)
KEY = ArrayKey("<f4", 2, "C")


@pytest.mark.parametrize(
    ("need", "capabilities"),
    [(OF_WARPS, [(8, 0), (8, 6), (9, 0), (10, 0), (12, 0)]), (OF_MAPS, [(9, 0), (10, 0), (12, 0)]),
     (OF_WARPGROUPS, [(9, 0)])],
)  # fmt: skip
def test_which_capabilities_have_an_operation(need: Any, capabilities: list[Any]) -> None:
    every = [(7, 0), (7, 5), (8, 0), (8, 6), (9, 0), (10, 0), (12, 0)]
    assert [c for c in every if need.refusal("mma", c) is None] == capabilities


@cuda.jit(device=True)
def of_a_warpgroup(sums):
    sums = tc.wgmma(sums, TILES.a, (0, 0), TILES.b, (0, 0), 0, 64)
    return tc.wgmma_wait(sums, 0)


@cuda.jit
def by_warpgroups(out):
    tc.store(out, (0, 0), of_a_warpgroup(tc.accumulator(16, 64)))


@cuda.jit
def by_warps(out):
    left, right = tc.load_a(TILES.a, (0, 0), 16), tc.load_b(TILES.b, (0, 0), 16)
    tc.store(out, (0, 0), tc.mma(tc.accumulator(16, 16), left, right))


@cuda.jit
def with_barriers(out):
    tc.barrier_init(TILES.full, 0, 1)
    out[0, 0] = 1


WARPGROUPS = False


@cuda.jit
def as_the_program_says(out):
    if WARPGROUPS:
        tc.store(out, (0, 0), of_a_warpgroup(tc.accumulator(16, 64)))
    else:
        tc.store(out, (0, 0), tc.accumulator(16, 64))


@pytest.mark.parametrize(
    ("kernel", "capability", "told"),
    [
        (by_warpgroups, (9, 0), None),
        (by_warpgroups, (8, 6),
         r"wgmma needs compute capability 9.0, and no other, .* has 8.6.\nWrite .*mma"),
        (by_warpgroups, (12, 0), r"wgmma needs compute .* has 12.0"),
        (by_warps, (8, 0), None),
        (by_warps, (7, 5), r"load_a needs compute capability 8.0 or higher .* 7.5.\nWrite"),
        (with_barriers, (8, 9), r"barrier_init needs .* 9.0 or higher .* 8.9.\nWrite .*copy_rows"),
        (as_the_program_says, (8, 6), None),
    ],
)  # fmt: skip
def test_kernels(
    monkeypatch: pytest.MonkeyPatch, kernel: Any, capability: Any, told: str | None
) -> None:
    """The front end stands for a GPU's compiler, which calls the same operations."""
    monkeypatch.setattr(functions, "_CAPABILITY", capability)
    kinds = [type_of(KEY)]
    if told is None:
        check(kernel.py_func, kinds)
        return
    expected = rf"^kernel {kernel.__name__}, line \d+: tensor_cores.{told}"
    with pytest.raises(UnsupportedKernelError, match=expected):
        check(kernel.py_func, kinds)
