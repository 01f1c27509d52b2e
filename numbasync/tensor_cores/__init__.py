"""Tensor cores and asynchronous copies, in kernels.

    from numbasync import tensor_cores as tc

    LAYOUT = na.shared_layout(a=tc.tile(np.float16, (128, 64)), b=tc.tile(np.float16, (128, 64)))

Operands lie in tiles of shared memory (`tiles`), where asynchronous copies have put them
(`copies`); barriers say when they have arrived (`mbarriers`). Blocks of a cluster share what one of
them copies (`clusters`). A warp loads fragments of tiles into registers (`fragments`) and
multiplies these with `mma`; on GPUs of capability 9.0, warpgroups multiply tiles with `wgmma`
(`products`). Sums are in accumulators, whose elements kernels change (`accumulators`) and store
(`storing`, `storing_by_map`).
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
