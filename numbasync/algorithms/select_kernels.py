"""The kernels that search, select and count: each thread looks at elements of its own."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from numbasync import block
from numbasync.algorithms.reduce_kernels import THREADS, numba_type
from numbasync.algorithms.sort_kernels import ordered
from numbasync.kernel_names import cuda, float64, int32, int64, uint32, uint64
from numbasync.launch.launcher import launcher
from numbasync.launch.parameters import KernelInput, KernelOutput

SHARED_BINS = 2048  # that a block counts for itself
MARKS = 16 * THREADS  # elements of a chunk that a block selects from
TOGETHER = 8  # elements of a thread that are under way at a time


@cache
def search_kernel(dtype: np.dtype[Any], is_right: bool) -> Any:
    """The launcher ``(z, sorted, x)``, of bits: how many of `sorted` are before each element."""
    key_of = ordered(dtype, False)

    @launcher(threads=THREADS)
    @cuda.jit
    def search(z: KernelOutput, a: KernelInput, x: KernelInput) -> None:
        i = cuda.grid(1)
        if i < z.shape[0]:
            key = key_of(x[i])
            low, high = int64(0), int64(a.shape[0])
            while low < high:
                middle = (low + high) // 2
                there = key_of(a[middle])
                is_before = there <= key if is_right else there < key
                if is_before:
                    low = middle + 1
                else:
                    high = middle
            z[i] = low

    return search


@cache
def change_kernel(dtype: np.dtype[Any]) -> Any:
    """The launcher ``(z, x)``, of bits: whether an element differs from the one before it."""
    key_of = ordered(dtype, False)

    @launcher(threads=THREADS)
    @cuda.jit
    def find_changes(z: KernelOutput, x: KernelInput) -> None:
        i = cuda.grid(1)
        if i < z.shape[0]:
            z[i] = i == 0 or key_of(x[i]) != key_of(x[max(i - 1, 0)])

    return find_changes


@launcher
@cuda.jit
def count_marked(counts: KernelOutput, mask: KernelInput) -> None:
    """How many marks each chunk of `MARKS` has."""
    t = int64(cuda.threadIdx.x)
    first = int64(cuda.blockIdx.x) * MARKS + 4 * t
    found = int32(0)
    for k in range(MARKS // THREADS):
        i = first + k // 4 * (4 * THREADS) + k % 4
        if i < mask.shape[0] and mask[i]:
            found += 1
    total = block.sum(found)
    if t == 0:
        counts[cuda.blockIdx.x] = total


@launcher
@cuda.jit
def keep_marked(z: KernelOutput, x: KernelInput, mask: KernelInput, ends: KernelInput) -> None:
    """Write the marked elements side by side: `ends` has the marks of all chunks up to each.

    Each thread has four neighbours in each of four parts of a chunk. One scan is of what it has of
    all parts, 16 bits of each.
    """
    begins = cuda.shared.array(4, int64)
    t = int64(cuda.threadIdx.x)
    first = int64(cuda.blockIdx.x) * MARKS + 4 * t
    marks, counts = uint32(0), uint64(0)
    for k in range(MARKS // THREADS):
        i = first + k // 4 * (4 * THREADS) + k % 4
        if i < mask.shape[0] and mask[i]:
            marks |= uint32(1) << uint32(k)
            counts += uint64(1) << uint64(k // 4 * 16)
    before = uint64(block.scan(counts) - counts)
    if t == THREADS - 1:
        begin = int64(0)
        if cuda.blockIdx.x > 0:
            begin = ends[cuda.blockIdx.x - 1]
        for part in range(4):
            begins[part] = begin
            begin += int64(((before + counts) >> uint64(part * 16)) & uint64(0xFFFF))
    cuda.syncthreads()
    for part in range(4):
        to = begins[part] + int64((before >> uint64(part * 16)) & uint64(0xFFFF))
        for k in range(4 * part, 4 * part + 4):
            if (marks >> uint32(k)) & uint32(1):
                z[to] = x[first + part * (4 * THREADS) + k % 4]
                to += 1


@launcher
@cuda.jit
def fill_behind(
    z: KernelOutput, x: KernelInput, extent: KernelInput, each: int, low: int, high: int
) -> None:
    """Copy the first ``each * extent[0]`` words, and write two in turn behind them."""
    i = cuda.grid(1)
    if i < z.shape[0]:
        if i < each * extent[0]:
            z[i] = x[i]
        elif i % each == 0:
            z[i] = low
        else:
            z[i] = high


@cache
def bin_kernel(dtype: np.dtype[Any], lift: Any, is_shared: bool, has_edges: bool) -> Any:
    """The launcher ``(counts, x, edges)``: how many elements lie in each bin.

    With `edges`, bin k is from ``edges[k]`` to ``edges[k + 1]``, of which the last one is part of
    it only in the last bin; without, bin k is of the elements that are k.

    Args:
        dtype: of the elements.
        lift: of an `Operator`: makes a number of an element.
        is_shared: a block counts in shared memory first, in at most `SHARED_BINS`.
        has_edges: `edges` is read.
    """
    kind = numba_type(dtype)
    room = SHARED_BINS if is_shared else 1

    @cuda.jit(device=True)
    def count(counts: Any, found: Any, edges: Any, scale: Any, element: Any) -> None:
        bins = counts.shape[0]
        here = int64(-1)
        if has_edges:
            place = float64(lift(element, 0)[0])
            if place >= edges[0] and place <= edges[bins]:
                low, high = int64(0), int64(bins)
                # Where bins have one width, this is the bin, or a neighbour of it.
                guess = max(min(int64((place - float64(edges[0])) * scale), high - 1), low)
                if place >= edges[guess]:
                    low = guess
                    if place < edges[guess + 1]:
                        high = guess + 1
                else:
                    high = guess
                while high - low > 1:
                    middle = (low + high) // 2
                    if place >= edges[middle]:
                        low = middle
                    else:
                        high = middle
                here = low
        else:
            here = int64(lift(element, 0)[0])
        if here >= 0 and here < bins:
            if is_shared:
                cuda.atomic.add(found, here, 1)
            else:
                cuda.atomic.add(counts, here, 1)

    @launcher
    @cuda.jit
    def count_bins(counts: KernelOutput, x: KernelInput, edges: KernelInput) -> None:
        found = cuda.shared.array(room, int32)
        taken = cuda.local.array(TOGETHER, kind)
        bins = counts.shape[0]
        t = cuda.threadIdx.x
        if is_shared:
            for k in range(t, bins, THREADS):
                found[k] = 0
            cuda.syncthreads()
        scale = float64(0)
        if has_edges:
            width = float64(edges[bins]) - float64(edges[0])
            scale = bins / width if width > 0 else 0.0
        step = cuda.gridsize(1)
        for first in range(cuda.grid(1), x.shape[0], TOGETHER * step):
            if first + (TOGETHER - 1) * step < x.shape[0]:
                for k in range(TOGETHER):
                    taken[k] = x[first + k * step]
                for k in range(TOGETHER):
                    count(counts, found, edges, scale, taken[k])
            else:
                for i in range(first, x.shape[0], step):
                    count(counts, found, edges, scale, x[i])
        if is_shared:
            cuda.syncthreads()
            for k in range(t, bins, THREADS):
                if found[k] != 0:
                    cuda.atomic.add(counts, k, found[k])

    return count_bins
