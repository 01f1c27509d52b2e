"""Asynchronous barriers (mbarriers), fences, and the registers of a warpgroup.

A barrier goes through phases. A phase ends when as many threads have arrived as `barrier_init`
said, and all bytes that `barrier_expect` announced have been copied. The first phase has parity 0,
the next 1, and so on in turn. Waiting for the parity of the phase before the first returns at once,
so that a producer may begin by waiting for parity 1.

Source: PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier".
"""

from __future__ import annotations

from typing import Any

from numbasync.kernel_names import types as numba_types
from numbasync.tensor_cores.ptx import (
    Generate,
    asm,
    check_integers,
    literal,
    operation,
    operation_of_maps,
    statement,
    word,
)
from numbasync.tensor_cores.tiles import barrier_address, check_barrier

types: Any = numba_types
# Released to the block, not to the cluster: that would flush writes to global memory, at each step.
ARRIVE_THERE = (
    "{ .reg .b32 there; mapa.shared::cluster.u32 there, $0, $1; "
    "mbarrier.arrive.shared::cluster.b64 _, [there]; }"
)
WAIT = (
    "{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [$0], $1; "
    "@!done bra again; }"
)


def _on_barrier(text: str, extra: int) -> Generate:
    """The generator of a statement whose operands are a barrier's address and `extra` words."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        words = [
            word(context, builder, value, numba_type)
            for value, numba_type in zip(args[2:], signature.args[2:], strict=True)
            if numba_type != types.none
        ]
        address = barrier_address(context, builder, signature, args)
        asm(builder, text, "", "r" * (1 + extra), [address, *words])
        return context.get_dummy_value()

    return generate


@operation_of_maps
def barrier_init(typing, barriers, index, arrivals):  # type: ignore[no-untyped-def]
    """Begin the first phase of a barrier, which needs so many arrivals. One thread calls it; then
    `fence_barrier_init` and `cuda.syncthreads()` make it known to all; or `cluster_sync`, to all
    blocks of a cluster.
    """
    check_barrier(barriers, index)
    check_integers(arrivals=arrivals)
    text = "mbarrier.init.shared::cta.b64 [$0], $1;"
    return types.void(barriers, index, arrivals), _on_barrier(text, 1)


@operation_of_maps
def fence_barrier_init(typing):  # type: ignore[no-untyped-def]
    """Order initialised barriers before asynchronous copies that use them."""
    return types.void(), statement("fence.mbarrier_init.release.cluster;")


@operation_of_maps
def barrier_arrive(typing, barriers, index, rank=None):  # type: ignore[no-untyped-def]
    """Arrive at a barrier: one of the arrivals that end its phase. What the thread has read and
    written before is done for threads that wait for the phase.

    Args:
        rank: of the block in the cluster at whose barrier, of the same array and index, the thread
            arrives; None: at its own. It tells threads of another block that tiles have been read;
            they need not see what the thread has written to global memory.
    """
    check_barrier(barriers, index)
    if rank in (None, types.none):
        text = "mbarrier.arrive.shared::cta.b64 _, [$0];"
        return types.void(barriers, index, rank), _on_barrier(text, 0)
    check_integers(rank=rank)
    return types.void(barriers, index, rank), _on_barrier(ARRIVE_THERE, 1)


@operation_of_maps
def barrier_expect(typing, barriers, index, nbytes):  # type: ignore[no-untyped-def]
    """Arrive at a barrier, whose phase then ends only when `nbytes` more bytes have been copied by
    `load_tile`. Call it before these copies.
    """
    check_barrier(barriers, index)
    check_integers(nbytes=nbytes)
    text = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;"
    return types.void(barriers, index, nbytes), _on_barrier(text, 1)


@operation_of_maps
def barrier_wait(typing, barriers, index, parity):  # type: ignore[no-untyped-def]
    """Wait until the phase of this parity (0 or 1) has ended: until the barrier's current phase has
    the other parity.
    """
    check_barrier(barriers, index)
    check_integers(parity=parity)
    return types.void(barriers, index, parity), _on_barrier(WAIT, 1)


@operation_of_maps
def fence_async(typing):  # type: ignore[no-untyped-def]
    """Order the thread's writes to shared memory before asynchronous operations that read it:
    `wgmma` and `store_tile`. Call it before the barrier behind which they are called.
    """
    return types.void(), statement("fence.proxy.async.shared::cta;")


@operation
def part_sync(typing, number, threads):  # type: ignore[no-untyped-def]
    """Wait until `threads` threads, whole warps, have come to the block's barrier of this number
    (1 to 15; `cuda.syncthreads` is 0), by `part_sync` or `part_arrive`.
    """
    check_integers(number=number)
    count = literal(threads, "threads")
    return types.void(number, threads), _with_number(f"bar.sync $0, {count};")


@operation
def part_arrive(typing, number, threads):  # type: ignore[no-untyped-def]
    """Arrive at the barrier of `part_sync` without waiting."""
    check_integers(number=number)
    count = literal(threads, "threads")
    return types.void(number, threads), _with_number(f"bar.arrive $0, {count};")


def _with_number(text: str) -> Generate:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        asm(builder, text, "", "r", [word(context, builder, args[0], signature.args[0])])
        return context.get_dummy_value()

    return generate


@operation_of_maps
def give_up_registers(typing, count):  # type: ignore[no-untyped-def]
    """Let each thread of the warpgroup have `count` registers at most (24 to 256, a multiple of 8),
    so that other warpgroups may take more. All threads of the warpgroup call it.
    """
    return _registers("dec", count)


@operation_of_maps
def take_registers(typing, count):  # type: ignore[no-untyped-def]
    """Let each thread of the warpgroup have `count` registers, once others have given them up."""
    return _registers("inc", count)


def _registers(change: str, count: Any) -> Any:
    number = literal(count, "count", range(24, 257, 8))
    text = f"setmaxnreg.{change}.sync.aligned.u32 {number};"

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        asm(builder, text, "", "", [])
        return context.get_dummy_value()

    return types.void(count), generate
