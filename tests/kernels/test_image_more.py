"""Pictures of another size, windows, equalised parts, against references; those against SciPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import LaunchError
from numbasync_kernels import image
from numbasync_kernels.fits import dtype_of
from tests.common import full, host
from tests.kernels.test_image import picture

SIZES = [(1, 1), (3, 50), (17, 15), (33, 40)]
U = 2.0**-24


@pytest.mark.parametrize("size", [full((1, 1)), (7, 50), full((40, 33)), full((17, 4))], ids=str)
def test_resize(device: na.Device, size: tuple[int, int]) -> None:
    for old in SIZES:
        levels = picture(old)
        out, same = na.zeros(size).sync(), na.zeros(size, np.uint8).sync()
        image.resize_nearest(same, levels).sync()
        np.testing.assert_array_equal(host(same), image.resize_nearest_reference(levels, size))
        image.resize_bilinear(out, levels).sync()
        want = image.resize_bilinear_reference(levels, size)
        assert np.abs(host(out) - want).max() <= 9 * U * 255
        image.resize_bicubic(out, levels).sync()
        want = image.resize_bicubic_reference(levels, size)
        assert np.abs(host(out) - want).max() <= 64 * U * 255
        image.resize_area(out, levels).sync()
        want = image.resize_area_reference(levels, size)
        covered = sum(n // m + 2 for n, m in zip(old, size, strict=True))
        assert np.abs(host(out) - want).max() <= (covered + 5) * U * 255


@pytest.mark.parametrize("dtype", ["float16", full("bfloat16")])
def test_results_are_rounded_once(device: na.Device, dtype: str) -> None:
    levels, kind = picture((20, 30)), dtype_of(dtype)
    ys, xs = (np.full((9, 7), v, np.float32) for v in (3.25, 4.5))
    weights = image.gaussian_weights(1.0)
    calls: dict[Any, tuple[Any, ...]] = {
        image.resize_bilinear: (), image.resize_area: (), image.resize_bicubic: (),
        image.remap: (ys, xs, image.NEAREST, 0.0), image.gaussian_blur: (weights,),
        image.box_blur: (1,),
    }  # fmt: skip
    for kernel, more in calls.items():
        shape = levels.shape if kernel in (image.gaussian_blur, image.box_blur) else (9, 7)
        out, exact = na.zeros(shape, kind).sync(), na.zeros(shape).sync()
        kernel(out, levels, *more).sync()
        kernel(exact, levels, *more).sync()
        assert host(out).tobytes() == host(exact).astype(kind).tobytes()


def test_a_picture_of_its_own_size_stays(device: na.Device) -> None:
    levels = picture((9, 14))
    for resize in (image.resize_bilinear, image.resize_bicubic, image.resize_area):
        out = na.zeros((9, 14)).sync()
        resize(out, levels).sync()
        np.testing.assert_array_equal(host(out), levels)


@pytest.mark.parametrize("border", [image.NEAREST, *map(full, (1, 2, 3))])
def test_remap(device: na.Device, border: int) -> None:
    rng = np.random.default_rng(border)
    for size in ((5, 7), (1, 9)):
        levels = picture(size)
        ys, xs = (rng.uniform(-20, 20, (21, 18)).astype(np.float32) for _ in range(2))
        ys[0, 0], xs[1, 1], ys[2, :5] = np.nan, 1e30, np.arange(5)
        out = na.zeros((21, 18)).sync()
        image.remap(out, levels, ys, xs, border, 7.0).sync()
        want = image.remap_reference(levels, ys, xs, border, 7.0)
        assert np.abs(host(out) - want).max() <= 9 * U * 255


@pytest.mark.parametrize("radius", [1, *map(full, (0, 3, 8))])
def test_windows(device: na.Device, radius: int) -> None:
    for size in SIZES:
        levels = picture(size)
        out, same = na.zeros(size).sync(), na.zeros(size, np.uint8).sync()
        image.box_blur(out, levels, radius).sync()
        want = image.box_blur_reference(levels, radius)
        assert np.abs(host(out) - want).max() <= (4 * radius + 2) * U * 255
        image.erode(same, levels, radius).sync()
        np.testing.assert_array_equal(host(same), image.erode_reference(levels, radius))
        image.dilate(same, levels, radius).sync()
        np.testing.assert_array_equal(host(same), image.dilate_reference(levels, radius))
        if radius <= 2:
            image.median(same, levels, radius).sync()
            np.testing.assert_array_equal(host(same), image.median_reference(levels, radius))


@pytest.mark.full
def test_windows_of_floats(device: na.Device) -> None:
    levels = np.random.default_rng(3).standard_normal((20, 37)).astype(np.float32)
    levels[3, 5] = np.nan
    out = na.zeros((20, 37)).sync()
    image.dilate(out, levels, 2).sync()
    np.testing.assert_array_equal(host(out), image.dilate_reference(levels, 2))
    assert np.isnan(host(out)).sum() == 25
    image.median(out, np.nan_to_num(levels), 2).sync()
    np.testing.assert_array_equal(host(out), image.median_reference(np.nan_to_num(levels), 2))


@pytest.mark.parametrize("dtype", ["float32", full("float16")])
def test_normalise(device: na.Device, dtype: str) -> None:
    pixels = picture((13, 21, 3))
    mean, deviation = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
    batch = na.zeros((2, 3, 13, 21), dtype).sync()
    image.normalise(batch[1], pixels, mean, deviation, 1 / 255).sync()
    want = image.normalise_reference(pixels, mean, deviation, 1 / 255)
    bound = 5 * U / 0.224 + np.finfo(dtype).eps / 2 * abs(want)
    assert (np.abs(host(batch)[1] - want) <= bound).all() and not host(batch)[0].any()


@pytest.mark.parametrize(
    ("size", "parts"), [((33, 40), (2, 3)), full((8, 8), (3, 5)), full((64, 1), (1, 1))]
)
def test_clahe(device: na.Device, size: Any, parts: Any) -> None:
    levels = np.clip(np.random.default_rng(4).normal(100, 9, size), 0, 255).astype(np.uint8)
    tables, out = na.zeros((*parts, 256), np.uint8).sync(), na.zeros(size, np.uint8).sync()
    for limit in (1.0, 2.5, 300.0):
        image.clahe_tables(tables, levels, limit).sync()
        want = image.clahe_tables_reference(levels, parts, limit)
        np.testing.assert_array_equal(host(tables), want)
        image.clahe(out, levels, tables).sync()
        exact = image.clahe_reference(levels, want)
        assert np.abs(host(out) - exact).max() <= 0.5 + 9 * U * 255


def test_what_does_not_fit(device: na.Device) -> None:
    levels, out = picture((4, 4)), na.zeros((4, 4)).sync()
    with pytest.raises(LaunchError, match="0 <= radius <= 8"):
        image.box_blur(out, levels, 9).sync()
    with pytest.raises(LaunchError, match="0 <= border < 4"):
        image.remap(out, levels, host(out), host(out), 4, 0.0).sync()
    with pytest.raises(LaunchError, match=r"levels.shape\[0\] > 0"):
        image.resize_area(out, levels[:0]).sync()


@pytest.mark.full
def test_no_races_in_windows_and_tables(device: na.Device) -> None:
    levels = picture((17, 20))
    na.testing.check_kernel(
        image.erode, (np.zeros_like(levels), levels, 2),
        lambda *_: image.erode_reference(levels, 2), grid=(2, 2), block=(16, 16),
    )  # fmt: skip


def test_references_of_windows_are_scipys() -> None:
    ndimage = pytest.importorskip("scipy.ndimage", reason="needs the extra demo")
    levels = picture((20, 30)).astype(np.float64)
    for radius in (1, 2):
        size = 2 * radius + 1
        for ours, theirs in (
            (image.box_blur_reference, ndimage.uniform_filter),
            (image.erode_reference, ndimage.minimum_filter),
            (image.dilate_reference, ndimage.maximum_filter),
            (image.median_reference, ndimage.median_filter),
        ):
            np.testing.assert_allclose(
                ours(levels, radius), theirs(levels, size, mode="nearest"), rtol=1e-12
            )
    ys, xs = np.random.default_rng(1).uniform(-3, 30, (2, 9, 9))
    for border, mode in (
        (image.NEAREST, "nearest"),
        (image.REFLECT, "mirror"),
        (image.WRAP, "grid-wrap"),
    ):
        np.testing.assert_allclose(
            image.remap_reference(levels, ys, xs, border, 0),
            ndimage.map_coordinates(levels, [ys, xs], order=1, mode=mode), rtol=1e-9,
        )  # fmt: skip


def test_colours_there_and_back(device: na.Device) -> None:
    rng = np.random.default_rng(3)
    colours = np.concatenate([rng.uniform(0, 1, (17, 37, 3)), rng.integers(0, 3, (9, 37, 3)) / 2])
    rgb = colours.astype(np.float32)
    for space, there, back in (("hsv", 3, 24), ("ycbcr", 6, 8), ("lab", 8000, 1500)):
        to, of = getattr(image, f"rgb_to_{space}"), getattr(image, f"{space}_to_rgb")
        made, again = na.zeros(rgb.shape).sync(), na.zeros(rgb.shape).sync()
        to(made, rgb).sync()
        want = getattr(image, f"rgb_to_{space}_reference")(rgb)
        assert np.abs(host(made) - want).max() <= there * U
        of(again, made).sync()
        want = getattr(image, f"{space}_to_rgb_reference")(host(made))
        assert np.abs(host(again) - want).max() <= back * U
        assert np.abs(want - rgb).max() <= (1e-3 if space == "lab" else 1e-5)


def test_a_picture_has_three_colours() -> None:
    with pytest.raises(LaunchError, match=r"picture.shape\[2\] == 3"):
        image.rgb_to_hsv(na.zeros((2, 2, 4)), np.zeros((2, 2, 4), np.float32)).sync()
