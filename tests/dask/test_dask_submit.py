"""Operations on a Dask cluster: what is awaited, what stays on the workers, what fails."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import LauncherError, OperationError, OutOfDeviceMemoryError
from tests.common import add_one, host, put, saxpy
from tests.waiting import run

distributed = pytest.importorskip("distributed", reason="needs the extra dask")


@pytest.fixture(autouse=True)
def here(cpu: na.Device) -> na.Device:
    """Workers and client both have the CPU device."""
    return cpu


def where(client: Any, future: Any) -> tuple[str, ...]:
    distributed.wait(future)
    found: tuple[str, ...] = tuple(client.who_has(future)[future.key])
    return found


def scaled(factor: float) -> na.Launcher:
    """A kernel that no name leads to."""

    @na.launcher
    @cuda.jit
    def kernel(z: na.KernelOutput, x: na.KernelInput):
        i = cuda.grid(1)
        if i < z.shape[0]:
            z[i] = factor * x[i]

    return kernel


# --- values ---------------------------------------------------------------------------------


def test_an_operation_gives_what_awaiting_it_gives(client: Any) -> None:
    x = np.arange(8, dtype=np.float32)
    result = na.dask.submit(client, saxpy(na.ones(8), 2.0, x)).result()
    assert type(result) is saxpy.Result and result.a == 2.0
    assert host(result.z).tolist() == (2 * x + 1).tolist()
    tensor = na.dask.submit(client, scaled(3.0)(na.zeros(8), x).output()).result()
    assert host(tensor).tolist() == (3 * x).tolist()
    assert na.dask.submit(client, na.arange(8).then(lambda t: t[5].item())).result() == 5.0


def test_a_future_is_awaited_on_any_loop(client: Any) -> None:
    async def main() -> list[Any]:
        futures = [na.dask.submit(client, na.full(2, n).to_host()) for n in range(3)]
        return [(await f)[0] for f in futures]

    for loop in ("asyncio", "uvloop"):
        assert run(loop, main()) == [0, 1, 2]


def test_an_asynchronous_client(client: Any) -> None:
    async def main() -> None:
        address = client.scheduler.address
        async with distributed.Client(address, asynchronous=True) as own:
            assert (await na.dask.submit(own, na.ones(3).to_host())).tolist() == [1] * 3
            futures = na.dask.map_ops(own, lambda n: na.full(2, n).to_host(), range(4))
            assert [x[0] for x in await asyncio.gather(*futures)] == [0, 1, 2, 3]
            assert [x[0] for x in await own.gather(futures)] == [0, 1, 2, 3]
            with pytest.raises(LauncherError):
                await na.dask.submit(own, saxpy, 1.0)

    run("asyncio", main())


def test_parts_are_mapped_in_order(client: Any) -> None:
    parts = [np.full(4, n, np.float32) for n in range(6)]
    kernel = scaled(2.0)

    def doubled(x: Any, bias: float) -> na.DeviceOp[Any]:
        return kernel(na.zeros(4), x + np.float32(bias)).output().to_host().map(lambda y: y[1:])

    futures = na.dask.map_ops(client, doubled, parts, range(6))
    assert [f.result()[0] for f in futures] == [4 * n for n in range(6)]
    assert all(str(f.key).startswith("doubled-") for f in futures)
    results = client.gather(na.dask.map_ops(client, add_one, [put(part) for part in parts]))
    assert [host(r.z)[0] for r in results] == [n + 1 for n in range(6)]
    assert na.dask.map_ops(client, doubled, []) == []
    with pytest.raises(ValueError, match="shorter"):
        na.dask.map_ops(client, doubled, parts, range(5))


def test_equal_pure_tasks_are_one(client: Any) -> None:
    def computed() -> list[Any]:
        return na.dask.map_ops(client, scaled(2.0), [na.zeros(4).sync()], [np.ones(4)], pure=True)

    (one,), (two,) = computed(), computed()
    assert one.key == two.key
    x = np.ones(4)
    assert na.dask.submit(client, add_one, x).key != na.dask.submit(client, add_one, x).key


# --- results that stay ----------------------------------------------------------------------


def test_a_result_stays_on_its_worker(client: Any) -> None:
    first, second = sorted(client.scheduler_info()["workers"])
    future = na.dask.submit(client, na.arange(1000), workers=[first])
    assert where(client, future) == (first,)
    assert future.type is na.Tensor

    def where_it_is(tensor: na.Tensor) -> tuple[str, str]:
        return distributed.get_worker().address, repr(tensor.device)

    assert client.submit(where_it_is, future).result()[0] == first
    twice = na.dask.submit(client, saxpy, na.ones(1000).sync(), 2.0, future)
    assert host(twice.result().z)[10] == 21
    moved = na.dask.submit(client, lambda t: t.to_host(), future, workers=[second])
    assert moved.result()[-1] == 999
    nested = na.dask.submit(client, lambda ts: ts[0][0].to_host(), [(future,)])
    assert nested.result()[1] == 1


def test_a_workers_loop_turns_during_a_kernel(client: Any) -> None:
    """A task is one operation of two that wait for one another: the second opens the gate."""

    def gated() -> Any:
        from numbasync.testing import Gate

        stream = na.default_device().new_stream()
        gate = Gate(stream)
        gate.close()

        async def opens(op: na.DeviceOp[Any]) -> Any:
            future = na.spawn(op, stream)
            turns = 0
            while turns < 50:
                await asyncio.sleep(0)
                turns += 1
            assert not future.done()
            gate.open()
            return await future

        return opens(na.ones(3).to_host())

    assert na.dask.submit(client, gated).result().tolist() == [1] * 3


# --- what fails -----------------------------------------------------------------------------


def test_the_client_gets_an_error_by_its_class(client: Any) -> None:
    with pytest.raises(LauncherError, match="x is missing"):
        na.dask.submit(client, saxpy, np.zeros(3), 1.0).result()

    @na.launcher(preconditions=["z.shape[0] > 1"])
    @cuda.jit
    def picky(z: na.KernelOutput):
        z[0] = 1

    future = na.dask.submit(client, picky(na.zeros(1)), retries=2)
    with pytest.raises(na.errors.LaunchError, match=r"z\.shape\[0\] > 1"):
        future.result()
    assert isinstance(future.exception(), na.errors.LaunchError)


def test_a_retried_task_has_a_fresh_operation(client: Any, tmp_path: Any) -> None:
    path = tmp_path / "tries"

    def fails_twice(t: Any) -> Any:
        with path.open("a") as file:
            file.write("x")
        if path.stat().st_size < 3:
            raise ConnectionError("try again")
        return t.to_host()

    future = na.dask.submit(client, na.ones(3).then(fails_twice), retries=5)
    assert future.result().tolist() == [1] * 3 and path.read_text() == "xxx"


def test_a_cancelled_task_says_so(client: Any) -> None:
    blocker = distributed.Event("numbasync-blocker")
    held = client.map(lambda _: distributed.Event("numbasync-blocker").wait(), range(2), pure=False)
    future = na.dask.submit(client, na.ones(3), priority=-10)
    future.cancel()
    blocker.set()
    client.gather(held)
    with pytest.raises(distributed.CancelledError):
        future.result()
    assert na.dask.submit(client, na.ones(3).to_host()).result()[0] == 1


def test_what_is_no_operation_is_refused_here(client: Any) -> None:
    with pytest.raises(OperationError, match="or a function that makes one, not int"):
        na.dask.submit(client, 3)  # type: ignore[arg-type]
    op = na.ones(3)
    with pytest.raises(OperationError, match="takes no arguments"):
        na.dask.submit(client, op, 2)
    with pytest.raises(OperationError, match="takes a function that makes operations"):
        na.dask.map_ops(client, op, [1])  # type: ignore[arg-type]
    op.sync()
    with pytest.raises(na.errors.AlreadySubmittedError):
        na.dask.submit(client, op)


# --- the device of a worker -----------------------------------------------------------------


def test_the_plugin_sets_and_unsets_pool_and_limit(client: Any) -> None:
    def state() -> tuple[Any, Any, str]:
        device = na.default_device()
        return device.pool.max_bytes, device.limit, device.label

    before = client.run(state)
    client.register_plugin(na.dask.WorkerDevice("cpu:1", pool_bytes=1 << 20, limit=2))
    assert set(client.run(state).values()) == {(1 << 20, (2, None), "cpu:1")}
    with pytest.raises(OutOfDeviceMemoryError):
        na.dask.submit(client, na.zeros(1 << 20)).result()
    many = na.dask.submit(client, lambda: na.gather(*(na.full(100, n) for n in range(50))))
    assert [host(t)[0] for t in many.result()] == list(range(50))
    client.register_plugin(na.dask.WorkerDevice("cpu"))  # replaces the other
    assert client.run(state) == before


def test_a_limit_holds_back_what_a_task_submits(client: Any) -> None:
    async def held(count: int) -> int:
        """Of so many operations behind a gate, those in flight."""
        device = na.default_device()
        stream = device.new_stream()
        with na.testing.gate(stream):
            futures = [na.spawn(na.zeros(100), stream) for _ in range(count)]
            await na.testing.settle(device)
            in_flight = device.in_flight.ops
        await na.gather(*futures)
        return in_flight

    assert na.dask.submit(client, held, 9).result() == 9
    client.register_plugin(na.dask.WorkerDevice("cpu", limit=2))
    assert na.dask.submit(client, held, 9).result() == 2
    client.register_plugin(na.dask.WorkerDevice("cpu"))


def test_a_plugin_without_a_device_says_so(client: Any) -> None:
    with pytest.raises(na.errors.CallerError, match="no device 'gpu'"):
        client.register_plugin(na.dask.WorkerDevice("gpu"))
    client.register_plugin(na.dask.WorkerDevice("cpu"))
    with pytest.raises(na.errors.CallerError, match="a device's name"):
        na.dask.WorkerDevice(na.default_device())  # type: ignore[arg-type]
