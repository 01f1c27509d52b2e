"""`kernel.explain` on a GPU: figures of the driver, of the code, and what bounds them."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest
from cuda import pathfinder
from numba import cuda

import numbasync as na
from numbasync.errors import MissingExtraError
from numbasync.testing import counters
from tests.common import copy_to, saxpy

pytestmark = pytest.mark.cuda
N = 1 << 24
STATES = 40


def many_values(**options: Any) -> na.Launcher:
    """A kernel whose loop keeps 40 float64 alive: 80 registers."""
    names = [f"a{k}" for k in range(STATES)]
    neighbours = names[1:] + names[:1]
    lines = [
        "def many(z, x, n):",
        "    i = cuda.grid(1)",
        *(f"    {a} = x[i + {k}]" for k, a in enumerate(names)),
        "    for _ in range(n):",
        f"        {', '.join(names)} = "
        + ", ".join(f"{a} * {b} + x[i]" for a, b in zip(names, neighbours, strict=True)),
        f"    z[i] = {' - '.join(names)}",
    ]
    scope: dict[str, Any] = {"cuda": cuda}
    exec("\n".join(lines), scope)
    return na.launcher(cuda.jit(**options)(scope["many"]))


def explained_many(**options: Any) -> na.Explanation:
    kernel = many_values(**options)
    return kernel[4096, 256].explain(na.meta(N, np.float64), na.meta(N, np.float64), 10)


@na.launcher
@cuda.jit
def by_block(z: na.KernelOutput, x):
    """A copy that asks for its place in the block: one position a thread."""
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < z.shape[0]:
        z[i] = x[i]


def test_a_copy_is_bound_by_memory(device: na.Device) -> None:
    before = counters()
    explained = copy_to.explain(na.meta(N), na.meta(N))
    assert (counters() - before).allocations == (counters() - before).launches == 0
    assert (explained.bytes_read, explained.bytes_written) == (4 * N, 4 * N)
    assert (explained.flops, explained.flops_are_least) == ({}, False)
    assert explained.registers is not None and 0 < explained.registers <= 255
    assert explained.occupancy is not None and 0 < explained.occupancy <= 1
    assert (explained.local_bytes, explained.static_shared_bytes) == (0, 0)
    assert explained.engine == f"compiled by Numba for {device.name}"
    rate = explained.peaks.bytes_per_second
    if rate is None:
        assert "memory: unknown" in explained.peaks.source and explained.bound is None
    else:
        assert 1e10 < rate < 1e14 and explained.memory_seconds == 8 * N / rate
        assert (explained.arithmetic_seconds, explained.bound) == (0, "memory")


def test_an_fma_counts_two_a_position(device: na.Device) -> None:
    explained = saxpy.explain(na.meta(N), np.float32(2), na.meta(N))
    assert explained.flops == {"float32": 2 * explained.elements}
    assert explained.flops_are_least is False
    assert (explained.bytes_read, explained.bytes_written) == (8 * N, 4 * N)


def test_positions_a_thread_and_why_only_one(device: na.Device) -> None:
    coarse = copy_to.explain(na.meta(N), na.meta(N))
    assert (coarse.elements, coarse.why_not_wider) == (4, "")
    assert coarse.argument_types == dict.fromkeys("zx", "array(float32, 1d, C)")
    assert "ld.global.v4" in coarse.ptx or "ld.global.nc.v4" in coarse.ptx
    plain = by_block[N // 256, 256].explain(na.meta(N), na.meta(N))
    assert plain.elements == 1 and plain.why_not_wider.startswith("it looks at cuda.")
    assert plain.grid[0] * plain.block[0] == 4 * coarse.grid[0] * coarse.block[0] == N
    few = copy_to.explain(na.meta(1000), na.meta(1000))
    assert few.elements == 1 and "too few" in few.why_not_wider


def test_the_occupancy_of_a_simple_kernel_is_full(device: na.Device) -> None:
    explained = by_block[N // 256, 256].explain(na.meta(N), na.meta(N))
    assert explained.block_limits is not None
    assert explained.blocks_per_multiprocessor == min(explained.block_limits.values())
    assert (explained.occupancy, explained.occupancy_bound) == (1, "threads")
    assert "100%: " in str(explained)


def test_a_small_grid_bounds_the_occupancy(device: na.Device) -> None:
    explained = by_block[2, 256].explain(na.meta(500), na.meta(500))
    assert explained.occupancy_bound == "grid" and "2 blocks; the device holds" in str(explained)


def test_registers_bound_the_occupancy(device: na.Device) -> None:
    explained = explained_many()
    assert explained.registers is not None and explained.registers > 2 * STATES
    assert explained.block_limits is not None
    assert explained.blocks_per_multiprocessor == min(explained.block_limits.values())
    assert explained.occupancy is not None and explained.occupancy < 0.5
    assert explained.occupancy_bound == "registers"
    assert explained.flops_are_least and "at least " in str(explained)


def test_spilled_registers_are_local_memory(device: na.Device) -> None:
    assert explained_many().local_bytes == 0
    spilled = explained_many(max_registers=32)
    assert spilled.registers is not None and spilled.registers <= 32
    assert spilled.local_bytes is not None and spilled.local_bytes >= 8 * (STATES - 16)


def test_shared_memory_bounds_the_occupancy(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def shares(z: na.KernelOutput, x):
        own = cuda.shared.array(10_000, np.float32)
        i = cuda.threadIdx.x
        own[i] = x[i]
        cuda.syncthreads()
        z[i] = own[127 - i]

    z = na.meta(N)
    static = shares[4096, 128].explain(na.meta(N), na.meta(N))
    assert (static.static_shared_bytes, static.shared_bytes) == (40_000, 0)
    dynamic = by_block[4096, 128, 0, 40_000].explain(z, na.meta(N))
    assert (dynamic.static_shared_bytes, dynamic.shared_bytes) == (0, 40_000)
    for explained in (static, dynamic):
        assert explained.occupancy_bound == "shared memory" and explained.block_limits is not None
        assert explained.blocks_per_multiprocessor == min(explained.block_limits.values())


def test_ptx_is_the_kernels(device: na.Device) -> None:
    ptx = saxpy.explain(na.meta(N), np.float32(2), na.meta(N)).ptx
    assert any(".entry" in line and "saxpy" in line for line in ptx.splitlines())
    assert "fma.rn.f32" in ptx


def test_sass_is_the_kernels_or_names_a_package(device: na.Device) -> None:
    explained = saxpy.explain(na.meta(N), np.float32(2), na.meta(N))
    tools = ("nvdisasm", "cuobjdump")
    if any(shutil.which(t) or pathfinder.find_nvidia_binary_utility(t) for t in tools):
        assert "FFMA" in explained.sass and "EXIT" in explained.sass
    else:
        with pytest.raises(MissingExtraError, match="pip install --upgrade nvidia-cuda-nvdisasm"):
            _ = explained.sass
