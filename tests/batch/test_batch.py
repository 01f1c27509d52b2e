"""Command batches on a device: results, transfers, kernels, and how a batch is run."""

from __future__ import annotations

import asyncio
import gc
import math
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import BatchStateError, KernelError, NoResultError
from numbasync.testing import counters, gate, inject
from tests.batch.computing import F32, X, Y, computed
from tests.lenders import lend

# --- one upload, one kernel, one download ---


async def test_a_chain_is_one_upload_kernel_and_download(device: na.Device) -> None:
    b = na.CommandBatch()
    x = b.upload(X)
    rectified = b.relu(x)
    scaled = b.scale(rectified, 2.0)
    y = b.add(scaled, x)
    assert (b.num_operations, b.num_buffers) == (3, 4)
    before = counters()
    await b.execute()
    assert counters().launches - before.launches == 1
    assert (b.transfers.uploads, b.transfers.downloads, b.kernels_launched) == (1, 0, 1)
    np.testing.assert_array_equal(await b.read(y), np.maximum(X, 0) * F32(2) + X)
    assert (b.transfers.uploads, b.transfers.downloads, b.kernels_launched) == (1, 1, 1)


def test_unfused_operations_are_kernels_with_equal_results(device: na.Device) -> None:
    def chain(b: na.CommandBatch, x: Any, y: Any) -> Any:
        return b.sigmoid(b.relu(x) * 2 + y) * x - y

    fused, apart = computed(chain, X, Y), computed(chain, X, Y, fuse=False)
    np.testing.assert_array_equal(fused, apart)
    b = na.CommandBatch(fuse=False)
    y = chain(b, b.upload(X), b.upload(Y))
    b.execute_sync()
    assert b.kernels_launched == 6
    np.testing.assert_array_equal(b.read_sync(y), fused)


@pytest.mark.parametrize("n", [1, 255, 1023, 1024, 1025, 4096, 70001], ids="n={}".format)
def test_every_element_is_computed_once_and_nothing_else(device: na.Device, n: int) -> None:
    x = np.arange(n, dtype=np.int32)
    np.testing.assert_array_equal(computed(lambda b, x: x + 1, x), x + 1)


# --- how it runs ---


async def test_a_batch_is_an_operation(device: na.Device) -> None:
    b = na.CommandBatch()
    y = b.upload(X) * 2
    host = await b.op().then(lambda results: results[y].to_host())
    np.testing.assert_array_equal(host, X * 2)
    np.testing.assert_array_equal(await b.read(y), X * 2)
    assert b.tensor(y).shape == X.shape


async def test_a_result_stays_one_whatever_its_numbers(device: na.Device) -> None:
    t = await na.from_host(X)
    for factor in (1.0, 2.0):
        b = na.CommandBatch()
        x = b.upload(X)
        y, z = b.scale(x, factor), b.scale(b.use(t), factor)
        three = b.add(1, 2)
        results = await b.op()
        assert results[z].storage is not t.storage
        for id in (y, z):
            np.testing.assert_array_equal(await results[id].to_host(), X * F32(factor))
        assert y in results and x not in results and results.get(x) is None
        for id, why in ((x, r"did not write it.*\n.*b\.keep"), (three, r"a number.*\n.*b\.read")):
            with pytest.raises(NoResultError, match=why):
                results[id]


async def test_batches_run_side_by_side_read_in_order(device: na.Device) -> None:
    async def one(k: int) -> Any:
        b = na.CommandBatch()
        y = b.sum(b.upload(np.full(5000, k, F32)) * 2 + 1)
        await b.execute()
        return await b.read(y)

    assert await asyncio.gather(*map(one, range(12))) == [5000 * (2 * k + 1) for k in range(12)]


async def test_tensors_of_the_program_are_used_in_place(device: na.Device) -> None:
    t = await na.from_host(X.reshape(20, 50))
    b = na.CommandBatch()
    y = b.sum(b.use(t) * 2, axis=1)
    z = b.use(t[:, ::2]) + 1
    unused = b.use(t)
    await b.execute()
    np.testing.assert_array_equal(await b.read(unused), X.reshape(20, 50))
    assert b.transfers.uploads == 0
    np.testing.assert_allclose(
        await b.read(y), (X.reshape(20, 50) * 2).sum(1), rtol=1e-5, atol=1e-5
    )
    np.testing.assert_array_equal(await b.read(z), X.reshape(20, 50)[:, ::2] + 1)


