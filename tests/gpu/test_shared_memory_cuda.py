"""Shared memory of a GPU's blocks: more than 48 KiB by every way of a launch, and layouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import KernelError, LaunchError
from numbasync.testing import counters
from tests.common import host

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning"),
]

COUNT = 25_600  # float32: 100 KiB
NBYTES = 4 * COUNT
VALUES = np.arange(COUNT, dtype=np.float32)


def roll(z: na.KernelOutput, x: na.KernelInput, by):
    """Add x, rolled by `by`, to z: by one block, in dynamic shared memory."""
    whole = cuda.shared.array(0, np.float32)
    for i in range(cuda.threadIdx.x, COUNT, cuda.blockDim.x):
        whole[i] = x[i]
    cuda.syncthreads()
    for i in range(cuda.threadIdx.x, COUNT, cuda.blockDim.x):
        z[i] += whole[(i + by) % COUNT]
        if by < 0:
            raise ValueError("negative")


def executable_of(kernel: na.Launcher) -> Any:
    (variant,) = kernel.planner.kernel._variants.values()
    return variant


def test_100_kib_by_every_way_of_a_launch(device: na.Device, stream: na.Stream) -> None:
    kernel = na.launcher(cuda.jit(roll))
    z, x = na.zeros(COUNT).sync(), na.from_host(VALUES).sync()
    want = np.zeros(COUNT)
    for by in (1, 2, 3):  # the first launch through its steps, the others on the fast path
        kernel[1, 256, 0, NBYTES](z, x, by).sync_on(stream)
        want += np.roll(VALUES, -by)
    assert executable_of(kernel).packed and executable_of(kernel).buffer_layout
    graph = kernel[1, 256, 0, NBYTES](z, x, 4).graph_on(stream)
    for _ in range(2):
        graph.launch().sync()
        want += np.roll(VALUES, -4)
    graph.set_args(0, z, x, 5)
    graph.launch().sync()
    want += np.roll(VALUES, -5)
    np.testing.assert_array_equal(host(z), want)


def test_a_graph_whose_kernel_was_never_launched(device: na.Device, stream: na.Stream) -> None:
    kernel = na.launcher(cuda.jit(roll))
    z, x = na.zeros(COUNT).sync(), na.from_host(VALUES).sync()
    kernel[1, 256, 0, NBYTES](z, x, 1).graph_on(stream).launch().sync()
    np.testing.assert_array_equal(host(z), np.roll(VALUES, -1))


def test_a_debug_kernel(device: na.Device) -> None:
    kernel = na.launcher(cuda.jit(debug=True, opt=False)(roll))
    z, x = na.zeros(COUNT).sync(), na.from_host(VALUES).sync()
    kernel[1, 256, 0, NBYTES](z, x, 1).sync()
    np.testing.assert_array_equal(host(z), np.roll(VALUES, -1))
    with pytest.raises(KernelError, match="negative"):
        kernel[1, 256, 0, NBYTES](z, x, -1).sync()


def test_kernels_that_numba_launches(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def of_pair(z: na.KernelOutput, pair):
        whole = cuda.shared.array(0, np.float32)
        i = cuda.threadIdx.x
        whole[COUNT - 1 - i] = i
        cuda.syncthreads()
        z[i] = pair[0] * whole[COUNT - 256 + i] + pair[1]

    @na.launcher
    @cuda.jit
    def cooperative(z: na.KernelOutput):
        whole = cuda.shared.array(0, np.float32)
        i = cuda.threadIdx.x
        whole[COUNT - 1 - i] = i
        cuda.cg.this_grid().sync()
        z[i] = whole[COUNT - 256 + i]

    z = na.zeros(256).sync()
    of_pair[1, 256, 0, NBYTES](z, (2, 1)).sync()
    assert not executable_of(of_pair).packed
    np.testing.assert_array_equal(host(z), 2 * np.arange(255, -1, -1) + 1)
    cooperative[1, 256, 0, NBYTES](z).sync()
    assert not executable_of(cooperative).packed
    np.testing.assert_array_equal(host(z), np.arange(255, -1, -1))


def test_all_of_the_devices_memory_and_one_byte(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def ends(z: na.KernelOutput):
        fixed, whole = cuda.shared.array(256, np.float64), cuda.shared.array(0, np.uint8)
        # Indices that the compiler does not know, lest it do without the array.
        fixed[int(z[0])], whole[0], whole[whole.shape[0] - 1] = 1, 2, 3
        z[0] = fixed[int(z[1])] + 10 * whole[0] + 100 * whole[whole.shape[0] - 1]
        z[1] = whole.shape[0]

    z = na.zeros(2).sync()
    most = device.limits.max_dynamic_shared_bytes
    assert most > device.limits.max_shared_bytes == 48 * 1024
    before = counters()
    with pytest.raises(
        LaunchError, match=rf"2,048 bytes of static and {most - 2047:,} bytes of dyn"
    ):
        ends[1, 1, 0, most - 2047](z).sync()
    assert (counters() - before).launches == 0
    ends[1, 1, 0, most - 2048](z).sync()
    assert host(z).tolist() == [321, most - 2048]


LAYOUT = na.shared_layout(
    align=1024, a=(np.float32, (128, 129)), b=(np.float16, 128), c=(np.int64, (2, 64))
)


@cuda.jit(device=True)
def fill(i):
    LAYOUT.c[i // 64, i % 64] = i << 33


@na.launcher
@cuda.jit
def transpose(z: na.KernelOutput, x: na.KernelInput):
    a, b = LAYOUT.a, LAYOUT.b
    fixed = cuda.shared.array(3, np.int32)
    t = cuda.threadIdx.x
    if t < 3:
        fixed[t] = -t
    for j in range(128):
        a[t, j] = x[t, j]
    b[t] = np.float32(t)
    fill(t)
    cuda.syncthreads()
    for j in range(128):
        u = 127 - t
        z[j, t] = a[j, t] + b[u] + (LAYOUT.c[u // 64, u % 64] >> 33) + fixed[t % 3]
    if t == 0:
        z[128, 0] = a.shape[1]


def test_a_layout_of_three_types_equals_numpy(device: na.Device, stream: na.Stream) -> None:
    """66 KiB, which the launcher supplies and opts in to; arrays beside static shared memory."""
    x = np.random.default_rng(1).integers(0, 1000, (128, 128)).astype(np.float32)
    t = np.arange(128)
    want = np.zeros((129, 128))
    want[:128] = x + 2 * (127 - t) - t % 3
    want[128, 0] = 129
    source = na.from_host(x).sync()
    for call in (transpose[1, 128], transpose[1, 128, 0, LAYOUT.nbytes], transpose[1, 128]):
        z = na.zeros((129, 128)).sync()
        call(z, source).sync_on(stream)
        np.testing.assert_array_equal(host(z), want)
    z = na.zeros((129, 128)).sync()
    transpose[1, 128](z, source).graph_on(stream).launch().sync()
    np.testing.assert_array_equal(host(z), want)
    with pytest.raises(LaunchError, match=f"needs {LAYOUT.nbytes:,}"):
        transpose[1, 128, 0, 1024](z, source).sync()
    explained = transpose[1, 128].explain(z, source)
    assert explained.shared_bytes == LAYOUT.nbytes
    assert explained.blocks_per_multiprocessor is not None
    assert explained.blocks_per_multiprocessor >= 1
    asm = executable_of(transpose).assembly("ptx")
    assert ".extern .shared .align 1024 .b8 numbasync_shared_layout[]" in asm
