"""Image kernels against their references; references against SciPy."""

from __future__ import annotations

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import LaunchError
from numbasync_kernels import image
from tests.common import host

SIZES = [(1, 1), (3, 50), (16, 16), (17, 15), (33, 40)]
TILE = (16, 16)


def picture(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_grey_is_exact(device: na.Device, size: tuple[int, int]) -> None:
    pixels = picture((*size, 3))
    out = na.zeros(size, np.uint8).sync()
    image.grey(out.partition(TILE), pixels).sync()
    np.testing.assert_array_equal(host(out), image.grey_reference(pixels))


def test_grey_keeps_black_and_white(device: na.Device) -> None:
    pixels = np.zeros((2, 2, 3), np.uint8)
    pixels[1] = 255
    out = na.zeros((2, 2), np.uint8).sync()
    image.grey(out.partition(TILE), pixels).sync()
    assert host(out).tolist() == [[0, 0], [255, 255]]
    wide = np.full((2, 2, 3), [1000, 65535, 40000], np.uint16)
    levels = na.zeros((2, 2), np.uint16).sync()
    image.grey(levels.partition(TILE), wide).sync()
    np.testing.assert_array_equal(host(levels), image.grey_reference(wide))
    with pytest.raises(LaunchError, match=r"picture\.dtype == out\.dtype"):
        image.grey(out.partition(TILE), wide).sync()
    with pytest.raises(LaunchError, match=r"picture\.shape\[2\] == 3"):
        image.grey(out.partition(TILE), np.zeros((2, 2, 4), np.uint8)).sync()


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("sigma", [0.5, 1.2, 3.0])
def test_gaussian_blur(device: na.Device, size: tuple[int, int], sigma: float) -> None:
    levels = picture(size)
    weights = image.gaussian_weights(sigma)
    out = na.zeros(size).sync()
    image.gaussian_blur(out.partition(TILE), levels, weights).sync()
    want = image.gaussian_blur_reference(levels, weights)
    # Two passes of 7 products and sums in float32: 28 roundings of at most half an ulp of 255.
    assert np.abs(host(out) - want).max() <= 28 * 255 * 2.0**-24


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_sobel(device: na.Device, size: tuple[int, int]) -> None:
    levels = np.random.default_rng(1).uniform(0, 255, size).astype(np.float32)
    out = na.zeros(size).sync()
    image.sobel(out.partition(TILE), levels).sync()
    want = image.sobel_reference(levels)
    # 12 roundings, each at most half an ulp of 8 * 255.
    assert np.abs(host(out) - want).max() <= 12 * 8 * 255 * 2.0**-24


@pytest.mark.parametrize("n", [1, 255, 256, 5000])
def test_histogram_is_exact(device: na.Device, n: int) -> None:
    levels = picture((n,))
    counts = na.zeros(256, np.int32).sync()
    image.histogram[image.histogram_grid(n), 256](counts, levels).sync()
    np.testing.assert_array_equal(host(counts), image.histogram_reference(levels))


@pytest.mark.parametrize("case", ["random", "one level", "two levels", "empty"])
def test_equalisation_table_is_exact(device: na.Device, case: str) -> None:
    counts = np.zeros(256, np.int32)
    if case == "random":
        counts = np.random.default_rng(2).integers(0, 1000, 256).astype(np.int32)
    elif case == "one level":
        counts[77] = 5
    elif case == "two levels":
        counts[[3, 200]] = 1, 3
    table = na.zeros(256, np.uint8).sync()
    image.equalisation_table(table, counts).sync()
    got = host(table)
    np.testing.assert_array_equal(got, image.equalisation_table_reference(counts))
    if case == "two levels":
        assert (got[3], got[200]) == (0, 255)
    if case == "one level":
        assert got[77] == 77


def test_look_up(device: na.Device) -> None:
    levels, table = picture((9, 21)), picture((256,), 3)
    out = na.zeros((9, 21), np.uint8).sync()
    image.look_up(out.partition(TILE), levels, table).sync()
    np.testing.assert_array_equal(host(out), image.look_up_reference(levels, table))


def test_equalised_levels_are_spread_out(device: na.Device) -> None:
    levels = np.clip(np.random.default_rng(4).normal(100, 5, (64, 64)), 0, 255).astype(np.uint8)
    counts = image.histogram_reference(levels)
    spread = image.look_up_reference(levels, image.equalisation_table_reference(counts))
    assert (spread.min(), spread.max()) == (0, 255)


def test_references_are_scipys() -> None:
    ndimage = pytest.importorskip("scipy.ndimage", reason="needs the extra demo")
    levels = picture((40, 30)).astype(np.float64)
    weights = np.exp(-0.5 * (np.arange(-3, 4) / 1.2) ** 2)
    weights /= weights.sum()
    np.testing.assert_allclose(
        image.gaussian_blur_reference(levels, weights),
        ndimage.gaussian_filter(levels, 1.2, mode="nearest", radius=3),
        rtol=1e-12,
    )
    np.testing.assert_allclose(
        image.sobel_reference(levels),
        np.hypot(*(ndimage.sobel(levels, axis, mode="nearest") for axis in (0, 1))),
        rtol=1e-12,
    )
    np.testing.assert_array_equal(image.gaussian_weights(1.2), weights.astype(np.float32))
