"""What only a GPU can show: the argument layout, the driver's memory, faults."""

from __future__ import annotations

import ctypes
import gc
import subprocess
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import KernelCompileError, OutOfDeviceMemoryError
from tests.common import add_one, host, saxpy
from tests.waiting import begin

pytestmark = [
    pytest.mark.cuda,
    # Numba finds small grids wasteful; here they are meant.
    pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning"),
]


def variants(launcher: na.Launcher) -> list[Any]:
    return list(launcher.planner.kernel._variants.values())


# --- the argument buffer ---


@na.launcher
@cuda.jit
def echo(out: na.KernelOutput, x: na.KernelInput, a, y: na.KernelInput, b):
    """Every field of two arrays, as the kernel sees it."""
    out[0] = x.size
    out[1] = x.itemsize
    out[2] = x.shape[0]
    out[3] = x.shape[1]
    out[4] = x.strides[0]
    out[5] = x.strides[1]
    out[6] = x[1, 2]
    out[7] = a
    out[8] = y.shape[0]
    out[9] = y.strides[0]
    out[10] = y[3]
    out[11] = b


@pytest.mark.parametrize("a", [7, np.int8(-3), np.uint16(9), np.float32(0.5), True, 2.5], ids=repr)
def test_every_field_arrives(device: na.Device, a: Any) -> None:
    base = np.arange(40, dtype=np.int16).reshape(5, 8)
    x = na.from_host(base).sync()[1:4, ::2]
    y = na.arange(10).sync()
    out = na.zeros(12, np.float64).sync()
    echo[1, 1](out, x, a, y, np.int8(5)).sync()
    assert host(out).tolist() == [
        12, 2, 3, 4, 16, 4, base[2, 4], float(a), 10, 4, 3, 5,
    ]  # fmt: skip
    assert all(v.packed for v in variants(echo))


@pytest.mark.parametrize(
    "dtype", ["?", "b", "B", "h", "H", "i", "I", "q", "Q", "e", "f", "d", "F", "D"]
)
def test_scalars_of_every_width_are_found_by_kernels(device: na.Device, dtype: str) -> None:
    @na.launcher
    @cuda.jit
    def put(z: na.KernelOutput, a, v, b):
        z[0] = v
        z[1] = a + b

    value = np.dtype(dtype).type(1)
    z = na.zeros(2, np.complex128).sync()
    put[1, 1](z, np.int8(3), value, np.float32(0.25)).sync()
    assert host(z).tolist() == [1, 3.25]
    assert all(v.packed for v in variants(put))


