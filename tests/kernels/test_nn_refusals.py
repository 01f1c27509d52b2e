"""Kernels of transformers refuse shapes that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import LaunchError
from numbasync_kernels import nn
from tests.common import host


def unwritten(*shape: int) -> na.Tensor:
    return na.full(shape, np.nan).sync()


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def marks(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.int32)


WRONG: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[Any, ...], str]] = {
    "gelu": (nn.gelu, (4,), (zeros(5),), r"x\.shape == out\.shape"),
    "rows of a norm": (
        nn.layer_norm, (4, 8), (zeros(5, 8), zeros(8), zeros(8), 1e-5), r"x\.shape == out"),
    "a scale": (
        nn.layer_norm, (4, 8), (zeros(4, 8), zeros(7), zeros(7), 1e-5), r"scale\.shape =="),
    "a shift": (
        nn.layer_norm, (4, 8), (zeros(4, 8), zeros(8), zeros(9), 1e-5), r"shift\.shape =="),
    "a residual": (
        nn.add_layer_norm, (4, 8), (zeros(4, 8), zeros(3, 8), zeros(8), zeros(8), 1e-5),
        r"residual\.shape == out"),
    "units": (nn.unit_rows, (4, 8), (zeros(4, 9),), r"x\.shape == out"),
    "a pool": (nn.mean_pool, (4, 8), (zeros(4, 2, 9), marks(4, 2)), r"x\.shape\[2\]"),
    "a pool's mask": (nn.mean_pool, (4, 8), (zeros(4, 2, 8), marks(2, 4)), r"mask\.shape =="),
    "positions": (
        nn.embedding, (1, 9, 4),
        (marks(1, 9), marks(1, 9), zeros(5, 4), zeros(8, 4), zeros(2, 4)),
        r"out\.shape\[1\] <= positions"),
    "a table": (
        nn.embedding, (1, 3, 4),
        (marks(1, 3), marks(1, 3), zeros(5, 5), zeros(8, 4), zeros(2, 4)),
        r"words\.shape\[1\] =="),
    "kinds": (
        nn.embedding, (1, 3, 4),
        (marks(1, 3), marks(1, 4), zeros(5, 4), zeros(8, 4), zeros(2, 4)),
        r"kinds\.shape =="),
    "more keys than fit": (
        nn.attention, (1, 2, 8), (zeros(1, 2, 8), *[zeros(1, 513, 8)] * 2, marks(1, 513), 1),
        r"k\.shape\[1\] <= 512"),
    "a wide head": (
        nn.attention, (1, 2, 258), (*[zeros(1, 2, 258)] * 3, marks(1, 2), 2), r"<= 128"),
    "heads that do not divide": (
        nn.attention, (1, 2, 8), (*[zeros(1, 2, 8)] * 3, marks(1, 2), 3), r"% heads == 0"),
    "no head": (nn.attention, (1, 2, 8), (*[zeros(1, 2, 8)] * 3, marks(1, 2), 0), r"heads >= 1"),
    "a mask": (
        nn.attention, (1, 2, 8), (*[zeros(1, 2, 8)] * 3, marks(2, 1), 1), r"mask\.shape =="),
    "values": (
        nn.attention, (1, 2, 8), (zeros(1, 2, 8), zeros(1, 3, 8), zeros(1, 2, 8), marks(1, 3), 1),
        r"k\.shape == v\.shape"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_shapes_that_do_not_fit_are_refused(device: na.Device, case: str) -> None:
    kernel, shape, rest, says = WRONG[case]
    out = unwritten(*shape)
    with pytest.raises(LaunchError, match=says):
        kernel(out, *rest).sync()
    assert np.isnan(host(out)).all()
