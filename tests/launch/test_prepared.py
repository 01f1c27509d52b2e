"""Prepared launches: checked once, run any number of times, with and without the compiled core."""

from __future__ import annotations

import pickle
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync import errors, native
from numbasync.testing import Gate, counters
from tests.common import add_one, saxpy

N = 64


@pytest.fixture(autouse=True, params=["core", "python"])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "core" and native.core is None:
        pytest.skip("the compiled core is not installed")
    native.switch(request.param == "core")
    yield request.param
    native.switch(True)


@pytest.fixture
def tensors(stream: na.Stream) -> tuple[na.Tensor, na.Tensor]:
    return na.zeros(N).sync_on(stream), na.ones(N).sync_on(stream)


def values(t: na.Tensor, stream: na.Stream) -> list[float]:
    return t.to_host().sync_on(stream).tolist()


def test_preparing_launches_nothing(tensors: Any) -> None:
    z, x = tensors
    before = counters()
    run = saxpy.prepare(z, 2.0, x)
    assert (counters() - before).launches == (counters() - before).compiles == 0
    assert "saxpy(z, a, x)" in repr(run)


def test_every_run_is_an_operation(tensors: Any, stream: na.Stream) -> None:
    z, x = tensors
    run = saxpy[1, N].prepare(z, 2.0, x)
    for k in range(1, 5):  # the first is compiled, the others take the fast path
        result = run.sync_on(stream)
        assert (result.z, result.a, result.x) == (z, 2.0, x)
        assert type(result) is saxpy.Result
        assert values(z, stream) == [2.0 * k] * N
    assert "planned" in repr(run) and "not" not in repr(run)
    op = run()
    op.async_on(stream)
    with pytest.raises(errors.AlreadySubmittedError):
        op.async_on(stream)
    assert values(z, stream) == [10.0] * N


def test_numbers_are_changed_by_name(tensors: Any, stream: na.Stream) -> None:
    z, x = tensors
    run = saxpy.prepare(z, 2.0, x)
    run.sync_on(stream)
    assert run(a=3.0).sync_on(stream).a == 3.0
    assert run(a=np.float32(5)).sync_on(stream).a == 5  # of another type: another variant
    assert run(a=1).sync_on(stream).a == 1
    assert values(z, stream) == [11.0] * N
    assert run().sync_on(stream).a == 2.0, "changes are of one operation"


@pytest.mark.parametrize("how", ["sync_on", "async_on"])
def test_changes_of_one_run(tensors: Any, stream: na.Stream, how: str) -> None:
    z, x = tensors
    run = saxpy.prepare(z, 2.0, x)
    for _ in range(2):  # the first one is compiled
        assert getattr(run, how)(stream, a=3.0).a == 3.0
        assert getattr(run, how)(stream).a == 2.0
    y = na.full(N, 10).sync_on(stream)
    assert getattr(run, how)(stream, x=y, a=1.0).x is y
    assert values(z, stream) == [20.0] * N
    with pytest.raises(errors.LauncherError, match="no parameter 'b'"):
        getattr(run, how)(stream, b=1)
    with pytest.raises(errors.NumbasyncError):
        getattr(run, how)(3)


def test_numbers_that_do_not_fit_are_refused(tensors: Any, stream: na.Stream) -> None:
    z, x = tensors
    run = saxpy.prepare(z, 2, x)
    run.sync_on(stream)
    run(a=2**63 - 1).sync_on(stream)
    with pytest.raises(errors.NumbasyncError):
        run(a=2**64)
    with pytest.raises(errors.NumbasyncError):
        run(a="two")


def test_tensors_are_known_by_identity(tensors: Any, stream: na.Stream) -> None:
    z, x = tensors
    run = saxpy.prepare(z, 2.0, x)
    run.sync_on(stream)
    y = na.full(N, 10).sync_on(stream)
    assert run(x=x).sync_on(stream).x is x
    assert run(x=y, a=1.0).sync_on(stream).x is y
    assert values(z, stream) == [14.0] * N
    with pytest.raises(errors.AliasError, match="saxpy"):
        run(x=z)
    with pytest.raises(errors.NumbasyncError, match="saxpy"):
        run(x=na.zeros(N, np.float64).sync_on(stream)[:0].reshape(0, 1)).sync_on(stream)


def test_partitions(stream: na.Stream) -> None:
    z, x = na.zeros(N).sync_on(stream), na.ones(N).sync_on(stream)
    part = z.partition(16)
    run = saxpy.prepare(part, 1.0, x)
    for _ in range(3):
        assert run.sync_on(stream).z is part
    other = na.zeros(2 * N).sync_on(stream)
    with pytest.raises(errors.NumbasyncError):
        run(z=other.partition((2, 2)))
    assert values(z, stream) == [3.0] * N


