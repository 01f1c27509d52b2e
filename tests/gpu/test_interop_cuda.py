"""PyTorch's, CuPy's and Numba's arrays in launches, on our streams and on theirs."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import OperationError, StateError
from numbasync.testing import Gate, settle
from tests.common import add_one, copy_to
from tests.libraries import SIZE, Library, torch_library

pytestmark = [
    pytest.mark.cuda,
    # Numba finds small grids wasteful; here they are meant.
    pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning"),
]

# By default a capture is ended by any thread that frees memory or asks for events, as those of JAX
# do for some time after the tests of its arrays.
OF_THIS_THREAD = "thread_local"


@na.launcher
@cuda.jit
def add(z: na.KernelOutput, x: na.KernelInput, y: na.KernelInput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = x[i] + y[i]


@na.launcher(stream="caller")
@cuda.jit
def add_there(z: na.KernelOutput, x: na.KernelInput, y: na.KernelInput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = x[i] + y[i]


@na.launcher
@cuda.jit
def add_all(z: na.KernelOutput, x: na.KernelInput, y: na.KernelInput):
    i, j = cuda.grid(2)
    if i < z.shape[0] and j < z.shape[1]:
        z[i, j] = x[i, j] + y[i, j]


@pytest.fixture
def torch(device: na.Device) -> Any:
    torch_library()
    return pytest.importorskip("torch")


def test_arrays_have_the_fast_path(device: na.Device, library: Library, stream: na.Stream) -> None:
    z, x, y = library.ones(), library.ones(), library.ones()
    add(z, x, y).sync_on(stream)
    for given in ((z, x, y), tuple(na.as_tensor(a) for a in (z, x, y))):
        op = add(*given)
        assert op.has_fast_path
        assert op.sync_on(stream).z is given[0]
    assert (library.host(z) == 2).all()


def test_numbas_arrays_have_the_fast_path(device: na.Device, stream: na.Stream) -> None:
    cuda.select_device(device.ordinal)
    z, x = (cuda.to_device(np.ones(SIZE, np.float32)) for _ in range(2))
    add(z, x, x).sync_on(stream)
    op = add(z, x, x)
    assert op.has_fast_path
    op.sync_on(stream)
    assert (z.copy_to_host() == 2).all()


def test_buffers_of_cuda_core_have_the_fast_path(device: na.Device, stream: na.Stream) -> None:
    core = pytest.importorskip("cuda.core")
    gpu = core.Device(device.ordinal)
    gpu.set_current()
    theirs = gpu.create_stream()
    x, z = (gpu.allocate(SIZE, stream=theirs) for _ in range(2))
    theirs.sync()
    once = na.as_tensor(x)
    assert once.dtype == np.int8 and once.shape == (SIZE,)
    na.fill(once, 1).sync_on(stream)
    for given in ((z, x, x), (z, once, once)):
        add(*given).sync_on(stream)
        op = add(*given)
        assert op.has_fast_path
        na.fill(na.as_tensor(z), 0).sync_on(stream)
        op.sync_on(stream)
        assert (na.as_tensor(z).to_host().sync_on(stream) == 2).all()


@pytest.fixture
def jax(device: na.Device, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else it takes the memory
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    try:
        jax.devices("cuda")
    except RuntimeError:
        pytest.skip("JAX has no CUDA")
    return jax


def test_arrays_of_jax_have_the_fast_path(device: na.Device, jax: Any, stream: na.Stream) -> None:
    gpu, z = jax.devices("cuda")[device.ordinal], na.zeros((4, 256)).sync_on(stream)
    x = jax.block_until_ready(jax.device_put(np.ones((4, 256), np.float32), gpu))
    once = na.as_tensor(x)
    for given in ((z, x, x), (z, once, once)):
        add_all(*given).sync_on(stream)
        op = add_all(*given)
        assert op.has_fast_path
        op.sync_on(stream)
        assert (z.to_host().sync_on(stream) == 2).all()
    op = add_all(z, x, x)
    x.delete()  # what was lent stays
    na.fill(z, 0).sync_on(stream)
    op.sync_on(stream)
    assert (z.to_host().sync_on(stream) == 2).all()


def test_arrays_that_jax_computes_are_waited_for(
    device: na.Device, jax: Any, stream: na.Stream
) -> None:
    gpu, z = jax.devices("cuda")[device.ordinal], na.zeros((2048, 2048)).sync_on(stream)
    a = jax.device_put(np.full((2048, 2048), 1 / 2048, np.float32), gpu)
    work = jax.jit(lambda a: jax.lax.fori_loop(0, 50, lambda i, b: b @ a, a))
    jax.block_until_ready(work(a))
    for once in (False, True):
        x = work(a)
        given = na.as_tensor(x) if once else x
        add_all(z, given, given).sync_on(stream)
        np.testing.assert_allclose(z.to_host().sync_on(stream), 2 * np.asarray(x))
        na.fill(z, 0).sync_on(stream)


def test_many_rounds_of_both_need_no_wait(device: na.Device, torch: Any) -> None:
    streams = [device.new_stream() for _ in range(3)]
    total = torch.zeros(SIZE, device="cuda")
    for i in range(450):
        x = torch.full((SIZE,), float(i), device="cuda")
        y = torch.ones(SIZE, device="cuda") * 2
        z = torch.empty(SIZE, device="cuda")
        with na.torch.stream():
            add(z, x, y).async_on(streams[i % 3])
        total += z
        del x, y, z
    assert (total.cpu().numpy() == sum(i + 2.0 for i in range(450))).all()


# --- the way back ----------------------------------------------------------------------------


async def test_pytorch_comes_behind_the_blocks_work(
    device: na.Device, torch: Any, stream: na.Stream, gate: Gate
) -> None:
    z, x = torch.zeros(SIZE, device="cuda"), torch.ones(SIZE, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        _ = z + x  # loaded
    add(z, x, x).sync_on(stream)
    z.zero_()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        gate.close()
        with na.torch.stream() as theirs:
            assert theirs is na.Stream.of(side)
            add(z, x, x).async_on(stream)
        result = z + x
        await settle(device)
        assert not side.query()
        gate.open()
        side.synchronize()
    assert (result.cpu().numpy() == 3).all()


# --- on the library's stream -----------------------------------------------------------------


def test_a_launch_is_between_the_librarys_own_calls(device: na.Device, torch: Any) -> None:
    for current in (torch.cuda.default_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(current):
            x, y = torch.ones(SIZE, device="cuda"), torch.ones(SIZE, device="cuda")
            z = torch.zeros(SIZE, device="cuda")
            for _ in range(100):
                x += 1
                add_there(z, x, y).async_on()
                y = z * 0 + 1
            assert (z.cpu().numpy() == 102).all()


def test_a_captured_graph_has_the_launch(device: na.Device, torch: Any) -> None:
    x, y = torch.ones(SIZE, device="cuda"), torch.ones(SIZE, device="cuda")
    z = torch.zeros(SIZE, device="cuda")
    for _ in range(2):
        add_there(z, x, y).async_on()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=OF_THIS_THREAD):
        x += 1
        add_there(z, x, y).async_on()
        w = z * 2
    for n in (1, 2, 3):
        graph.replay()
        torch.cuda.synchronize()
        assert (w.cpu().numpy() == 2 * (n + 2)).all()


def test_a_capture_outlives_launches_that_cannot_join(
    device: na.Device, torch: Any, stream: na.Stream
) -> None:
    x, z = torch.ones(SIZE, device="cuda"), torch.zeros(SIZE, device="cuda")
    add(z, x, x).sync_on(stream)
    add_there(z, x, x).async_on()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=OF_THIS_THREAD):
        x += 1
        with pytest.raises(StateError, match="captures"):
            add(z, x, x).async_on(stream)
        with pytest.raises(StateError, match="once before the capture"):
            add_there(z[1:], x[1:], x[1:]).async_on()
        add_there(z, x, x).async_on()
    graph.replay()
    torch.cuda.synchronize()
    assert (z.cpu().numpy() == 4).all()


async def test_a_launch_there_can_be_awaited(device: na.Device, torch: Any) -> None:
    x, z = torch.ones(SIZE, device="cuda"), torch.zeros(SIZE, device="cuda")
    for _ in range(3):
        x += 1
        await add_there(z, x, x)
    assert (z.cpu().numpy() == 8).all()


# --- memory ----------------------------------------------------------------------------------


async def test_a_dropped_arrays_memory_outlives_its_use(
    device: na.Device, torch: Any, stream: na.Stream, gate: Gate
) -> None:
    out = await na.zeros(SIZE)
    x = torch.full((SIZE,), 5.0, device="cuda")
    copy_to(out, x).sync_on(stream)
    address = x.data_ptr()
    gate.close()
    copy_to(out, x).async_on(stream)
    del x
    gc.collect()
    await settle(device)
    poison = [torch.full((SIZE,), 66.0, device="cuda") for _ in range(8)]
    assert address not in [p.data_ptr() for p in poison]
    gate.open()
    await stream.done()
    assert ((await out.to_host()) == 5).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda torch: torch.ones(8, device="cuda", requires_grad=True),
        lambda torch: torch.ones(8, device="cuda", dtype=torch.complex64).conj(),
        lambda torch: torch.ones(8, device="cuda", dtype=torch.complex64).conj().imag,
        lambda torch: torch.eye(8, device="cuda").to_sparse(),
    ],
)
def test_memory_pytorch_does_not_lend_is_refused(
    device: na.Device, torch: Any, make: Callable[[Any], Any]
) -> None:
    z = na.zeros(8).sync()
    for _ in range(2):
        copy_to(z, torch.ones(8, device="cuda")).sync()
        with pytest.raises(OperationError):
            copy_to(z, make(torch))
    weights = torch.nn.Parameter(torch.ones(8, device="cuda"), requires_grad=False)
    copy_to(z, weights).sync()
    op = copy_to(z, weights)
    assert op.has_fast_path
    op.sync()
    add_one(z).sync()
