"""Each operation of a warp or a warpgroup against NumPy, for each type of elements and swizzle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda, float32, int32

import numbasync as na
from numbasync import tensor_cores as tc
from tests.backend_cpu.tensor_core_kernels import attention

pytestmark = pytest.mark.usefixtures("cpu")
RNG = np.random.default_rng(2)
float16 = np.float16


def on_device(array: Any) -> na.Tensor:
    return na.from_host(array).sync()


def run(kernel: Any, block: int, shape: Any, *args: Any, dtype: Any = np.float32) -> Any:
    out = na.zeros(shape, dtype).sync()
    na.launcher(cuda.jit(kernel))[1, block](out, *args).sync()
    return out.to_host().sync()


# --- products of a warp ---


def copied_product(dtype: Any, swizzle: int, columns: int, sums: Any) -> Any:
    layout = na.shared_layout(
        a=tc.tile(dtype, (32, columns), swizzle), b=tc.tile(dtype, (16, columns), swizzle)
    )
    chunk = 16 // np.dtype(dtype).itemsize
    step = 32 // np.dtype(dtype).itemsize

    def kernel(out: na.KernelOutput, a: na.KernelInput, b: na.KernelInput):
        lane = cuda.threadIdx.x
        for column in range(0, columns, chunk):
            tc.copy_async(layout.a, (lane, column), a, (lane, column), chunk)
            if lane < 16:
                tc.copy_async(layout.b, (lane, column), b, (lane, column), chunk)
        tc.commit_copies()
        tc.wait_copies(0)
        cuda.syncthreads()
        acc = tc.accumulator(32, 16, sums)
        for k in range(0, columns, step):
            acc = tc.mma(acc, tc.load_a(layout.a, (0, k), 32), tc.load_b(layout.b, (0, k), 16))
        tc.store(out, (0, 0), acc)

    return kernel


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_products_of_float16_with_each_swizzle(swizzle: int) -> None:
    columns = swizzle // 2 or 48
    a, b = (RNG.integers(-3, 4, (n, columns)).astype(float16) for n in (32, 16))
    got = run(copied_product(float16, swizzle, columns, float32), 32, (32, 16), a, b)
    np.testing.assert_array_equal(got, a.astype(float) @ b.astype(float).T)


def test_products_and_results_of_bfloat16() -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    a, b = (RNG.integers(-3, 4, (n, 64)).astype(bfloat16) for n in (32, 16))
    got = run(copied_product(bfloat16, 128, 64, float32), 32, (32, 16), a, b, dtype=bfloat16)
    want = (a.astype(np.float32) @ b.astype(np.float32).T).astype(bfloat16)
    np.testing.assert_array_equal(got.astype(float), want.astype(float))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_products_of_integers(dtype: Any) -> None:
    bounds = np.iinfo(dtype)
    a, b = (RNG.integers(bounds.min, bounds.max, (n, 64)).astype(dtype) for n in (32, 16))
    got = run(copied_product(dtype, 64, 64, int32), 32, (32, 16), a, b, dtype=np.int32)
    np.testing.assert_array_equal(got, a.astype(int) @ b.astype(int).T)


def test_float32_is_cut_to_ten_bits_of_mantissa() -> None:
    a, b = (RNG.random((n, 32), np.float32) for n in (32, 16))
    got = run(copied_product(np.float32, 128, 32, float32), 32, (32, 16), a, b)
    cut = [(x.view(np.uint32) & 0xFFFFE000).view(np.float32).astype(float) for x in (a, b)]
    np.testing.assert_allclose(got, cut[0] @ cut[1].T, rtol=1e-6)
    assert abs(got - a.astype(float) @ b.astype(float).T).max() > 1e-4


TURNED = na.shared_layout(a=tc.tile(float16, (32, 64)), b=tc.tile(float16, (32, 64)))


def transposed(out: na.KernelOutput, a: na.KernelInput, b: na.KernelInput):
    lane = cuda.threadIdx.x
    for column in range(0, 64, 8):
        tc.copy_async(TURNED.a, (lane, column), a, (lane, column), 8)
        tc.copy_async(TURNED.b, (lane, column), b, (lane, column), 8)
    tc.commit_copies()
    tc.wait_copies(0)
    cuda.syncthreads()
    acc = tc.accumulator(32, 32)
    for k in range(0, 32, 16):
        left = tc.load_a(TURNED.a, (k, 32), 32, True)
        right = tc.load_b(TURNED.b, (k, 16), 32, True)
        acc = tc.mma(acc, left, right)
    tc.store(out, (0, 0), acc)


def test_transposed_fragments() -> None:
    a, b = (RNG.integers(-3, 4, (32, 64)).astype(float16) for _ in range(2))
    got = run(transposed, 32, (32, 32), a, b)
    np.testing.assert_array_equal(got, a[:, 32:].T.astype(float) @ b[:, 16:48].astype(float))


# --- accumulators ---


@cuda.jit(device=True)
def indexed(x, row, column):
    return float32((row * 7 + column * 3) % 11)


def rows_of(out: na.KernelOutput, sums: na.KernelOutput):
    lane = cuda.laneid
    acc = tc.apply(indexed, tc.accumulator(32, 24), (0, 0))
    least = (float32(-1), float32(9.5), float32(-1), float32(-1))
    most = tc.row_max(acc, least)
    total = tc.row_sum(acc)
    if lane % 4 == 0:
        for i in range(4):
            sums[0, i * 8 + lane // 4] = most[i]
            sums[1, i * 8 + lane // 4] = total[i]
    acc = tc.scale_rows(acc, (float32(1), float32(2), float32(3), float32(4)))
    acc = tc.exp2_rows(acc, float32(0.25), most)
    tc.store(out, (0, 0), acc)


def test_rows_of_accumulators() -> None:
    sums = na.zeros((2, 32)).sync()
    got = run(rows_of, 32, (32, 24), sums)
    rows, columns = np.indices((32, 24))
    x = ((rows * 7 + columns * 3) % 11).astype(float)
    quarter = np.arange(32) // 8
    most = np.maximum(x.max(1), np.where(quarter == 1, 9.5, -1))
    np.testing.assert_array_equal(sums.to_host().sync(), [most, x.sum(1)])
    scaled = x * (1 + quarter)[:, None]
    np.testing.assert_allclose(got, 2 ** (0.25 * (scaled - most[:, None])), rtol=1e-6)


def stored(out: na.KernelOutput, row, column):
    tc.store(out, (row, column), tc.apply(indexed, tc.accumulator(16, 32), (row, column)))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_storing_leaves_out_what_is_outside(dtype: Any) -> None:
    got = run(stored, 32, (20, 40), 10, 20, dtype=dtype)
    rows, columns = np.indices((20, 40))
    want = np.where((rows >= 10) & (columns >= 20), (rows * 7 + columns * 3) % 11, 0)
    np.testing.assert_array_equal(got, want)


def stored_integers(out: na.KernelOutput):
    tc.store(out, (0, 0), tc.accumulator(16, 8, int32))


def test_storing_integers() -> None:
    out = na.ones((16, 8), np.int32).sync()
    na.launcher(cuda.jit(stored_integers))[1, 32](out).sync()
    assert not out.to_host().sync().any()


# --- products of a warpgroup ---


def tiles_product(layout: Any, depth: int, columns: int, turned: tuple[bool, bool], keep: int = 0):
    turned_a, turned_b = turned

    def kernel(out: na.KernelOutput, ta: na.KernelInput, tb: na.KernelInput, nbytes, nboxes):
        tid = cuda.threadIdx.x
        if tid == 0:
            tc.barrier_init(layout.full, 0, 1)
            tc.fence_barrier_init()
        cuda.syncthreads()
        if tid == 0:
            tc.barrier_expect(layout.full, 0, nbytes)
            for i in range(nboxes[0]):
                width = layout_columns
                tc.load_tile(layout.a, (i, 0, 0), ta, (0, i * width), layout.full, 0)
            for i in range(nboxes[1]):
                width = layout_columns
                tc.load_tile(layout.b, (i, 0, 0), tb, (0, i * width), layout.full, 0)
        tc.barrier_wait(layout.full, 0, 0)
        acc = tc.accumulator(16, columns)
        zero = (0, 0, 0)
        acc = tc.wgmma(acc, layout.a, zero, layout.b, zero, keep, depth, turned_a, turned_b)
        acc = tc.wgmma_wait(acc, 0)
        tc.store(out, ((tid >> 5) * 16, 0), acc)

    layout_columns = layout.find("a").shape[-1]
    return kernel


def boxed(x: Any, rows: int, columns: int, swizzle: int) -> na.TensorMap:
    return na.tensor_map(on_device(x), (rows, columns), swizzle)


@pytest.mark.parametrize(
    ("turned", "swizzle"),
    [((False, False), 128), ((False, False), 64), ((False, False), 32), ((True, False), 128),
     ((False, True), 128), ((True, True), 64)],
)  # fmt: skip
def test_products_of_tiles(turned: tuple[bool, bool], swizzle: int) -> None:
    """64 x 96, over a depth of more than a row, and operands wider than a row."""
    width, depth, columns = swizzle // 2, 96, 96
    a, b = (RNG.integers(-3, 4, (n, depth)).astype(float16) for n in (64, columns))
    held = [x.T.copy() if t else x for x, t in zip((a, b), turned, strict=True)]
    boxes = tuple(-(-x.shape[1] // width) for x in held)
    layout = na.shared_layout(
        a=tc.tile(float16, (boxes[0], held[0].shape[0], width), swizzle),
        b=tc.tile(float16, (boxes[1], held[1].shape[0], width), swizzle),
        full=tc.barriers(1),
    )
    nbytes = sum(2 * n * x.shape[0] * width for n, x in zip(boxes, held, strict=True))
    ta, tb = (boxed(x, x.shape[0], width, swizzle) for x in held)
    kernel = tiles_product(layout, depth, columns, turned)
    got = run(kernel, 128, (64, columns), ta, tb, nbytes, boxes)
    np.testing.assert_array_equal(got, a.astype(float) @ b.astype(float).T)


def test_tiles_of_float32() -> None:
    a, b = (RNG.integers(-3, 4, (n, 64)).astype(np.float32) for n in (64, 16))
    layout = na.shared_layout(
        a=tc.tile(np.float32, (2, 64, 32)), b=tc.tile(np.float32, (2, 16, 32)), full=tc.barriers(1)
    )
    ta, tb = boxed(a, 64, 32, 128), boxed(b, 16, 32, 128)
    kernel = tiles_product(layout, 64, 16, (False, False))
    got = run(kernel, 128, (64, 16), ta, tb, 80 * 64 * 4, (2, 2))
    np.testing.assert_array_equal(got, a @ b.T)


def test_a_product_of_an_accumulator_and_a_tile() -> None:
    q, k, v = (RNG.standard_normal((n, 64)).astype(float16) for n in (64, 32, 32))
    maps = [boxed(x, len(x), 64, 128) for x in (q, k, v)]
    out = na.zeros((64, 64)).sync()
    attention[1, 128](out, *maps).sync()
    scores = 0.125 * (q.astype(float) @ k.astype(float).T)
    powers = 2 ** (scores - scores.max(1, keepdims=True))
    want = powers / powers.sum(1, keepdims=True) @ v
    np.testing.assert_allclose(out.to_host().sync(), want, atol=2e-3)


# --- copies by tensor maps ---

MOVED = na.shared_layout(tile=tc.tile(float16, (2, 16, 32), 64), full=tc.barriers(1))


def moved(target: na.KernelOutput, source: na.KernelInput, corner, to):
    if cuda.threadIdx.x == 0:
        tc.prefetch_map(source)
        tc.barrier_init(MOVED.full, 0, 1)
        tc.fence_barrier_init()
        tc.barrier_expect(MOVED.full, 0, 16 * 32 * 2)
        tc.load_tile(MOVED.tile, (1, 0, 0), source, corner, MOVED.full, 0)
        tc.barrier_wait(MOVED.full, 0, 0)
        tc.store_tile(target, to, MOVED.tile, (1, 0, 0))
        tc.commit_stores()
        tc.wait_stores(0)


@pytest.mark.parametrize(
    ("corner", "to"), [((8, 8), (0, 0)), ((-3, 40), (20, 8)), ((99, 0), (2, 2))]
)
def test_boxes_partly_outside_of_the_tensor(corner: Any, to: Any) -> None:
    x = RNG.integers(-9, 9, (24, 48)).astype(float16)
    out = na.ones((24, 48), float16).sync()
    maps = (na.tensor_map(t, (16, 32), 64) for t in (out, on_device(x)))
    na.launcher(cuda.jit(moved))[1, 32](*maps, corner, to).sync()
    padded = np.zeros((200, 200), float16)
    padded[50:74, 50:98] = x
    box = padded[50 + corner[0] : 66 + corner[0], 50 + corner[1] : 82 + corner[1]]
    want = np.ones((200, 200), float16)
    want[50 + to[0] : 66 + to[0], 50 + to[1] : 82 + to[1]] = box
    np.testing.assert_array_equal(out.to_host().sync(), want[50:74, 50:98])


def test_stores_do_not_begin_before_the_tensor() -> None:
    maps = [na.tensor_map(na.ones((24, 48), float16).sync(), (16, 32), 64) for _ in range(2)]
    with pytest.raises(na.errors.OutOfBoundsError, match=r"\(0, -8\) has negative numbers"):
        na.launcher(cuda.jit(moved))[1, 32](*maps, (0, 0), (0, -8)).sync()


# --- parts of a block ---


def in_turns(out: na.KernelOutput, count):
    """Two warps write by turns what the other reads."""
    held = cuda.shared.array(1, float32)
    tid = cuda.threadIdx.x
    if tid < 32:
        for i in range(count):
            if tid == 0:
                held[0] = i
            tc.part_arrive(1, 64)
            tc.part_sync(2, 64)
    else:
        for i in range(count):
            tc.part_sync(1, 64)
            if tid == 32:
                out[i] = held[0]
            tc.part_arrive(2, 64)


def test_parts_of_a_block_wait_for_one_another() -> None:
    assert run(in_turns, 64, 5, 5).tolist() == [0, 1, 2, 3, 4]
