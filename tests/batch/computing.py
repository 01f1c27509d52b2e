"""Arrays that batches compute with, and batches of one or several expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

import numbasync as na

F32 = np.float32
X = np.random.default_rng(1).normal(0, 2, 1000).astype(F32)
Y = np.random.default_rng(2).normal(0, 2, 1000).astype(F32)


def computed(record: Callable[..., Any], *arrays: Any, fuse: bool = True) -> Any:
    """What a batch of one result gives."""
    b = na.CommandBatch(fuse=fuse)
    id = record(b, *map(b.upload, arrays))
    b.execute_sync()
    return b.read_sync(id)


def each_computed(records: Iterable[Callable[..., Any]], *arrays: Any) -> list[Any]:
    """What a batch of several results gives. Those that go through the same elements are computed
    by one kernel: on the CPU device, to compile kernels is what takes the time.
    """
    b = na.CommandBatch()
    inputs = list(map(b.upload, arrays))
    ids = [record(b, *inputs) for record in records]
    b.execute_sync()
    return list(map(b.read_sync, ids))
