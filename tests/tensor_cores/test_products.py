"""Products of a warpgroup, from tiles that tensor maps fill, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16
from numba import cuda

import numbasync as na
from numbasync import tensor_cores as tc

WIDE = 48  # columns of the result


@pytest.fixture(autouse=True)
def _has_wgmma(device: na.Device) -> None:
    if device.kind == "cuda" and device.compute_capability != (9, 0):
        pytest.skip("wgmma needs compute capability 9.0")


def group_product(dtype: Any, swizzle: int, rows_of_k: tuple[bool, bool], depth: int) -> Any:
    """A kernel of one warpgroup: out = a @ b of 64 rows, for all of k in one step. Where an
    operand's rows are along k (`rows_of_k`), the tile has as many columns as the swizzle permits.
    """
    size = np.dtype(dtype).itemsize
    width = swizzle // size

    def declared(by_rows: bool, extent: int) -> Any:
        if by_rows:
            return tc.tile(dtype, (-(-extent // width), depth, width), swizzle)
        return tc.tile(dtype, (depth // width, extent, width), swizzle)

    by_a, by_b = rows_of_k
    layout = na.shared_layout(a=declared(by_a, 64), b=declared(by_b, WIDE), full=tc.barriers(1))
    tiles_a, tiles_b = (array.shape[0] for array in layout.arrays[:2])
    nbytes = sum(array.nbytes for array in layout.arrays[:2])

    @na.launcher
    @cuda.jit
    def kernel(out: na.KernelOutput, a: na.KernelInput, b: na.KernelInput):
        thread = cuda.threadIdx.x
        if thread == 0:
            tc.barrier_init(layout.full, 0, 1)
            tc.fence_barrier_init()
        cuda.syncthreads()
        if thread == 0:
            tc.barrier_expect(layout.full, 0, nbytes)
            for tile in range(tiles_a):
                tc.load_tile(layout.a, (tile, 0, 0), a, (0, tile * width), layout.full, 0)
            for tile in range(tiles_b):
                tc.load_tile(layout.b, (tile, 0, 0), b, (0, tile * width), layout.full, 0)
        tc.barrier_wait(layout.full, 0, 0)
        acc = tc.accumulator(16, WIDE)
        acc = tc.wgmma(acc, layout.a, (0, 0, 0), layout.b, (0, 0, 0), False, depth, by_a, by_b)
        acc = tc.wgmma(acc, layout.a, (0, 0, 0), layout.b, (0, 0, 0), True, depth, by_a, by_b)
        acc = tc.wgmma_wait(acc, 0)
        tc.store(out, (thread // 32 * 16, 0), acc)

    return kernel, width


ORDERS = [(False, False), (False, True), (True, False), (True, True)]


@pytest.mark.parametrize("swizzle", [128, 64, 32])
@pytest.mark.parametrize(
    ("dtype", "rows_of_k"),
    [(np.float32, (False, False)), *((t, o) for t in (np.float16, bfloat16) for o in ORDERS)],
)
async def test_products_of_a_warpgroup(
    device: na.Device, dtype: Any, rows_of_k: tuple[bool, bool], swizzle: int
) -> None:
    depth = 2 * swizzle // np.dtype(dtype).itemsize
    kernel, width = group_product(dtype, swizzle, rows_of_k, depth)
    rng = np.random.default_rng(2)
    a = rng.integers(-4, 5, (64, depth)).astype(dtype)
    b = rng.integers(-4, 5, (depth, WIDE)).astype(dtype)
    maps = []
    for array, by_rows in zip((a, b.T), rows_of_k, strict=True):
        stored = np.ascontiguousarray(array.T if by_rows else array)
        box = (depth, width) if by_rows else (len(array), width)
        maps.append(na.tensor_map(await na.from_host(stored), box, swizzle))
    out = await na.zeros((64, WIDE), np.float32)
    await kernel[1, 128](out, *maps)
    np.testing.assert_array_equal(await out.to_host(), 2 * (a.astype(float) @ b.astype(float)))


LAYOUT = na.shared_layout(
    a=tc.tile(np.float16, (64, 64)), b=tc.tile(np.float16, (32, 64)),
    c=tc.tile(np.float16, (32, 64)), full=tc.barriers(1),
)  # fmt: skip


@na.launcher
@cuda.jit
def chained(out: na.KernelOutput, a: na.KernelInput, b: na.KernelInput, c: na.KernelInput):
    """Out = float16(a @ b.T) @ c, whose left operand stays in registers."""
    thread = cuda.threadIdx.x
    if thread == 0:
        tc.barrier_init(LAYOUT.full, 0, 1)
        tc.fence_barrier_init()
    cuda.syncthreads()
    if thread == 0:
        tc.barrier_expect(LAYOUT.full, 0, 2 * 64 * 128)
        tc.load_tile(LAYOUT.a, (0, 0), a, (0, 0), LAYOUT.full, 0)
        tc.load_tile(LAYOUT.b, (0, 0), b, (0, 0), LAYOUT.full, 0)
        tc.load_tile(LAYOUT.c, (0, 0), c, (0, 0), LAYOUT.full, 0)
    tc.barrier_wait(LAYOUT.full, 0, 0)
    first = tc.accumulator(16, 32)
    first = tc.wgmma(first, LAYOUT.a, (0, 0), LAYOUT.b, (0, 0), False, 64)
    first = tc.wgmma_wait(first, 0)
    second = tc.accumulator(16, 64)
    fragment = tc.to_fragment(first, np.float16)
    second = tc.wgmma_fragment(second, fragment, LAYOUT.c, (0, 0), True)
    second = tc.wgmma_wait(second, 0)
    tc.store(out, (thread // 32 * 16, 0), second)


async def test_a_product_of_a_product(device: na.Device) -> None:
    rng = np.random.default_rng(3)
    a, b, c = (
        rng.integers(-2, 3, shape).astype(np.float16) for shape in [(64, 64), (32, 64), (32, 64)]
    )
    maps = [na.tensor_map(await na.from_host(x), (len(x), 64)) for x in (a, b, c)]
    out = await na.zeros((64, 64), np.float32)
    await chained[1, 128](out, *maps)
    want = a.astype(float) @ b.astype(float).T @ c.astype(float)
    np.testing.assert_array_equal(await out.to_host(), want)


STORED = na.shared_layout(tile=tc.tile(np.float16, (16, 64)), full=tc.barriers(1))


@na.launcher
@cuda.jit
def shifted(out: na.KernelOutput, x: na.KernelInput, row: int, column: int):
    """A box of `x` from the corner (row, column) on, stored at the corner (5, 8) of `out`."""
    thread = cuda.threadIdx.x
    if thread == 0:
        tc.prefetch_map(x)
        tc.barrier_init(STORED.full, 0, 1)
        tc.fence_barrier_init()
        tc.barrier_expect(STORED.full, 0, 16 * 128)
        tc.load_tile(STORED.tile, (0, 0), x, (row, column), STORED.full, 0)
        tc.barrier_wait(STORED.full, 0, 0)
        tc.store_tile(out, (5, 8), STORED.tile, (0, 0))
        tc.commit_stores()
        tc.wait_stores(0)


@pytest.mark.parametrize("corner", [(0, 0), (10, 40), (-4, -16), (30, 0)])
async def test_boxes_partly_outside(device: na.Device, corner: tuple[int, int]) -> None:
    x = np.arange(24 * 72).reshape(24, 72).astype(np.float16)
    source = na.tensor_map(await na.from_host(x), (16, 64))
    target = await na.full((18, 64), -1, np.float16)
    await shifted[1, 32](na.tensor_map(target, (16, 64)), source, *corner)
    padded = np.zeros((128, 256), np.float16)
    padded[32 : 32 + 24, 64 : 64 + 72] = x
    box = padded[32 + corner[0] :, 64 + corner[1] :][:16, :64]
    want = np.full((18, 64), -1, np.float16)
    want[5:, 8:] = box[:13, :56]
    np.testing.assert_array_equal(await target.to_host(), want)


def test_layouts_of_different_declarations_have_different_types() -> None:
    def type_of(a: Any) -> Any:
        return na.shared_layout(a=a, align=1024)._numba_type_

    declared = tc.tile(np.float16, (64, 64)), tc.tile(np.float16, (64, 64), 0)
    types = [type_of(a) for a in (*declared, (np.float16, (64, 64)))]
    assert len(set(types)) == 3
    assert type_of(tc.tile(np.float16, (64, 64))) == types[0]


def test_what_tensor_maps_refuse(device: na.Device) -> None:
    from numbasync.errors import CallerError, DTypeError, ShapeError

    t = na.zeros((32, 64), np.float16).sync()
    with pytest.raises(DTypeError, match="float64"):
        na.tensor_map(na.zeros((8, 8), np.float64).sync(), (8, 8))
    with pytest.raises(ShapeError, match="multiples of 16"):
        na.tensor_map(na.zeros((8, 9), np.float16).sync(), (8, 8))
    with pytest.raises(ShapeError, match="not\\s+neighbours"):
        na.tensor_map(t.T, (8, 8))
    with pytest.raises(ShapeError, match="at most 128"):
        na.tensor_map(t, (8, 128))
    with pytest.raises(ShapeError, match="2 extents"):
        na.tensor_map(t, (8,))
    with pytest.raises(CallerError, match="128, 64, 32 or 0"):
        na.tensor_map(t, (8, 8), 100)


def test_a_tensor_map_is_only_a_kernels_argument(device: na.Device) -> None:
    from numbasync.errors import CallerError

    t = na.ones((8, 64), np.float16).sync()
    mapped: Any = na.tensor_map(t, (8, 64))
    assert (mapped.tensor, mapped.shape, mapped.dtype) == (t, (8, 64), np.float16)
    assert repr(mapped) == f"<TensorMap of {t!r}, box=(8, 64), swizzle=128>"
    for use in (lambda: mapped[1:], lambda: mapped.reshape(-1), lambda: mapped.to_host()):
        with pytest.raises((TypeError, AttributeError), match="TensorMap"):
            use()
    for use in (lambda: na.memcpy(mapped, t), lambda: mapped + 1, lambda: na.fill(mapped, 0)):
        with pytest.raises(CallerError, match="TensorMap"):
            use()
    assert mapped.tensor[1:].to_host().sync().all()
