"""Arrays as rows, against NumPy's own idea of where elements lie."""

from __future__ import annotations

import numpy as np
import pytest

from numbasync.backend.pitched_rows import Rows, rows


def found(array: np.ndarray) -> Rows | None:
    return rows(array.shape, array.strides, array.itemsize)


def places(array: np.ndarray) -> list[int]:
    """The byte of each element's beginning, in C order."""
    return [int(np.dot(i, array.strides)) for i in np.ndindex(array.shape)]


@pytest.mark.parametrize(
    ("array", "want"),
    [
        (np.zeros(6, np.int32), Rows(1, 24, 24)),
        (np.zeros((), np.int32), Rows(1, 4, 4)),
        (np.zeros((4, 8), np.int32)[:, :3], Rows(4, 12, 32)),
        (np.zeros((4, 8), np.int32)[::2], Rows(2, 32, 64)),
        (np.zeros((2, 4, 8), np.int32)[:, :, 1:4], Rows(8, 12, 32)),
        (np.zeros((2, 4, 8), np.int32)[:, 1:3], Rows(2, 64, 128)),
        (np.zeros((2, 4, 8), np.int32)[:, 1:3, :5], None),
        (np.zeros(10, np.int32)[::2], Rows(5, 4, 8)),
        (np.zeros(10, np.int32)[::-1], None),
        (np.zeros((3, 5), np.int32).T, None),
        (np.broadcast_to(np.zeros(4, np.int32), (3, 4)), None),
        (np.zeros((0, 4), np.int32), None),
        (np.zeros((3, 1, 5), np.int32)[:, :, :2], Rows(3, 8, 20)),
    ],
)
def test_rows(array: np.ndarray, want: Rows | None) -> None:
    got = found(array)
    assert got == want
    if got is not None:
        starts = [r * got.pitch for r in range(got.height)]
        each = [s + i for s in starts for i in range(0, got.width, array.itemsize)]
        assert each == places(array)
