"""Random kernels by their regions: as with values of each thread's own, and thread by thread."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.backend_cpu import divergent_kernels, indexed_kernels
from tests.backend_cpu.run_regions import Blocks, RecordError
from tests.backend_cpu.threads_in_turn import Kernel, keys_of
from tests.common import full

BLOCKS: tuple[Any, ...] = ((64,), (70,), (20,), (16, 4))


def _run(kernel: Any, block: tuple[int, ...], **options: Any) -> np.ndarray:
    size = math.prod(block)
    x = np.random.default_rng(size).integers(0, 1000, 2 * size)
    out = np.zeros((2 * size, divergent_kernels.COLUMNS), np.int64)
    if options.get("thread_by_thread"):
        Kernel(kernel, keys_of((out, x, 3))).launch(2, block, out, x, 3)
    else:
        Blocks(kernel, (out, x, 3), **options).launch(2, block, out, x, 3)
    return out


SEEDS = [5, *(full(seed) for seed in range(24) if seed != 5)]


@pytest.mark.parametrize("seed", SEEDS, ids="seed={}".format)
def test_what_is_called_uniform_is(seed: int) -> None:
    """Bit for bit as with a value of each thread's own, whatever the analysis says."""
    kernel = divergent_kernels.make_kernel(seed, bool(seed & 1), bool(seed & 2))
    block = BLOCKS[seed // 4 % 4]
    found = _run(kernel, block)
    np.testing.assert_array_equal(found, _run(kernel, block, apart=True))


@pytest.mark.full
@pytest.mark.parametrize("seed", range(100, 112), ids="seed={}".format)
def test_threads_one_by_one_give_the_same(seed: int) -> None:
    kernel = divergent_kernels.make_kernel(seed, has_warps=bool(seed & 1))
    block = BLOCKS[seed // 2 % 4]
    judged = _run(kernel, block, thread_by_thread=True)
    np.testing.assert_array_equal(_run(kernel, block), judged)


def _outcome(blocks: Blocks, block: Any, x: np.ndarray, P: np.ndarray, n: int, m: int) -> Any:
    z = np.zeros(300, np.int64)
    try:
        blocks.launch(2, block, z, x, P, n, m)
    except RecordError as e:
        return e.kind, e.site, e.numbers, e.block, e.thread
    return z.tolist()


@pytest.mark.full
@pytest.mark.parametrize("seed", range(16), ids="seed={}".format)
def test_checks_before_the_loop_find_what_checks_in_it_find(seed: int) -> None:
    has_rows = seed % 3 == 2
    kernel = indexed_kernels.make_kernel(seed, has_rows)
    x = np.random.default_rng(seed).integers(0, 9, 128)
    P = np.arange(64 * 70).reshape(64, 70)
    block = (64, 2) if has_rows else 64
    args = (np.zeros(300, np.int64), x, P, 5, 3)
    before = Blocks(kernel, args, row=not has_rows)
    inside = Blocks(kernel, args, apart=True)
    assert not inside.code.notes["hoisted"]
    for n, m in ((5, 3), (1, 0), (40, 70), (64, 64), (0, -1), (-3, 47), (30, 2)):
        for size in (128, 100, 64):
            found = _outcome(before, block, x[:size].copy(), P, n, m)
            assert found == _outcome(inside, block, x[:size].copy(), P, n, m), (n, m, size)