def test_arrays_of_other_libraries_are_used_in_place(device: na.Device) -> None:
    t = na.as_tensor(lend(device, X))
    b = na.CommandBatch()
    y = b.use(t) + 1
    b.execute_sync()
    assert b.transfers.uploads == 0
    np.testing.assert_array_equal(b.read_sync(y), X + 1)


async def test_unwritten_values_are_computed_when_read(device: na.Device) -> None:
    b = na.CommandBatch()
    x = b.upload(X)
    r = b.relu(x)
    y = r + 1
    await b.execute()
    assert b.kernels_launched == 1
    np.testing.assert_array_equal(await b.read(r), np.maximum(X, 0))
    assert (b.kernels_launched, b.transfers.uploads) == (2, 1)
    np.testing.assert_array_equal(await b.read(r), np.maximum(X, 0))
    assert b.kernels_launched == 2
    np.testing.assert_array_equal(await b.read(y), np.maximum(X, 0) + 1)
    np.testing.assert_array_equal(await b.read(x), X)


async def test_what_is_kept_is_written_with_the_rest(device: na.Device) -> None:
    b = na.CommandBatch()
    r = b.relu(b.upload(X))
    y = r + 1
    b.keep(r)
    await b.execute()
    np.testing.assert_array_equal(await b.read(r), np.maximum(X, 0))
    np.testing.assert_array_equal(await b.read(y), np.maximum(X, 0) + 1)
    assert b.kernels_launched == 1


def test_what_nobody_can_ask_for_is_not_computed(device: na.Device) -> None:
    b = na.CommandBatch()
    x, unused = b.upload(X), b.upload(Y)
    b.exp(unused)
    y = x + 1
    gc.collect()
    b.execute_sync()
    assert (b.kernels_launched, b.transfers.uploads) == (1, 1)
    assert "exp" not in b.plan().source()
    np.testing.assert_array_equal(b.read_sync(y), X + 1)
    np.testing.assert_array_equal(b.read_sync(unused), Y)


def test_equal_structures_share_kernels_whatever_the_numbers_are(device: na.Device) -> None:
    computed(lambda b, x: b.tanh(x * 2.0 + 0.25), X)
    before = na.compile_count()
    for n, factor in ((10, 3.0), (5000, 4.0)):
        have = computed(lambda b, x, f=factor: b.tanh(x * f + 0.5), np.zeros(n, F32))
        np.testing.assert_allclose(have, math.tanh(0.5), rtol=1e-6)
    assert na.compile_count() == before


def test_what_failed_on_the_device_is_not_read(device: na.Device) -> None:
    def recorded() -> tuple[na.CommandBatch, na.BufferId]:
        b = na.CommandBatch()
        return b, b.upload(X) + 1

    b, y = recorded()
    z = y * 2
    with inject(device, "kernel"), pytest.raises(KernelError):
        b.execute_sync()
    for ask, id in ((b.read_sync, z), (b.tensor, z), (b.read_sync, y)):
        with pytest.raises(BatchStateError, match=r"failed on the device.*\n.*injected"):
            ask(id)
    b, y = recorded()
    b.execute_sync()  # its kernel is loaded before the gate is shut
    b, y = recorded()
    stream, other = device.new_stream(), device.new_stream()
    with inject(device, "kernel"), gate(stream):
        b.op().async_on(stream)
        reading = b.read_op(y).async_on(other)  # which waits for it
    for each in (stream, other):
        with pytest.raises(KernelError, match="injected"):
            each.synchronize()
    del reading
    b, y = recorded()
    g = b.graph()
    with inject(device, "kernel"), pytest.raises(KernelError):
        g.replay_sync()
    with pytest.raises(BatchStateError, match="failed"):
        b.read_sync(y)
    g.replay_sync()
    np.testing.assert_array_equal(b.read_sync(y), X + 1)
