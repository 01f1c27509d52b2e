"""Every ready kernel takes every size: more tiles along an axis than a grid has blocks along y.

`test_paged_attention.py` has its own such test, beside the tests that compile the same kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync_kernels import image, nn
from numbasync_kernels.nn.split_k import sum_of_parts
from numbasync_kernels.nn.split_tf32 import LEFT, split_tf32
from tests.common import host, mostly_full

MOST = 65_535  # blocks along y and z, on every GPU
ONE = np.ones(1, np.float32)
GENERATOR = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return GENERATOR.standard_normal(shape, np.float32)


def bytes_of(*shape: int) -> Any:
    return GENERATOR.integers(0, 256, shape, np.uint8)


TABLE = GENERATOR.permutation(256).astype(np.uint8)
WEIGHTS = image.gaussian_weights(1.0)

# By name: the extent of a tile along an axis, of whose tiles there are more than `MOST`; and from
# an extent the call and what it is to give.
CASES: dict[str, tuple[int, Callable[[int], tuple[Any, Any, Any]]]] = {
    "layer_norm rows": (4, lambda n: (
        lambda out, x: nn.layer_norm(out, x, np.ones(2, np.float32), np.zeros(2, np.float32), 1.0),
        [x := normal(n, 2)], nn.layer_norm_reference(x, np.ones(2), np.zeros(2), 1.0),
    )),
    "layer_norm rows, cut by the caller": (4, lambda n: (
        lambda out, x: nn.layer_norm(out.partition((4, 1)), x, ONE, ONE, 1.0),
        [normal(n, 1)], np.ones((n, 1)),
    )),
    "add_layer_norm rows": (4, lambda n: (
        lambda out, x: nn.add_layer_norm(out, x, x, ONE, ONE, 1.0), [normal(n, 1)], np.ones((n, 1)),
    )),
    "unit_rows": (4, lambda n: (nn.unit_rows, [x := normal(n, 1)], np.sign(x))),
    "mean_pool sentences": (1, lambda n: (
        nn.mean_pool, [x := normal(n, 1, 1), np.ones((n, 1), np.int32)], x[:, 0],
    )),
    "embedding sentences": (1, lambda n: (
        lambda out, i, k, words: nn.embedding(out, i, k, words, words[1:], words[:1]),
        [i := np.arange(n)[:, None], 0 * i, words := normal(n, 1)],
        (words + words[0] + words[1])[:, None],
    )),
    "embedding tokens": (4, lambda n: (
        lambda out, i, words: nn.embedding(out, i, i, words[:1], words, words[:1]),
        [np.zeros((1, n), int), words := normal(n, 1)], (2 * words[:1] + words)[None],
    )),
    "attention sentences": (1, lambda n: (
        lambda out, q, mask: nn.attention(out, q, q, q, mask, 1),
        [q := normal(n, 1, 1), np.ones((n, 1), np.int32)], q,
    )),
    "attention queries": (8, lambda n: (
        lambda out, q: nn.attention(out, q, q[:, :1], q[:, :1], np.ones((1, 1), np.int32), 1),
        [q := normal(1, n, 1)], np.broadcast_to(q[:, :1], q.shape),
    )),
    "split_tf32 rows": (2, lambda n: (
        lambda out, x: split_tf32(out, x, LEFT),
        [x := normal(n, 1).astype(np.float16).astype(np.float32)], np.hstack([x, x, 0 * x]),
    )),
    "sum_of_parts rows": (1, lambda n: (
        sum_of_parts, [x := normal(2, n, 1)], x.sum(0),
    )),
    "gemm rows": (32, lambda n: (nn.gemm, [a := normal(n, 1), b := normal(1, 1)], a @ b)),
    "gemm of int8 rows": (8, lambda n: (
        nn.gemm, [a := bytes_of(n, 1).view(np.int8), np.full((1, 1), 3, np.int8)],
        3 * a.astype(int),
    )),
    "batched_gemm": (1, lambda n: (
        nn.batched_gemm, [a := normal(n, 1, 1), b := normal(n, 1, 1)], a @ b,
    )),
    "dot_product_attention": (1, lambda n: (
        lambda out, q: nn.dot_product_attention(out, q, q, q), [q := normal(n, 1, 64)], q,
    )),
    "gelu": (nn.GELU_THREADS, lambda n: (
        nn.gelu, [np.resize(x := normal(999), n)], np.resize(nn.gelu_reference(x), n),
    )),
    "histogram": (256, lambda n: (  # of an element a thread
        image.histogram[-(-n // 256), 256], [np.resize(x := bytes_of(999), n)],
        image.histogram_reference(np.resize(x, n)),
    )),
    "grey rows": (16, lambda n: (
        image.grey, [x := bytes_of(n, 1, 3)], image.grey_reference(x),
    )),
    "look_up rows": (16, lambda n: (image.look_up, [x := bytes_of(n, 1), TABLE], TABLE[x])),
    "sobel rows": (16, lambda n: (
        image.sobel, [x := normal(n, 1)], image.sobel_reference(x),
    )),
    "gaussian_blur rows": (16, lambda n: (
        image.gaussian_blur, [x := normal(n, 1), WEIGHTS],
        image.gaussian_blur_reference(x, WEIGHTS),
    )),
    "box_blur rows": (16, lambda n: (
        lambda out, x: image.box_blur(out, x, 1), [x := normal(n, 1)],
        image.box_blur_reference(x, 1),
    )),
    "erode rows": (16, lambda n: (
        lambda out, x: image.erode(out, x, 1), [x := bytes_of(n, 1)], image.erode_reference(x, 1),
    )),
    "median rows": (16, lambda n: (
        lambda out, x: image.median(out, x, 1), [x := bytes_of(n, 1)],
        image.median_reference(x, 1),
    )),
    "resize_nearest rows": (16, lambda n: (
        image.resize_nearest, [x := bytes_of(9, 1)], image.resize_nearest_reference(x, (n, 1)),
    )),
    "remap rows": (16, lambda n: (
        lambda out, x, ys, xs: image.remap(out, x, ys, xs, 0, 0.0),
        [x := normal(n, 1), ys := np.zeros((n, 1), np.float32), ys], np.repeat(x[:1], n, 0),
    )),
    "normalise rows": (16, lambda n: (
        lambda out, x: image.normalise(out, x, ONE, ONE, 1.0), [x := normal(n, 1, 1)],
        np.moveaxis(x - 1, 2, 0),
    )),
    "rgb_to_hsv rows": (8, lambda n: (
        image.rgb_to_hsv, [x := bytes_of(n, 1, 3)], image.rgb_to_hsv_reference(x),
    )),
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    mostly_full(CASES, *(CASES.keys() - {"dot_product_attention", "batched_gemm"})),
)
def test_more_tiles_than_blocks_along_y(
    device: na.Device, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = MOST
    if device.kind == "cpu":  # which is slower, and checks any limit alike
        most = 20
        limits = replace(device.limits, max_grid=(2**31 - 1, most, most))
        monkeypatch.setattr(device, "limits", limits)
    tile, made = CASES[name]
    compare(*made(most * tile + 1))


def compare(call: Any, arrays: list[Any], want: Any) -> None:
    dtypes = {"f": np.float32, "i": np.int32, "u": np.uint8}
    out = na.zeros(want.shape, dtypes[want.dtype.kind]).sync()
    tensors = [na.from_host(np.ascontiguousarray(a)).sync() for a in arrays]
    call(out, *tensors).sync()
    np.testing.assert_allclose(host(out), want, rtol=1e-5, atol=1e-5)


def test_the_cpu_device_has_a_gpus_limits(cpu: na.Device) -> None:
    assert cpu.limits.max_grid == (2**31 - 1, MOST, MOST)
    for name in ("layer_norm rows, cut by the caller", "grey rows", "look_up rows"):
        tile, made = CASES[name]
        compare(*made(MOST * tile + 1))


@pytest.mark.parametrize(
    ("kernel", "out", "grid"),
    [
        (nn.layer_norm, (9, 100), (1, 3, 1)),
        (nn.unit_rows, (9, 100), (1, 3, 1)),
        (image.gaussian_blur, (33, 40), (3, 3, 1)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_whole_tensors_are_cut_by_own_tiles(
    device: na.Device, kernel: Any, out: Any, grid: Any
) -> None:
    rest = {
        nn.layer_norm: (normal(*out), normal(out[1]), normal(out[1]), 1e-5),
        nn.unit_rows: (normal(*out),),
        image.gaussian_blur: (bytes_of(*out), WEIGHTS),
    }
    assert kernel.explain(na.zeros(out).sync(), *rest[kernel]).grid == grid
