"""Which lane holds which element, as the tables of the PTX ISA say, and which byte of a tile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync import tensor_cores as tc
from numbasync.backend.cpu.interpreter.tensor_cores import fragments
from numbasync.backend.cpu.interpreter.tensor_cores.shared_tiles import decoded, encoded

# For each type of elements, the bytes of one.
SIZES = {"f16": 2, "bf16": 2, "tf32": 4, "s8": 1, "u8": 1}


def numbered(shape: tuple[int, int]) -> np.ndarray[Any, Any]:
    return np.arange(shape[0] * shape[1]).reshape(shape) % 127


def as_bytes(values: np.ndarray[Any, Any], element: str) -> np.ndarray[Any, Any]:
    if element in ("f16", "bf16"):
        return encoded(values.astype(np.float32), element).view(np.uint8)
    return values.astype({"tf32": np.float32, "s8": np.int8, "u8": np.uint8}[element]).view(
        np.uint8
    )


def words(rows: np.ndarray[Any, Any], element: str) -> np.ndarray[Any, Any]:
    """32-bit registers of neighbouring elements along the last axis."""
    return as_bytes(np.ascontiguousarray(rows), element).view(np.uint32)


def test_elements_of_accumulators() -> None:
    rows, columns = fragments.places(1, 1)
    for lane in range(32):
        g, t = lane // 4, lane % 4
        assert rows[lane].tolist() == [g, g, g + 8, g + 8]
        assert columns[lane].tolist() == [2 * t, 2 * t + 1, 2 * t, 2 * t + 1]
    wide_rows, wide_columns = fragments.places(2, 3)
    assert wide_columns[5, 4 * 2] == 16 + 2
    assert wide_rows[5, 4 * 3] == 16 + 1


@pytest.mark.parametrize("element", list(SIZES))
def test_registers_of_operands(element: str) -> None:
    each = 4 // SIZES[element]  # elements of a register
    a, b = numbered((16, 8 * each)), numbered((8 * each, 8))
    held_a, held_b = [], []
    for lane in range(32):
        g, t = lane // 4, lane % 4
        near = slice(t * each, (t + 1) * each)
        far = slice((t + 4) * each, (t + 5) * each)
        parts = [a[g, near], a[g + 8, near], a[g, far], a[g + 8, far]]
        registers = np.concatenate([words(part, element) for part in parts])
        held_a.append(fragments.Fragment(element, 1, registers))
        registers = np.concatenate([words(b[near, g], element), words(b[far, g], element)])
        held_b.append(fragments.Fragment(element, 1, registers))
    np.testing.assert_array_equal(fragments.left(held_a), a)
    np.testing.assert_array_equal(fragments.right(held_b), b.T)


def test_bfloat16_is_rounded_to_the_nearest() -> None:
    numbers = np.array([1, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-7 + 2**-9, -3e38, np.inf], np.float32)
    rounded = decoded(encoded(numbers, "bf16").view(np.uint8), "bf16")
    assert rounded.tolist()[:4] == [1, 1, 1 + 2**-6, 1 + 2**-7]
    assert rounded[5] == np.inf
    assert np.isnan(decoded(encoded(np.array([np.nan], np.float32), "bf16").view(np.uint8), "bf16"))


@pytest.mark.usefixtures("cpu")
@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_bytes_of_tiles(swizzle: int) -> None:
    columns = (swizzle or 64) // 2
    layout = na.shared_layout(
        tile=tc.tile(np.float16, (16, columns), swizzle), plain=(np.float16, (16, columns)),
        full=tc.barriers(1), offsets={"plain": 0, "full": 4096}, union=True,
    )  # fmt: skip

    def loaded(out: na.KernelOutput, source: na.KernelInput):
        tc.barrier_init(layout.full, 0, 1)
        tc.fence_barrier_init()
        tc.barrier_expect(layout.full, 0, 32 * columns)
        tc.load_tile(layout.tile, (0, 0), source, (0, 0), layout.full, 0)
        tc.barrier_wait(layout.full, 0, 0)
        for i in range(16):
            for j in range(columns):
                out[i, j] = layout.plain[i, j]

    x = np.arange(16 * columns, dtype=np.float16).reshape(16, columns)
    out = na.zeros((16, columns)).sync()
    box = na.tensor_map(na.from_host(x).sync(), (16, columns), swizzle)
    na.launcher(cuda.jit(loaded))[1, 1](out, box).sync()
    got = out.to_host().sync()
    pattern = {128: lambda r: r % 8, 64: lambda r: r // 2 % 4, 32: lambda r: r // 4 % 2}
    for row in range(16):
        for chunk in range(columns // 8):
            at = chunk ^ pattern[swizzle](row) if swizzle else chunk
            held = got[row, 8 * at : 8 * at + 8]
            np.testing.assert_array_equal(held, x[row, 8 * chunk : 8 * chunk + 8])
