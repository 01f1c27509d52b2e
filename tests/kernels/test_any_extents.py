"""Ready kernels for pictures and matrices beside their references, of any extents and dtype."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import numbasync as na
from numbasync_kernels import image, matrix
from tests.common import host

U = 2.0**-24
EXTENTS = st.integers(1, 70)
DTYPES = st.sampled_from(["uint8", "int16", "float32"])


def numbers(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape).astype(dtype)


@pytest.mark.full
def test_pictures(device: na.Device) -> None:
    @settings(max_examples=25)
    @given(EXTENTS, EXTENTS, EXTENTS, EXTENTS, DTYPES, st.integers(0, 8), st.integers(0, 99))
    def check_one(h: int, w: int, m: int, n: int, dtype: str, radius: int, seed: int) -> None:
        levels = numbers((h, w), dtype, seed)
        out, same = na.zeros((m, n)).sync(), na.zeros((h, w), dtype).sync()
        image.resize_bilinear(out, levels).sync()
        want = image.resize_bilinear_reference(levels, (m, n))
        assert np.abs(host(out) - want).max() <= 9 * U * 255
        image.resize_area(out, levels).sync()
        want = image.resize_area_reference(levels, (m, n))
        assert np.abs(host(out) - want).max() <= (h // m + w // n + 9) * U * 255
        image.dilate(same, levels, radius).sync()
        np.testing.assert_array_equal(host(same), image.dilate_reference(levels, radius))
        smooth = na.zeros((h, w)).sync()
        image.box_blur(smooth, levels, radius).sync()
        want = image.box_blur_reference(levels, radius)
        assert np.abs(host(smooth) - want).max() <= (4 * radius + 2) * U * 255
        coloured = numbers((h, w, 3), dtype, seed)
        made = na.zeros((h, w, 3)).sync()
        image.rgb_to_hsv(made, coloured).sync()
        want = image.rgb_to_hsv_reference(coloured)
        assert np.abs(host(made) - want).max() <= 3 * U

    check_one()


@pytest.mark.full
def test_matrices(device: na.Device) -> None:
    @settings(max_examples=25)
    @given(EXTENTS, EXTENTS, st.integers(1, 9), st.integers(0, 99))
    def check_one(m: int, n: int, blocks: int, seed: int) -> None:
        a, v = numbers((m, n), "float32", seed), numbers((n,), "float32", seed)
        out = na.zeros(m).sync()
        matrix.matvec[min(m, blocks), 256](out, a, v).sync()
        np.testing.assert_array_equal(host(out), matrix.matvec_reference(a, v))  # whole numbers

    check_one()
