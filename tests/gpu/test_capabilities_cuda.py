"""A kernel whose operations the GPU does not have, on a GPU that says it is an older one."""

from __future__ import annotations

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync import tensor_cores as tc
from numbasync.errors import UnsupportedKernelError

pytestmark = pytest.mark.cuda
TILES = na.shared_layout(a=tc.tile(np.float16, (64, 64)), b=tc.tile(np.float16, (64, 64)))


@na.launcher
@cuda.jit
def by_a_warpgroup(out: na.KernelOutput):
    sums = tc.wgmma(tc.accumulator(16, 64), TILES.a, (0, 0), TILES.b, (0, 0), 0, 64)
    tc.store(out, (0, 0), tc.wgmma_wait(sums, 0))


def test_an_operation_that_the_device_lacks(
    device: na.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = na.zeros((64, 64)).sync()
    with monkeypatch.context() as older:
        older.setattr(cuda.get_current_device(), "compute_capability", (8, 6))
        with pytest.raises(
            UnsupportedKernelError, match=r"line \d+: tensor_cores.wgmma needs.*8.6"
        ):
            by_a_warpgroup[1, 128](out).sync()
    if device.limits.tensor_cores == "warpgroups":  # the refusal is not kept
        by_a_warpgroup[1, 128](out).sync()
