"""bfloat16 on a GPU: how it is passed and lent. Tensors, kernels and batches of it have tests for
every device, which `--device cuda` runs there.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.backend import array_protocols
from numbasync.errors import DTypeError
from tests.common import host
from tests.libraries import torch_library

pytestmark = [
    pytest.mark.cuda(min_cc=(8, 0)),
    pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning"),
]
BF16: Any = np.dtype(ml_dtypes.bfloat16)


@na.launcher
@cuda.jit
def scaled(z: na.KernelOutput, x: na.KernelInput, by):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = x[i] * by


def test_a_number_is_packed_beside_others(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def put(z: na.KernelOutput, a, b, c, d):
        z[0] = a
        z[1] = b
        z[2] = c
        z[3] = d

    z = na.zeros(4, np.float64).sync()
    for k in range(3):  # the second call of the same types is a fast one
        number = ml_dtypes.bfloat16(k - 0.5)
        put[1, 1](z, np.int8(3), number, True, 2.5).sync()
        assert host(z).tolist() == [3, k - 0.5, 1, 2.5]
    variants: list[Any] = list(put.planner.kernel._variants.values())
    assert [v.packed for v in variants] == [True]


def test_a_cooperative_kernel_takes_no_number_of_it(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def together(z: na.KernelOutput, a):
        cuda.cg.this_grid().sync()
        z[0] = a

    z = na.zeros(1, np.float64).sync()
    with pytest.raises(DTypeError, match=r"number of bfloat16.*\n.*np\.float32"):
        together[1, 1](z, ml_dtypes.bfloat16(1)).sync()


def test_it_is_lent_by_dlpack_alone(device: na.Device) -> None:
    t = na.ones((4, 6), BF16).sync()
    assert not hasattr(t, "__cuda_array_interface__")
    with pytest.raises(AttributeError, match=r"no __cuda_array_interface__.*\n.*from_dlpack"):
        t.__cuda_array_interface__  # noqa: B018
    assert t.reinterpret(np.uint16).__cuda_array_interface__["typestr"] == "<u2"

    class Reader:
        def __dlpack__(self, **how: Any) -> Any:
            return t[1:, ::2].__dlpack__(max_version=how.get("max_version"))

    export = array_protocols.read_dlpack(Reader())
    assert (export.dtype, export.shape, export.strides) == (BF16, (3, 3), (12, 4))


def test_tensors_of_pytorch_and_back(device: na.Device) -> None:
    torch_library()
    torch = pytest.importorskip("torch")
    x = torch.arange(256, device="cuda").to(torch.bfloat16) / 7
    t = na.as_tensor(x)
    assert t.dtype == BF16 and t.storage.memory.address == x.data_ptr()
    z = na.zeros(256, BF16).sync()
    scaled(z, x, ml_dtypes.bfloat16(1.5)).sync()
    scaled(t, z, ml_dtypes.bfloat16(2)).sync()
    y = torch.from_dlpack(z)
    assert y.dtype is torch.bfloat16 and y.data_ptr() == z.storage.memory.address
    want = (torch.arange(256).to(torch.bfloat16) / 7).to(torch.bfloat16) * 1.5
    assert torch.equal(y.cpu(), want) and torch.equal(x.cpu(), want * 2)
    y += 1
    again = na.as_tensor(y)
    assert again.storage is z.storage
    np.testing.assert_array_equal(host(again).astype(np.float32), (want + 1).float().numpy())
