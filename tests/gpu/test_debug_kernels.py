"""Exceptions of `debug=True` kernels on a GPU: copied behind the kernel, not waited for."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import KernelError
from tests.common import waited

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning"),
]


def test_an_exception_in_a_debug_kernel_is_raised(device: na.Device) -> None:
    @na.launcher(debug=True, opt=False)
    def divide(z: na.KernelOutput, by):
        z[0] = 1 // by

    z = na.zeros(1, np.int64).sync()
    with pytest.raises(KernelError, match=r"block \(0, 0, 0\), thread \(0, ") as seen:
        divide[1, 1](z, 0).sync()
    assert isinstance(seen.value.__cause__, ZeroDivisionError)
    divide[1, 1](z, 1).sync()
    assert z.to_host().sync()[0] == 1


def test_a_debug_kernel_is_launched_without_waiting(device: na.Device) -> None:
    """Each launch gets its own exception, also when two streams use the kernel."""

    @na.launcher(debug=True, opt=False)
    def divide(z: na.KernelOutput, by, at):
        if cuda.grid(1) == at:
            z[0] = 1 // by

    za, zb = na.zeros(1, np.int64).sync(), na.zeros(1, np.int64).sync()
    divide[2, 32](za, 1, 40).sync()
    one, two = device.new_stream(), device.new_stream()

    async def main() -> list[object]:
        futures = [
            na.spawn(divide[2, 32](za, 0, 40), one),
            na.spawn(divide[2, 32](zb, 1, 40), two),
            na.spawn(divide[2, 32](za, 0, 7), one),
        ]
        return await asyncio.gather(*map(waited, futures), return_exceptions=True)

    first, second, third = na.run(main())
    assert "block (1, 0, 0), thread (8, 0, 0)" in str(first)
    assert not isinstance(second, BaseException) and zb.to_host().sync()[0] == 1
    assert "block (0, 0, 0), thread (7, 0, 0)" in str(third)


def test_a_debug_kernel_that_numba_launches_raises_too(device: na.Device) -> None:
    @na.launcher(debug=True, opt=False)
    def divide(z: na.KernelOutput, pair):
        z[0] = 1 // pair[0]

    z = na.zeros(1, np.int64).sync()
    with pytest.raises(KernelError, match="kernel divide"):
        divide[1, 1](z, (0, 2)).sync()