def test_a_moved_tensor_is_refused(tensors: Any, stream: na.Stream) -> None:
    z, x = tensors
    run = saxpy.prepare(z, 2.0, x)
    run.sync_on(stream)
    kept = x.take()
    with pytest.raises(errors.MovedError):
        run.sync_on(stream)
    assert run(x=kept).sync_on(stream).x is kept


def test_wrong_names_and_lazy_arguments(tensors: Any, stream: na.Stream) -> None:
    z, x = tensors
    run = saxpy.prepare(z, 2.0, x)
    with pytest.raises(errors.LauncherError, match=r"no parameter 'b': write one of z, a, x"):
        run(b=1)
    run.sync_on(stream)
    with pytest.raises(errors.LauncherError, match="no parameter 'b'"):
        run(b=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(errors.LauncherError, match="x is an operation"):
            saxpy.prepare(z, 2.0, na.ones(N))
    assert run(x=na.full(N, 4)).sync_on(stream).a == 2.0  # a changed argument may be lazy
    assert values(z, stream) == [2 + 8.0] * N
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(run)


def test_an_unused_one_warns_at_its_line(tensors: Any, stream: na.Stream) -> None:
    z, x = tensors
    run = saxpy.prepare(z, 2.0, x)
    run.sync_on(stream)
    with pytest.warns(RuntimeWarning, match=r"was never awaited.*test_prepared\.py"):
        run()


async def test_in_every_combination(tensors: Any, stream: na.Stream) -> None:
    z, x = tensors
    run, more = saxpy.prepare(z, 1.0, x), add_one.prepare(z)
    await run
    await run()
    await na.gather(run(), run(a=2.0))
    await na.zip(run(), more(), run(a=3.0)).schedule(stream)
    await run().then(lambda r: more(z=r.z)).schedule(stream)
    await na.spawn(run())
    assert (await z.to_host()).tolist() == [1 + 1 + 3 + 1 + 1 + 3 + 2 + 1] * N


def test_in_a_graph(tensors: Any, stream: na.Stream) -> None:
    z, x = tensors
    run = saxpy.prepare(z, 1.0, x)
    run.sync_on(stream)
    graph = na.zip(run(), run(a=2.0)).graph_on(stream)
    for _ in range(3):
        graph.launch().sync_on(stream)
    assert values(z, stream) == [10.0] * N


def test_access_records_are_those_of_a_call(device: na.Device, stream: na.Stream) -> None:
    other = device.new_stream()
    z, x = na.zeros(N).sync_on(stream), na.ones(N).sync_on(stream)
    run = saxpy.prepare(z, 1.0, x)
    run.sync_on(stream)
    run.sync_on(other)
    gate = Gate(stream)
    gate.close()
    run.async_on(stream)
    writer = z.storage.writer
    assert writer.stream is stream and x.storage.readers[stream] is writer
    run.async_on(other)  # ordered behind the gate
    host = na.spawn(z.to_host(), other)
    assert not writer.done and not host.done()
    gate.open()
    np.testing.assert_array_equal(host.sync(), 4)


def test_another_device_is_refused(tensors: Any, stream: na.Stream) -> None:
    z, x = tensors
    elsewhere = next(d for d in na.devices("cpu") if d is not z.device).new_stream()
    run = saxpy.prepare(z, 1.0, x)
    run.sync_on(stream)
    with pytest.raises(errors.DeviceMismatchError):
        run.sync_on(elsewhere)


def test_preconditions_hold_for_changed_arguments(stream: na.Stream) -> None:
    @na.launcher(preconditions=["n > 0", "z.shape[0] % 2 == 0"])
    @cuda.jit
    def fill(z: na.KernelOutput, n: Any) -> None:
        i = cuda.grid(1)
        if i < z.shape[0]:
            z[i] = n

    z = na.zeros(N).sync_on(stream)
    run = fill.prepare(z, 1)
    run.sync_on(stream)
    run.sync_on(stream)
    with pytest.raises(errors.LaunchError, match="n > 0"):
        run(n=-1).sync_on(stream)
    assert values(z, stream) == [1.0] * N


def test_threads_share_one(tensors: Any, device: na.Device, stream: na.Stream) -> None:
    z, x = tensors
    run = saxpy.prepare(z, 1.0, x)
    run.sync_on(stream)

    def work() -> None:
        own = device.new_stream()
        for _ in range(50):
            run(a=1.0).async_on(own)
        own.synchronize()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values(z, stream) == [201.0] * N


def test_memory_returns_with_it(device: na.Device, stream: na.Stream) -> None:
    before = device.memory_stats().used_current
    run = add_one.prepare(na.zeros(2**16).sync_on(stream))
    run.sync_on(stream)
    run.sync_on(stream)
    assert device.memory_stats().used_current > before
    del run
    stream.synchronize()
    assert device.memory_stats().used_current == before
