"""Clusters: blocks that run together, in kernels that run as Python."""

from __future__ import annotations

from numbasync.backend.cpu.interpreter.tensor_cores.calls import Call


def cluster_rank() -> int:
    return Call("cluster_rank").block.rank


def cluster_size() -> int:
    return len(Call("cluster_size").block.cluster.blocks)


def cluster_sync() -> None:
    call = Call("cluster_sync")
    cluster, threads = call.block.cluster, call.block.threads
    cluster.waiting.append(threads.current)
    if len(cluster.waiting) == cluster.threads:
        cluster.clocks.join()
        for thread in cluster.waiting:
            thread.block.resume(thread)
        cluster.waiting.clear()

    def lacking() -> str:
        return f"{len(cluster.waiting)} of {cluster.threads} threads of the cluster have come"

    threads.wait(call.wait(lacking))
