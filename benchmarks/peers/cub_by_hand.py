"""CUB's collectives of a block, in kernels of CUDA C++: compiled by nvcc, launched by CuPy."""

from __future__ import annotations

from typing import Any

from benchmarks.block_collectives import (
    EACH,
    REFERENCES,
    THREADS,
    TILE,
    check_answer,
    numbers,
    outputs,
)
from benchmarks.measure import Case
from benchmarks.peers.cupy_algorithms import device_time
from benchmarks.peers.cupy_peer import _on, _stream

SOURCE = """
#include <cub/block/block_load.cuh>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/block/block_store.cuh>

enum { THREADS = %(threads)d, EACH = %(each)d, TILE = THREADS * EACH };

extern "C" __global__ void __launch_bounds__(THREADS) sum(float* z, const float* x) {
    using Load = cub::BlockLoad<float, THREADS, EACH, cub::BLOCK_LOAD_VECTORIZE>;
    using Reduce = cub::BlockReduce<float, THREADS>;
    __shared__ typename Reduce::TempStorage room;
    float values[EACH];
    Load().Load(const_cast<float*>(x) + (size_t)blockIdx.x * TILE, values);
    float total = Reduce(room).Sum(values);
    if (threadIdx.x == 0) z[blockIdx.x] = total;
}

template <class T, class Work>
__device__ void tile(T* z, const T* x, Work work) {
    using Load = cub::BlockLoad<T, THREADS, EACH, cub::BLOCK_LOAD_WARP_TRANSPOSE>;
    using Store = cub::BlockStore<T, THREADS, EACH, cub::BLOCK_STORE_WARP_TRANSPOSE>;
    __shared__ union {
        typename Load::TempStorage load;
        typename Store::TempStorage store;
    } room;
    T values[EACH];
    size_t first = (size_t)blockIdx.x * TILE;
    Load(room.load).Load(x + first, values);
    work(values);
    __syncthreads();
    Store(room.store).Store(z + first, values);
}

extern "C" __global__ void __launch_bounds__(THREADS) scan(float* z, const float* x) {
    using Scan = cub::BlockScan<float, THREADS>;
    __shared__ typename Scan::TempStorage room;
    tile(z, x, [&](float (&values)[EACH]) { Scan(room).InclusiveSum(values, values); });
}

extern "C" __global__ void __launch_bounds__(THREADS) sort(int* z, const int* x) {
    using Sort = cub::BlockRadixSort<int, THREADS, EACH>;
    __shared__ typename Sort::TempStorage room;
    tile(z, x, [&](int (&values)[EACH]) { Sort(room).Sort(values); });
}
"""


def of_block_collectives(ordinal: int, size: int) -> list[Case]:
    """A kernel for each collective."""
    cupy = _on(ordinal)
    stream = _stream(cupy)
    module = cupy.RawModule(
        code=SOURCE % {"threads": THREADS, "each": EACH}, backend="nvcc", options=("-std=c++17",)
    )
    return [_case(cupy, stream, module.get_function(what), what, size) for what in REFERENCES]


def _case(cupy: Any, stream: Any, kernel: Any, what: str, size: int) -> Case:
    with stream:
        x = cupy.asarray(numbers(what, size))
        z = cupy.zeros(outputs(what, size), x.dtype)
    stream.synchronize()

    def call() -> None:
        kernel((size // TILE,), (THREADS,), (z, x))

    async def check() -> None:
        with stream:
            call()
            check_answer(what, size, cupy.asnumpy(z))

    return Case(f"CUB: block {what}", device_time(cupy, stream, call), check)
