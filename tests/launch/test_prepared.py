"""Prepared launches: checked once, run any number of times, with and without the compiled core."""

from __future__ import annotations

import asyncio
import pickle
import threading
import warnings
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync import errors
from numbasync.testing import Gate, counters, inject
from tests.common import add_one, saxpy

pytestmark = pytest.mark.usefixtures("way")

N = 64


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
    op = run()
    sent = pickle.loads(pickle.dumps(op)).sync_on(stream)  # with copies of the tensors
    assert values(sent.z, stream) == [12.0] * N
    assert values(z, stream) == [10.0] * N


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


def test_what_is_not_called_is_refused(tensors: Any, stream: na.Stream) -> None:
    z, x = tensors
    run: Any = saxpy.prepare(z, 2.0, x)
    for misuse in (
        lambda: na.zip(run),
        lambda: na.CudaGraph.capture(stream, run),
        lambda: add_one(z).then(lambda _: run).sync_on(stream),
    ):
        with pytest.raises(errors.OperationError, match="gives one, call it"):
            misuse()
    with pytest.raises(errors.OperationError, match="no operation"):
        na.spawn(run)


def test_changes_without_names_are_refused(tensors: Any, stream: na.Stream) -> None:
    z, x = tensors
    run: Any = saxpy.prepare(z, 2.0, x)
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(errors.LauncherError, match=r"run\(z=\.\.\., a=\.\.\., x=\.\.\.\)"):
                run(z, 3.0, na.ones(N))
        run.sync_on(stream)


async def test_asyncio_awaits_it_like_a_coroutine(tensors: Any) -> None:
    z, x = tensors
    run = saxpy.prepare(z, 1.0, x)
    await asyncio.gather(run(), run, run(a=0.0))  # which awaits one object once
    await asyncio.wait_for(run, 300)
    assert (await z.to_host()).tolist() == [3.0] * N


def test_in_a_graph(tensors: Any, stream: na.Stream) -> None:
    z, x = tensors
    run = saxpy.prepare(z, 1.0, x)
    run.sync_on(stream)
    graph = na.zip(run(), run(a=2.0)).graph_on(stream)
    for _ in range(3):
        graph.launch().sync_on(stream)
    assert values(z, stream) == [10.0] * N


def test_a_graph_is_updated_by_one(tensors: Any, stream: na.Stream) -> None:
    z, x = tensors
    y = na.zeros(N).sync_on(stream)
    run, change = saxpy.prepare(y, 1.0, z), saxpy.prepare(z, 1.0, x)
    graph = run().graph_on(stream)
    change.sync_on(stream)
    for k in (1, 2, 3):
        graph.update(change(a=float(k)))
        graph.launch().sync_on(stream)
    assert values(y, stream) == [2 + 4 + 7] * N
    with pytest.raises(errors.AliasError):
        run(x=y)


def test_a_lost_device_is_lost_for_it(tensors: Any, device: na.Device, stream: na.Stream) -> None:
    z, x = tensors
    run = saxpy.prepare(z, 1.0, x)
    run.sync_on(stream)
    with inject(device, "device"):
        with pytest.raises(errors.DeviceLostError, match="saxpy"):
            run.sync_on(stream)
        for form in (run.sync_on, run.async_on):
            with pytest.raises(errors.DeviceLostError):
                form(stream)


def test_capacity_is_waited_for(tensors: Any, stream: na.Stream) -> None:
    z, x = tensors
    run = saxpy.prepare(z, 1.0, x)
    with na.limit(ops=1):
        for _ in range(4):
            run.async_on(stream)
            run(a=2.0).async_on(stream)
    assert values(z, stream) == [12.0] * N


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
