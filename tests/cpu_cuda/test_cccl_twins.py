"""Functions of `cuda.coop` on the CPU device, beside NumPy."""

from __future__ import annotations

import enum
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numba import cuda, int32, uint8

import numbasync as na
from numbasync.errors import UnsupportedKernelError
from numbasync.launch import cccl_twins as twins

THREADS, ITEMS = 40, 2


class Exchange(enum.IntEnum):
    StripedToBlocked = 0


def test_each_function_has_its_documented_meaning() -> None:
    kind, n = np.int32, THREADS
    total = twins.make_reduce(int32, (n // 2, 2), max)
    before = twins.make_exclusive_sum(kind, n, ITEMS)
    load, store = twins.make_load(kind, n, ITEMS, "striped"), twins.make_store(kind, n, ITEMS)
    exchange = twins.make_exchange(Exchange.StripedToBlocked, kind, n, ITEMS)
    sort = twins.make_radix_sort_keys_descending(kind, n, ITEMS)
    size = total.temp_storage_bytes

    @cuda.jit(link=total.files)
    def together(greatest, items, x):
        i = cuda.threadIdx.x + cuda.blockDim.x * cuda.threadIdx.y
        storage = cuda.shared.array(size, uint8)
        own, other = cuda.local.array(ITEMS, int32), cuda.local.array(ITEMS, int32)
        load(x, own)
        greatest[i] = total(storage, i, 10)
        before(own, other)
        store(items[0], other)
        exchange(storage, own, other)
        store(items[1], other)
        sort(own)
        store(items[2], own)

    x = np.random.default_rng(0).permutation(THREADS * ITEMS).astype(kind)
    greatest, items = np.zeros(THREADS, kind), np.zeros((3, x.size), kind)
    with na.cuda_on_cpu():
        together[1, (THREADS // 2, 2)](greatest, items, x)
    owned = x.reshape(ITEMS, THREADS).T.ravel()
    assert set(greatest) == {9}  # of the first ten threads
    np.testing.assert_array_equal(items, [np.cumsum(owned) - owned, x, np.sort(x)[::-1]])


def test_the_switch_replaces_its_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, Any] = {n: ModuleType(f"cuda.coop{n}") for n in ("", ".block", ".warp")}
    for module in made.values():
        module.__spec__ = object()
        monkeypatch.setitem(sys.modules, module.__name__, module)
    block, warp = made[".block"], made[".warp"]
    own: Any = object()
    block.make_sum = warp.make_sum = own
    warp.make_merge_sort_keys = block.other = own
    with na.cuda_on_cpu():
        assert (block.make_sum, warp.make_sum) == (twins.make_sum, twins.make_warp_sum)
        with pytest.raises(UnsupportedKernelError, match="make_merge_sort_keys is not there"):
            warp.make_merge_sort_keys(np.int32, 4, max)
        assert block.other is own
    assert block.make_sum is warp.make_sum is own
    with pytest.raises(UnsupportedKernelError, match="numbasync.block"):
        twins.make_scan(np.int32, 32, 1, block_prefix_callback_op=max)
    with pytest.raises(UnsupportedKernelError, match="methods="):
        twins.make_scan(np.int32, 32, 1, methods={})
    with pytest.raises(UnsupportedKernelError, match="a warp of 16 threads"):
        twins.make_warp_sum(np.int32, 16)
