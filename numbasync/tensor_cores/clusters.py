"""Clusters: blocks that run at the same time, and reach one another's shared memory.

A launcher says how many blocks are a cluster (`@na.launcher(cluster=2)`). They share the work of
loading: `load_tile` with a mask loads into the tiles of several blocks, and `barrier_arrive` with a
rank tells another block that its tile has been read. A launch without clusters has clusters of one
block.

Source: PTX ISA, "Parallel Synchronization and Communication Instructions: barrier.cluster".
"""

from __future__ import annotations

from typing import Any

from numbasync.kernel_names import types as numba_types
from numbasync.tensor_cores.ptx import Generate, asm, operation_of_clusters, statement

types: Any = numba_types


def _of_register(name: str) -> Generate:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return asm(builder, f"mov.u32 $0, %{name};", "r", "", [], pure=True)[0]

    return generate


@operation_of_clusters
def cluster_rank(typing):  # type: ignore[no-untyped-def]
    """The number of the block in its cluster, from 0 on, along x first."""
    return types.int32(), _of_register("cluster_ctarank")


@operation_of_clusters
def cluster_size(typing):  # type: ignore[no-untyped-def]
    """The number of blocks of a cluster."""
    return types.int32(), _of_register("cluster_nctarank")


@operation_of_clusters
def cluster_sync(typing):  # type: ignore[no-untyped-def]
    """Wait until all threads of all blocks of the cluster have come, as `cuda.syncthreads` does in
    a block. Before blocks use one another's barriers, it makes known that these are initialised
    (after `fence_barrier_init`); at the end of the kernel it keeps a block's shared memory until
    the others are done with it.
    """
    text = "barrier.cluster.arrive.release; barrier.cluster.wait.acquire;"
    return types.void(), statement(text)
