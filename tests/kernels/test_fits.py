"""Every ready kernel refuses an argument of the wrong rank or dtype before it compiles anything."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import numbasync as na
from numbasync.errors import LauncherError, LaunchError
from numbasync.launch.variants import compile_count
from numbasync_kernels import image, nn


def of(*shape: int, dtype: str = "float32") -> np.ndarray[Any, Any]:
    return np.zeros(shape, dtype)


def marks(*shape: int) -> np.ndarray[Any, Any]:
    return of(*shape, dtype="int32")


def pixels(*shape: int) -> np.ndarray[Any, Any]:
    return of(*shape, dtype="uint8")


COLOURS = (
    image.rgb_to_hsv, image.hsv_to_rgb, image.rgb_to_ycbcr, image.ycbcr_to_rgb, image.rgb_to_lab,
    image.lab_to_rgb,
)  # fmt: skip

# Arguments that fit; the first is the output.
FITTING: dict[na.Launcher, tuple[Any, ...]] = {
    nn.gelu: (of(8), of(8)),
    nn.layer_norm: (of(4, 8), of(4, 8), of(8), of(8), 1e-5),
    nn.add_layer_norm: (of(4, 8), of(4, 8), of(4, 8), of(8), of(8), 1e-5),
    nn.unit_rows: (of(4, 8), of(4, 8)),
    nn.mean_pool: (of(2, 8), of(2, 3, 8), marks(2, 3)),
    nn.embedding: (of(1, 3, 4), marks(1, 3), marks(1, 3), of(5, 4), of(8, 4), of(2, 4)),
    nn.attention: (of(1, 2, 8), of(1, 2, 8), of(1, 3, 8), of(1, 3, 8), marks(1, 3), 2),
    image.grey: (pixels(4, 5), pixels(4, 5, 3)),
    **dict.fromkeys(COLOURS, (of(4, 5, 3), of(4, 5, 3))),
    image.gaussian_blur: (of(4, 5), pixels(4, 5), of(7)),
    image.sobel: (of(4, 5), of(4, 5)),
    image.histogram: (marks(256), pixels(9)),
    image.equalisation_table: (pixels(256), marks(256)),
    image.look_up: (pixels(4, 5), pixels(4, 5), pixels(256)),
    image.clahe_tables: (pixels(2, 2, 256), pixels(4, 5), 2.0),
    image.clahe: (pixels(4, 5), pixels(4, 5), pixels(2, 2, 256)),
    image.normalise: (of(3, 4, 5), of(4, 5, 3), of(3), of(3), 1.0),
    image.remap: (of(4, 5), of(6, 7), of(4, 5), of(4, 5), 0, 0.0),
    image.resize_nearest: (of(4, 5), of(6, 7)),
    image.resize_bilinear: (of(4, 5), of(6, 7)),
    image.resize_bicubic: (of(4, 5), of(6, 7)),
    image.resize_area: (of(4, 5), of(6, 7)),
    image.box_blur: (of(4, 5), of(4, 5), 1),
    image.erode: (of(4, 5), of(4, 5), 1),
    image.dilate: (of(4, 5), of(4, 5), 1),
    image.median: (of(4, 5), of(4, 5), 1),
}
OF_ANY_REAL_DTYPE = {
    (image.gaussian_blur, "levels"), (image.normalise, "picture"), (image.remap, "levels"),
    (image.resize_bilinear, "levels"), (image.resize_bicubic, "levels"),
    (image.resize_area, "levels"), *((kernel, "picture") for kernel in COLOURS),
}  # fmt: skip


def test_no_kernel_is_left_out() -> None:
    ready = [v for m in (nn, image) for v in vars(m).values() if isinstance(v, na.Launcher)]
    assert set(ready) == set(FITTING)


def called(kernel: na.Launcher, args: list[Any]) -> None:
    out = na.from_host(args[0]).sync()
    before = compile_count()
    try:
        kernel[1, 1](out, *args[1:]).sync()
    finally:
        assert compile_count() == before, "compiled before it was refused"


@pytest.mark.parametrize("kernel", FITTING, ids=lambda kernel: kernel.name)
def test_wrong_ranks_and_dtypes_are_refused(device: na.Device, kernel: na.Launcher) -> None:
    args = FITTING[kernel]
    values = dict(zip([p.name for p in kernel.parameters], args, strict=True))
    for condition in kernel.preconditions:
        condition.check(values)
    for i, right in enumerate(args):
        name = kernel.parameters[i].name
        if not isinstance(right, np.ndarray):
            with pytest.raises(LauncherError, match=name):
                called(kernel, [*args[:i], of(3), *args[i + 1 :]])
            continue
        wrongs = [right[None], np.asarray(right[0]), right.astype(np.complex64)]
        if (kernel, name) not in OF_ANY_REAL_DTYPE:
            other = np.float64 if right.dtype == np.float32 else np.float32
            wrongs.append(right.astype(other))
        for wrong in wrongs:
            with pytest.raises(LaunchError, match=rf"precondition .*{name}(.|\n)*{name}\.shape = "):
                called(kernel, [*args[:i], wrong, *args[i + 1 :]])


def test_bfloat16_is_one_of_the_dtypes(device: na.Device) -> None:
    levels = np.arange(300).reshape(15, 20).astype(ml_dtypes.bfloat16)
    out = [na.zeros((15, 20)).sync() for _ in range(2)]
    for z, x in zip(out, (levels, levels.astype(np.float32)), strict=True):
        image.gaussian_blur(z, x, image.gaussian_weights(1.2)).sync()
    blurred, want = (z.to_host().sync() for z in out)
    np.testing.assert_array_equal(blurred, want)
