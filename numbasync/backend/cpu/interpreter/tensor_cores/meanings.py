"""The operations of `numbasync.tensor_cores`, as kernels that run as Python call them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbasync.backend.cpu.interpreter.tensor_cores import (
    accumulators,
    barriers,
    clusters,
    copies,
    fragments,
    products,
    stores,
)

_FUNCTIONS: tuple[Callable[..., Any], ...] = (
    accumulators.apply, accumulators.exp2, accumulators.exp2_rows, accumulators.row_max,
    accumulators.row_sum, accumulators.scale_rows, accumulators.store, accumulators.sum_over_row,
    barriers.barrier_arrive, barriers.barrier_expect, barriers.barrier_init, barriers.barrier_wait,
    barriers.fence_async, barriers.fence_barrier_init, barriers.give_up_registers,
    barriers.part_arrive, barriers.part_sync, barriers.take_registers,
    clusters.cluster_rank, clusters.cluster_size, clusters.cluster_sync,
    copies.commit_copies, copies.copy_async, copies.copy_rows,
    copies.load_tile, copies.prefetch_map, copies.wait_copies,
    fragments.accumulator, fragments.load_a, fragments.load_b, fragments.to_fragment,
    stores.commit_stores, stores.store_by_map, stores.store_tile, stores.wait_stores,
    products.mma, products.wgmma, products.wgmma_fragment, products.wgmma_wait,
)  # fmt: skip
MEANINGS: dict[str, Callable[..., Any]] = {f.__name__: f for f in _FUNCTIONS}
