"""Random copies between devices, against NumPy: `python -m tests.stress.device_copies N SEED KIND`.

Tensors of one shape lie on the devices of a kind. Each step copies one into another, whole or in
part, or writes one by a kernel, on a stream chosen at random, and waits for nothing; NumPy does the
same in order.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numba import cuda

import numbasync as na

SHAPE = (6, 40)
VIEWS: tuple[Any, ...] = (
    (...,), (slice(None, None, 2),), (slice(1, 4), slice(3, 30, 3)), (slice(None, None, -1),),
    (slice(2, 2),), (2,),
)  # fmt: skip


@na.launcher(threads=32)
def add(z: na.KernelOutput, a: int) -> None:  # type: ignore[valid-type]
    i = cuda.grid(1)
    if i < z.shape[0]:
        for k in range(z.shape[1]):
            z[i, k] += a


def main(count: int, seed: int, kind: str) -> None:
    draw = np.random.default_rng(seed)
    places = na.devices(kind)[:3]
    streams = [[device.new_stream() for _ in range(2)] for device in places]
    arrays = [draw.integers(0, 1000, SHAPE) for _ in range(2 * len(places))]
    tensors = [
        na.to_device(array, places[i % len(places)]).sync() for i, array in enumerate(arrays)
    ]
    for step in range(count):
        d, s = draw.integers(len(tensors), size=2)
        view = VIEWS[draw.integers(len(VIEWS))]
        stream = streams[d % len(places)][draw.integers(2)]
        way = draw.integers(4)
        if way == 0:
            tensors[d].copy_from(tensors[s]).async_on(stream)
            arrays[d][...] = arrays[s].copy()
        elif way == 1:
            tensors[d][view].copy_from(tensors[s][view]).async_on(stream)
            arrays[d][view] = arrays[s][view].copy()
        elif way == 2:
            tensors[d] = na.to_device(tensors[s], places[d % len(places)]).sync_on(stream)
            arrays[d] = arrays[s] if tensors[d] is tensors[s] else arrays[s].copy()
        else:
            add[1, 32](tensors[d], step).async_on(stream)
            arrays[d] += step
    for tensor, array, i in zip(tensors, arrays, range(len(arrays)), strict=True):
        found = tensor.to_host().sync_on(streams[i % len(places)][0])
        np.testing.assert_array_equal(found, array)
    print(f"{count} copies between {len(places)} devices")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
