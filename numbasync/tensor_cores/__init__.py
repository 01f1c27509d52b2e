"""Tensor cores and asynchronous copies, in kernels.

Operands lie in tiles of shared memory (`tiles`), where asynchronous copies have put them
(`copies`); barriers say when they have arrived (`mbarriers`). Blocks of a cluster share what one of
them copies (`clusters`). A warp loads fragments of tiles into registers (`fragments`) and
multiplies these with `mma`; on GPUs of capability 9.0, warpgroups multiply tiles with `wgmma`
(`products`). Sums are in accumulators, whose elements kernels change (`accumulators`) and store
(`storing`, `storing_by_map`).

Examples:
    A warp multiplies, takes the lower triangle, and makes each row of it sum up to 1:

    >>> from numba import float32
    >>> from numbasync import tensor_cores as tc
    >>> WARP = na.shared_layout(a=tc.tile(np.float16, (16, 64)), b=tc.tile(np.float16, (16, 64)))
    >>> @cuda.jit(device=True)
    ... def lower(element, row, column):
    ...     return element if column <= row else float32(-1e30)
    >>> @na.launcher
    ... @cuda.jit
    ... def softmax(out: na.KernelOutput, a: na.KernelInput, b: na.KernelInput):
    ...     lane = cuda.threadIdx.x
    ...     tc.copy_rows(WARP.a, (0, 0), a, (0, 0), lane, 32)
    ...     for chunk in range(lane, 128, 32):  # as copy_rows does
    ...         i, k = chunk // 8, chunk % 8 * 8
    ...         tc.copy_async(WARP.b, (i, k), b, (i, k), 8)
    ...     tc.commit_copies()
    ...     tc.wait_copies(0)
    ...     cuda.syncthreads()
    ...     sums = tc.accumulator(16, 16)
    ...     for k in range(0, 64, 16):
    ...         left, right = tc.load_a(WARP.a, (0, k), 16), tc.load_b(WARP.b, (0, k), 16)
    ...         sums = tc.mma(sums, left, right)
    ...     sums = tc.apply(lower, sums, (0, 0))
    ...     most = tc.row_max(sums, (float32(-1e30), float32(-1e30)))
    ...     sums = tc.exp2_rows(sums, float32(1), most)
    ...     whole = tc.row_sum(sums)
    ...     sums = tc.scale_rows(sums, (float32(1 / whole[0]), float32(1 / whole[1])))
    ...     tc.store(out, (0, 0), sums)
    >>> a, b = np.ones((16, 64), np.float16), np.ones((16, 64), np.float16)
    >>> result = await softmax[1, 32](na.zeros((16, 16)), a, b)
    >>> (await result.out.to_host())[:3, :4].round(3)
    array([[1.   , 0.   , 0.   , 0.   ],
           [0.5  , 0.5  , 0.   , 0.   ],
           [0.333, 0.333, 0.333, 0.   ]], dtype=float32)

    One warpgroup loads, and one multiplies what barriers tell it is there, twice by `b.T`:

    >>> GROUP = na.shared_layout(
    ...     a=tc.tile(np.float16, (64, 64)), b=tc.tile(np.float16, (64, 64)),
    ...     out=tc.tile(np.float32, (4, 1, 16, 32)), full=tc.barriers(1), empty=tc.barriers(1),
    ... )
    >>> @na.launcher
    ... @cuda.jit
    ... def products(out: na.KernelOutput, a: na.KernelInput, b: na.KernelInput):
    ...     thread, warp = cuda.threadIdx.x, cuda.threadIdx.x // 32
    ...     if thread == 0:
    ...         tc.prefetch_map(a)
    ...         tc.barrier_init(GROUP.full, 0, 1)
    ...         tc.barrier_init(GROUP.empty, 0, 1)
    ...         tc.fence_barrier_init()
    ...     cuda.syncthreads()
    ...     if thread >= 128:
    ...         tc.give_up_registers(40)
    ...         if thread == 128:
    ...             tc.barrier_expect(GROUP.full, 0, 2 * 2 * 64 * 64)
    ...             tc.load_tile(GROUP.a, (0, 0), a, (0, 0), GROUP.full, 0)
    ...             tc.load_tile(GROUP.b, (0, 0), b, (0, 0), GROUP.full, 0)
    ...             tc.barrier_wait(GROUP.empty, 0, 0)  # and could load again
    ...     else:
    ...         tc.take_registers(232)
    ...         tc.barrier_wait(GROUP.full, 0, 0)
    ...         sums = tc.accumulator(16, 64)  # a warp's 16 rows of the 64
    ...         sums = tc.wgmma(sums, GROUP.a, (0, 0), GROUP.b, (0, 0), False, 64)
    ...         left = tc.to_fragment(tc.wgmma_wait(sums, 0), np.float16)
    ...         twice = tc.wgmma_fragment(tc.accumulator(16, 64), left, GROUP.b, (0, 0))
    ...         twice = tc.wgmma_wait(twice, 0)
    ...         if thread == 0:
    ...             tc.barrier_arrive(GROUP.empty, 0)
    ...         tc.store_by_map(out, (16 * warp, 0), GROUP.out, (warp, 0, 0, 0), twice)
    ...         if thread % 32 == 0:
    ...             tc.wait_stores(0)
    >>> a, b, out = await na.gather(
    ...     na.ones((64, 64), np.float16), na.eye(64, dtype=np.float16), na.zeros((64, 64))
    ... )
    >>> maps = na.tensor_map(out, (16, 32)), na.tensor_map(a, (64, 64)), na.tensor_map(b, (64, 64))
    >>> _ = await products[1, 256](*maps)
    >>> bool((await out.to_host() == 1).all())
    True

    Two blocks of a cluster copy a tile each; in a block one warp brings it and another stores it:

    >>> CLUSTER = na.shared_layout(tile=tc.tile(np.float32, (8, 32), swizzle=0))
    >>> @na.launcher(cluster=2)
    ... @cuda.jit
    ... def copy(out: na.KernelOutput, sums: na.KernelOutput, x: na.KernelInput):
    ...     thread, rank = cuda.threadIdx.x, tc.cluster_rank()
    ...     if thread < 32:
    ...         tc.copy_rows(CLUSTER.tile, (0, 0), x, (8 * rank, 0), thread, 32)
    ...         tc.commit_copies()
    ...         tc.wait_copies(0)
    ...         tc.fence_async()
    ...         tc.part_arrive(1, 64)
    ...         part = tc.exp2(float32(rank * tc.cluster_size()))
    ...         sums[rank, thread] = tc.sum_over_row(part)  # of four lanes
    ...     else:
    ...         tc.part_sync(1, 64)
    ...         if thread == 32:
    ...             tc.store_tile(out, (8 * rank, 0), CLUSTER.tile, (0, 0))
    ...             tc.commit_stores()
    ...             tc.wait_stores(0)
    ...     tc.cluster_sync()
    >>> out, sums, x = await na.gather(na.zeros((16, 32)), na.zeros((2, 32)), na.ones((16, 32)))
    >>> _ = await copy[2, 64](na.tensor_map(out, (8, 32), swizzle=0), sums, x)
    >>> bool((await out.to_host() == 1).all()), (await sums.to_host())[:, 0]
    (True, array([ 4., 16.], dtype=float32))
"""

