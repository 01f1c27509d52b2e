"""What numba-cuda's compiler gets of bfloat16 from numbasync, as far as is seen without a GPU."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numba import cuda, njit
from numba.core.target_extension import target_override
from numba.cuda import compiler
from numba.cuda.cudadrv import nvvm
from numba.cuda.descriptor import cuda_target

from numbasync.backend import bfloat16_type
from numbasync.backend.cpu.library.options import emitted, types

number: Any = ml_dtypes.bfloat16
bfloat16: Any = cuda.types.bfloat16
TENTH: Any = number(0.1)


_compiler: Any = compiler


class _Layout:
    """The part of NVVM that Numba uses while it generates LLVM's code."""

    data_layout = (
        "e-p:64:64:64-i1:8:8-i8:8:8-i16:16:16-i32:32:32-i64:64:64-i128:128:128-f32:32:32-"
        "f64:64:64-v16:16:16-v32:32:32-v64:64:64-v128:128:128-n16:32:64"
    )

    def get_ir_version(self) -> tuple[int, ...]:
        return 2, 0, 3, 2


def library_of(monkeypatch: pytest.MonkeyPatch, kernel: Any, arguments: tuple[Any, ...]) -> Any:
    """What numba-cuda makes of a kernel before NVVM."""
    monkeypatch.setattr(nvvm, "NVVM", _Layout)
    bfloat16_type.register()
    flags = _compiler.CUDAFlags()
    flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    flags.compute_capability = (9, 0)
    contexts: Any = cuda_target.typing_context, cuda_target.target_context
    with _compiler.global_compiler_lock, target_override("cuda"):
        pipeline = _compiler.CUDACompiler(*contexts, None, arguments, types.void, flags, {})
        return pipeline.compile_extra(kernel).library


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
def test_loads_stores_and_casts_call_no_cpp(monkeypatch: pytest.MonkeyPatch, kernel: Any) -> None:
    """Else Numba keeps no kernel of a batch, and none with `cache=True`, on disk."""
    arrays = types.float32[::1], types.Array(bfloat16, 1, "C")
    library = library_of(monkeypatch, kernel, arrays)
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
