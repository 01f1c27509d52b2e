"""Random indices: checks before the loop over threads find what checks in it find."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.backend_cpu import indexed_kernels
from tests.backend_cpu.run_regions import Blocks, RecordError


def _outcome(blocks: Blocks, block: Any, x: np.ndarray, P: np.ndarray, n: int, m: int) -> Any:
    z = np.zeros(300, np.int64)
    try:
        blocks.launch(2, block, z, x, P, n, m)
    except RecordError as e:
        return e.kind, e.site, e.numbers, e.block, e.thread
    return z.tolist()


@pytest.mark.full
@pytest.mark.parametrize("seed", range(16), ids="seed={}".format)
def test_hoisted_checks_find_what_inner_checks_find(seed: int) -> None:
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
