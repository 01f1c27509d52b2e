"""The kernels by which GPUs compute formulas, run by the CPU device: the bits that NumPy gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync import dtypes
from numbasync.backend import formulas
from numbasync.backend.cuda.formula_kernels import THREADS, call_of, kernel_of
from tests.common import host

KEY = (12_631_478_326_263_854_183, 4_464_650_224_815_488_352)
N = 5003  # no multiple of what a thread computes


@pytest.mark.parametrize(
    ("formula", "dtype"),
    [
        (formulas.Normal(KEY, 1.5, 2.0), np.float64),
        (formulas.Uniform(KEY), np.float64),
        (formulas.Uniform(KEY), np.float32),
        (formulas.Integers(-3, 7), np.int64),
        (formulas.Floats(0.1, 0.3, 7.0), np.float32),
        (formulas.Floats(-2.5, 0.7), np.uint8),
        (formulas.Floats(-2.5, 0.7), dtypes.of_name("bfloat16")),
        (formulas.Diagonal(8, 5), np.float32),
    ],
)
def test_kernels_give_numpys_bits(formula: Any, dtype: Any) -> None:
    want = np.empty(N, dtype)
    formula.write(want)
    call = call_of(formula, want.dtype, N)
    arguments = [kind(a) if type(a) is int else a for kind, a in zip(
        [np.uint64 if str(t) == "uint64" else np.int64 for t in call.types], call.arguments,
        strict=True,
    )]  # fmt: skip
    kernel = na.launcher(kernel_of(call, want.dtype))
    blocks = -(-N // (THREADS * call.per_thread))
    with na.use_device(na.devices("cpu")[0]):
        z = kernel[blocks, THREADS](na.zeros(N, dtype), *arguments).output().sync()
        assert host(z).tobytes() == want.tobytes()