def test_arguments_beyond_the_buffer_are_launched_by_numba(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def put(z: na.KernelOutput, pair):
        z[0] = pair[0] + pair[1]

    z = na.zeros(1).sync()
    put[1, 1](z, (1, 2.5)).sync()
    assert host(z)[0] == 3.5
    (variant,) = variants(put)
    assert not variant.packed
    assert "Tuple" in variant.why_not


def test_fixed_signatures(device: na.Device) -> None:
    @na.launcher
    @cuda.jit(["void(float32[::1], float32)", "void(float64[::1], float64)"])
    def fixed(z: na.KernelOutput, a):
        z[cuda.grid(1)] = a

    for dtype in (np.float32, np.float64):
        z = na.zeros(4, dtype).sync()
        fixed[1, 4](z, 2).sync()
        assert host(z).tolist() == [2] * 4
    with pytest.raises(KernelCompileError, match="none of them fits"):
        fixed[1, 4](na.zeros(4, np.int8), 2).sync()


def test_a_typing_error_is_numbas(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def wrong(z: na.KernelOutput):
        z[0, 0] = 1

    with pytest.raises(KernelCompileError, match="kernel wrong cannot be compiled") as caught:
        wrong[1, 1](na.zeros(4)).sync()
    assert type(caught.value.__cause__).__name__ == "TypingError"


def test_occupancy_suggests_the_block(device: na.Device) -> None:
    add_one(na.zeros(10)).sync()
    assert all(v.suggested_threads() in range(32, 1025) for v in variants(add_one))


# --- other libraries ---


def test_numba_reads_a_tensor_without_a_copy(device: na.Device) -> None:
    t = na.from_host(np.arange(12, dtype=np.float32).reshape(3, 4)).sync()
    view = cuda.as_cuda_array(t[:, 1:])
    np.testing.assert_array_equal(view.copy_to_host(), np.arange(12).reshape(3, 4)[:, 1:])
    view[0, 0] = 99
    cuda.synchronize()
    assert host(t)[0, 1] == 99


def test_cupy_reads_a_tensor_without_a_copy(device: na.Device) -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    t = na.arange(6).sync()
    array = cupy.asarray(t)
    assert array.data.ptr == t.__cuda_array_interface__["data"][0]
    assert cupy.asnumpy(array * 2).tolist() == [0, 2, 4, 6, 8, 10]


def test_the_interface_names_the_stream_that_still_writes(
    device: na.Device, stream: na.Stream
) -> None:
    saxpy(na.zeros(8), 1.0, na.ones(8)).sync()
    z = na.zeros(8).sync()
    release = stream.backend.hold()
    add_one(z).async_on(stream)
    assert z.__cuda_array_interface__["stream"] == stream.__cuda_stream__()[1]
    release()
    stream.synchronize()
    assert z.__cuda_array_interface__["stream"] is None


def test_streams_of_the_protocol(device: na.Device, stream: na.Stream) -> None:
    version, handle = stream.__cuda_stream__()
    assert version == 0
    assert handle != 0
    z = na.zeros(4).sync()
    foreign = cuda.external_stream(handle)
    kernel = add_one.kernel
    kernel[1, 4, foreign](cuda.as_cuda_array(z))
    stream.synchronize()
    assert host(z).tolist() == [1] * 4


def test_numbas_context_stays(device: na.Device) -> None:
    before = cuda.current_context()
    add_one(na.zeros(4)).sync()
    assert cuda.current_context() is before


# --- memory ---


def test_out_of_memory_on_the_device(device: na.Device) -> None:
    too_much = device.backend.total_memory + 2**30
    # Where workers of pytest-xdist share GPUs, their pools have bounds of their own.
    where = rf"(on {device.label}|in <MemoryPool {device.label},)"
    with pytest.raises(OutOfDeviceMemoryError, match=f"{too_much:,} bytes do not fit {where}"):
        na.empty(too_much, np.uint8).sync()
    assert host(na.ones(4).sync()).tolist() == [1] * 4


def test_statistics_are_the_drivers(device: na.Device) -> None:
    pool = device.new_pool()
    before, device.pool = device.pool, pool
    try:
        z = na.zeros(2**20).sync()
        stats = pool.stats()
        assert stats.used_current == 2**22
        assert stats.reserved_current >= 2**22
        del z
        gc.collect()
        device.synchronize()
        assert pool.stats().used_current == 0
        assert pool.stats().reserved_current > 0, "kept for the next allocation"
        pool.trim()
        assert pool.stats().reserved_current == 0
    finally:
        device.pool = before


def test_host_buffers_are_page_locked_and_used_again(device: na.Device) -> None:
    first = device.backend.host_buffer(10_000)
    address = first.ctypes.data
    view = first[5:10]
    del first
    gc.collect()
    second = device.backend.host_buffer(10_000)
    assert second.ctypes.data != address, "a view keeps the block"
    del view
    gc.collect()
    assert device.backend.host_buffer(12_000).ctypes.data == address
    ctypes.memset(second.ctypes.data, 1, 10_000)
    assert second[:10_000].sum() == 10_000


def test_a_thread_new_to_devices_may_ask_events(device: na.Device) -> None:
    event, stream = device.backend.new_event(timing=False), device.new_stream()
    stream.backend.record(event)
    stream.synchronize()
    assert begin(event.query)()


def test_chunks_of_the_ring_are_pinned_and_reused(device: na.Device) -> None:
    array = np.arange(2 * device.ring.nbytes // 4, dtype=np.int32)
    t = na.from_host(array).sync()
    np.testing.assert_array_equal(host(t), array)
    found = device.ring.statistics()
    assert 0 < found.chunks <= found.most and found.in_use == 0
    assert found.taken + found.refusals >= 2 * found.most
    from cuda.bindings import driver

    chunk, *_ = device.ring._chunks
    result, kind = driver.cuPointerGetAttribute(
        driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, chunk.memory.ctypes.data
    )
    assert result == 0 and int(kind) == int(driver.CUmemorytype.CU_MEMORYTYPE_HOST)


# --- waiting ---


def test_a_fault_is_reported_by_every_await_after(python: str, python_env: dict[str, str]) -> None:
    program = """
import time
import numpy as np
from numba import cuda
import numbasync as na

@na.launcher
@cuda.jit
def wild(z: na.KernelOutput, i):
    z[i] = 1

async def main():
    z = await na.zeros(4)
    await wild[1, 1](z, 0)
    began = time.monotonic()
    try:
        await wild[1, 1](z, 2**40)
    except na.errors.DeviceLostError as error:
        print("lost", time.monotonic() - began < 1)
        print("illegal", "CUDA_ERROR_ILLEGAL_ADDRESS" in str(error))
    try:
        await na.zeros(4)
    except na.errors.NumbasyncError as error:
        print("later", type(error).__name__)

na.run(main())
"""
    result = subprocess.run(
        [python, "-c", program], env={**python_env, "NUMBASYNC_DEVICE": "cuda"},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert "lost True" in result.stdout, (result.stdout, result.stderr)
    assert "illegal True" in result.stdout
    assert "later DeviceLostError" in result.stdout


# --- one kernel, two devices in one process ---


def test_the_cpu_device_and_the_gpu_agree(device: na.Device) -> None:
    from numbasync_kernels import image

    pixels = np.random.default_rng(6).integers(0, 256, (40, 50, 3), np.uint8)
    results = []
    for each in (device, na.devices("cpu")[0]):
        with na.use_device(each):
            levels = image.grey(na.empty((40, 50), np.uint8).partition((16, 16)), pixels)
            smooth = image.gaussian_blur(
                na.empty((40, 50)).partition((16, 16)),
                levels.output().unpartition(),
                image.gaussian_weights(1.0),
            )
            results.append(smooth.output().to_host().sync())
    assert np.abs(results[0] - results[1]).max() <= 28 * 255 * 2.0**-23
