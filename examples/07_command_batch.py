"""Command batches: operations that are recorded first, and run as one.

Three programs: one operation, some that become one kernel, and a small piece of machine learning.
Run eagerly, each operation would copy its operands to the device and its result back; a batch
copies what goes in once, and what is read once, and what lies between never leaves the registers.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import numbasync as na

N = 100_000


async def one_operation(x: np.ndarray[Any, Any]) -> None:
    b = na.CommandBatch()
    y = b.relu(b.upload(x))
    await b.execute()
    np.testing.assert_array_equal(await b.read(y), np.maximum(x, 0))
    report("one operation", b)


async def batched_operations(x: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> None:
    b = na.CommandBatch()
    rectified = b.relu(b.upload(x))
    scaled = b.scale(rectified, 2.0)
    y = b.add(scaled, b.upload(other))  # or, in short: b.relu(x) * 2 + other
    await b.execute()
    want = np.maximum(x, 0) * np.float32(2) + other
    np.testing.assert_array_equal(await b.read(y), want)
    report("three operations", b)
    print(b.plan())


@na.elementwise
def leaky(x: Any, slope: Any) -> Any:
    """A function of our own: it fuses like the built-in ones."""
    return x if x > 0 else slope * x


async def learning(features: np.ndarray[Any, Any], weights: np.ndarray[Any, Any]) -> None:
    """Normalised features, gated by weights; the odds of each class, and how sure they are."""
    b = na.CommandBatch()
    x, w = b.upload(features), b.upload(weights)
    hidden = leaky(b.layer_norm(x) * w, 0.01) + b.gelu(x)
    odds = b.softmax(hidden)
    best, sure = b.argmax(odds, axis=1), b.max(odds, axis=1)
    b.keep(odds)  # others are computed from it; it is read all the same
    await b.execute()

    shares, classes = await b.read(odds), await b.read(best)
    np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(classes, shares.argmax(axis=1))
    np.testing.assert_array_equal(await b.read(sure), shares.max(axis=1))
    report("a piece of machine learning", b)
    plan = b.plan()
    print(f"  {plan.peak_bytes:,} bytes on the device; a buffer each: {plan.naive_bytes:,}")


def report(what: str, b: na.CommandBatch) -> None:
    t = b.transfers
    print(
        f"{what}: {b.num_operations} operations, {t.uploads} up, {t.downloads} down, "
        f"{b.kernels_launched} kernels"
    )


async def main() -> None:
    generator = np.random.default_rng(7)
    x, other = (generator.normal(0, 1, N).astype(np.float32) for _ in range(2))
    began = time.perf_counter()
    await one_operation(x)
    await batched_operations(x, other)
    features = generator.normal(0, 1, (64, 1000)).astype(np.float32)
    await learning(features, generator.random(1000, np.float32))
    print(f"all of it, compiling included: {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    na.run(main())
