"""Random kernels whose names take values of many types: run as loops over the threads of a block,
they give the bits that they give a thread at a time. NUMBASYNC_KERNELS=1000 tries so many.
"""

from __future__ import annotations

import os
import warnings

import numpy as np
import pytest
from numba.cuda.core.errors import TypingError

from tests.backend_cpu.run_regions import Blocks
from tests.backend_cpu.threads_in_turn import Kernel, keys_of
from tests.backend_cpu.typed_kernels import arguments, written
from tests.common import full

pytestmark = pytest.mark.usefixtures("cpu")

COUNT = int(os.environ.get("NUMBASYNC_KERNELS", "0"))
SEEDS = range(COUNT) if COUNT else [3, 40, *map(full, range(41, 52))]
THREADS = 40


@pytest.mark.parametrize("seed", SEEDS)
def test_threads_give_the_same_bits_in_loops(seed: int) -> None:
    kernel, given = written(seed), arguments(2 * THREADS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            by_threads = Kernel(kernel, keys_of(given))
        except TypingError as refusal:  # as numba-cuda refuses it
            if "unif" in str(refusal):  # a name has types that have nothing in common
                return
            raise
        by_threads.launch(2, THREADS, *given)
        for options in ({}, {"apart": True}):
            others = arguments(2 * THREADS)
            Blocks(kernel, tuple(others), **options).launch(2, THREADS, *others)
            np.testing.assert_array_equal(others[0].view(np.int64), given[0].view(np.int64))