from __future__ import annotations

from numbasync.tensor_cores.accumulators import apply as apply
from numbasync.tensor_cores.accumulators import exp2 as exp2
from numbasync.tensor_cores.accumulators import exp2_rows as exp2_rows
from numbasync.tensor_cores.accumulators import row_max as row_max
from numbasync.tensor_cores.accumulators import row_sum as row_sum
from numbasync.tensor_cores.accumulators import scale_rows as scale_rows
from numbasync.tensor_cores.accumulators import sum_over_row as sum_over_row
from numbasync.tensor_cores.clusters import cluster_rank as cluster_rank
from numbasync.tensor_cores.clusters import cluster_size as cluster_size
from numbasync.tensor_cores.clusters import cluster_sync as cluster_sync
from numbasync.tensor_cores.copies import commit_copies as commit_copies
from numbasync.tensor_cores.copies import commit_stores as commit_stores
from numbasync.tensor_cores.copies import copy_async as copy_async
from numbasync.tensor_cores.copies import copy_rows as copy_rows
from numbasync.tensor_cores.copies import load_tile as load_tile
from numbasync.tensor_cores.copies import prefetch_map as prefetch_map
from numbasync.tensor_cores.copies import store_tile as store_tile
from numbasync.tensor_cores.copies import wait_copies as wait_copies
from numbasync.tensor_cores.copies import wait_stores as wait_stores
from numbasync.tensor_cores.fragments import accumulator as accumulator
from numbasync.tensor_cores.fragments import load_a as load_a
from numbasync.tensor_cores.fragments import load_b as load_b
from numbasync.tensor_cores.fragments import to_fragment as to_fragment
from numbasync.tensor_cores.mbarriers import barrier_arrive as barrier_arrive
from numbasync.tensor_cores.mbarriers import barrier_expect as barrier_expect
from numbasync.tensor_cores.mbarriers import barrier_init as barrier_init
from numbasync.tensor_cores.mbarriers import barrier_wait as barrier_wait
from numbasync.tensor_cores.mbarriers import fence_async as fence_async
from numbasync.tensor_cores.mbarriers import fence_barrier_init as fence_barrier_init
from numbasync.tensor_cores.mbarriers import give_up_registers as give_up_registers
from numbasync.tensor_cores.mbarriers import part_arrive as part_arrive
from numbasync.tensor_cores.mbarriers import part_sync as part_sync
from numbasync.tensor_cores.mbarriers import take_registers as take_registers
from numbasync.tensor_cores.products import mma as mma
from numbasync.tensor_cores.products import wgmma as wgmma
from numbasync.tensor_cores.products import wgmma_fragment as wgmma_fragment
from numbasync.tensor_cores.products import wgmma_wait as wgmma_wait
from numbasync.tensor_cores.storing import store as store
from numbasync.tensor_cores.storing_by_map import store_by_map as store_by_map
from numbasync.tensor_cores.tiles import barriers as barriers
from numbasync.tensor_cores.tiles import tile as tile
