"""Random kernels do what their Python does, thread by thread, on every device; on the CPU device
whatever is kept once for all threads, and in whatever order these come.

NUMBASYNC_KERNELS=1000 tries so many; `python -m tests.stress.many_kernels` does it faster.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync import testing
from tests.backend_cpu.random_kernels import GRID, RandomKernel
from tests.backend_cpu.threads_in_turn import Kernel, keys_of
from tests.common import full
from tests.stress.many_kernels import outcome

COUNT = int(os.environ.get("NUMBASYNC_KERNELS", "0"))
SEEDS: list[Any] = list(range(COUNT)) if COUNT else [1, 2, 3, *map(full, range(4, 40))]


def _launched(random: RandomKernel) -> np.ndarray:
    z, far, made, *args = random.arguments()
    outputs = [na.from_host(array).sync() for array in (z, far, made)]
    kernel = na.launcher(random.compiled())
    kernel[GRID, random.block, 0, random.dynamic_bytes](*outputs, *args).sync()
    return np.asarray(outputs[0].to_host().sync())


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("seed", SEEDS)
def test_kernels_do_what_their_python_does(seed: int) -> None:
    random = RandomKernel(seed, may_return=False)  # which the CPU device tells as a mistake
    np.testing.assert_array_equal(_launched(random), random.expected(), random.source)


@pytest.mark.usefixtures("cpu")
@pytest.mark.parametrize("seed", [101, *map(full, range(102, 108))])
def test_nothing_hangs_on_what_is_kept_once(seed: int) -> None:
    random = RandomKernel(seed)
    for options in ({}, {"apart": True}, {"turn_loops": False}):
        found = outcome(random, options)
        np.testing.assert_array_equal(found, random.expected(), random.source)


@pytest.mark.usefixtures("cpu")
@pytest.mark.parametrize("seed", [*map(full, range(201, 207))])
def test_the_front_end_alone(seed: int) -> None:
    """Before it is cut, with a greenlet for each thread."""
    random = RandomKernel(seed, may_return=False)
    args = random.arguments()
    kernel = Kernel(random.compiled(), keys_of(args))
    kernel.launch(GRID, random.block, *args, dynamic_bytes=random.dynamic_bytes)
    np.testing.assert_array_equal(args[0], random.expected(), random.source)


@pytest.mark.parametrize("seed", [301, *map(full, range(302, 308))])
def test_the_order_of_threads_does_not_matter(cpu: na.Device, seed: int) -> None:
    """Nor is any of them in a race, or reads what is not written."""
    random = RandomKernel(seed, may_return=False)
    for order in ("reverse", "shuffled"):
        with testing.checked(cpu, order, seed):
            found = _launched(random)
        np.testing.assert_array_equal(found, random.expected(), random.source)
