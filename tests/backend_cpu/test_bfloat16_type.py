"""What numba-cuda's compiler gets of bfloat16 from numbasync, as far as is seen without a GPU."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numba import cuda, njit
from numba.core.target_extension import target_override

from numbasync.backend import bfloat16_type
from numbasync.backend.cpu.compiler import numba_cuda
from numbasync.backend.cpu.library.entry_points import types
from numbasync.backend.cpu.library.small_floats import emitted

number: Any = ml_dtypes.bfloat16
bfloat16: Any = cuda.types.bfloat16
TENTH: Any = number(0.1)


def loaded(z: Any, x: Any) -> None:
    z[0] = np.float32(x[0])


def stored(z: Any, x: Any) -> None:
    x[0] = z[0]
    x[1] = number(z[1])
    x[2] = bfloat16(z[2])
    x[3] = TENTH


def shared(z: Any, x: Any) -> None:
    own = cuda.shared.array(4, bfloat16)
    own[0] = x[0]
    cuda.syncthreads()
    z[0] = own[0] if own[0] else own[1]


def added(z: Any, x: Any) -> None:
    x[0] += x[1]


@pytest.mark.parametrize("kernel", [loaded, stored, shared, added])
def test_loads_stores_and_casts_call_no_cpp(kernel: Any) -> None:
    """Else Numba keeps no kernel of a batch, and none with `cache=True`, on disk."""
    arrays = types.float32[::1], types.Array(bfloat16, 1, "C")
    with target_override("cuda"), numba_cuda._for_any_gpu():
        library = numba_cuda._compiled(kernel, arrays, types.void).library
    assert bool(library._linking_files) == (kernel is added)


def test_casts_round_as_ml_dtypes() -> None:
    narrow = emitted(types.uint16, (types.float32,), bfloat16_type.rounded)
    wide = emitted(types.float32, (types.uint16,), bfloat16_type.widened)

    @njit
    def both(bits, x, values, z):  # type: ignore[no-untyped-def]
        for i in range(x.size):
            bits[i] = narrow(x[i])
        for i in range(values.size):
            z[i] = wide(values[i])

    every = np.arange(2**16, dtype=np.uint16)
    ends = every.astype(np.uint32) << 16
    words = np.concatenate([ends, ends | 0x7FFF, ends | 0x8000, ends | 0x8001])
    x, bits, z = (
        words.view(np.float32),
        np.zeros(words.size, np.uint16),
        np.zeros(2**16, np.float32),
    )
    both(bits, x, every, z)
    is_nan = np.isnan(x)
    with np.errstate(all="ignore"):
        want = x.astype(number).view(np.uint16)
    np.testing.assert_array_equal(bits[~is_nan], want[~is_nan])
    assert (bits[is_nan] == 0x7FFF).all()
    np.testing.assert_array_equal(z.view(np.uint32), ends)
