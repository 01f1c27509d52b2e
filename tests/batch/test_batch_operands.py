"""Operands of one element, and of other shapes, beside what is reduced along any axis."""

from __future__ import annotations

from typing import Any

import numpy as np

import numbasync as na

F32 = np.float32
R = np.random.default_rng(12)
FLAT = R.integers(-9, 10, (4, 7)).astype(F32)
DEEP = R.integers(-9, 10, (3, 4, 5)).astype(F32)


def test_operands_of_one_element(device: na.Device) -> None:
    """As arrays of no axes and of some, as tensors, and as results."""
    t = na.from_host(np.array([5, 2], F32)).sync()
    for _ in range(2):  # the second batch is enqueued at once
        b = na.CommandBatch()
        x, deep = b.upload(FLAT), b.upload(DEEP)
        twos = [b.upload(np.full(shape, 2, F32)) for shape in ((), (1,), (1, 1))]
        twos += [b.use(t[1:]), b.use(t[1:].reshape())]
        results = [(b.sum(x * two, axis=0), (FLAT * 2).sum(0)) for two in twos]
        results += [
            (b.max(x * twos[0], axis=0, keepdims=True), (FLAT * 2).max(0, keepdims=True)),
            (b.mean(x + twos[1], axis=0), (FLAT + 2).mean(0)),
            (b.argmax(twos[2] * x, axis=-2), FLAT.argmax(0)),
            (b.sum(deep * twos[0] - twos[3], axis=1), (DEEP * 2 - 2).sum(1)),
            (b.argmax(deep * twos[1], axis=1), DEEP.argmax(1)),
            (b.mean((x - b.mean(x)) ** 2, axis=0), FLAT.var(0) + (FLAT.mean(0) - FLAT.mean()) ** 2),
        ]
        found = b.compute_sync(*(id for id, _ in results))
        for have, (_, want) in zip(found, results, strict=True):
            np.testing.assert_allclose(have, want, rtol=1e-6)


def test_rows_before_an_axis_of_one_element(device: na.Device) -> None:
    b = na.CommandBatch()
    x, w = DEEP[..., :1], DEEP[:, :1, :1]
    total = b.sum(b.upload(x) * b.upload(w), axis=1)
    np.testing.assert_array_equal(b.compute_sync(total), (x * w).sum(1))


def test_operands_of_other_shapes_in_turn(device: na.Device) -> None:
    """The same program again and again: what was planned for one shape is not used for another."""
    shapes: list[Any] = [(1,), (7,), (4, 1)]
    for shape in (*shapes, *reversed(shapes)):
        w = R.integers(-9, 10, shape).astype(F32)
        b = na.CommandBatch()
        total = b.sum(b.upload(FLAT) * b.upload(w), axis=0)
        np.testing.assert_array_equal(b.compute_sync(total), (FLAT * w).sum(0))
