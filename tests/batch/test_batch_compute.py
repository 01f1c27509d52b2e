"""Batches that are run and read by one operation: `compute`."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.batch.run.plan import SMALL
from numbasync.batch.run.run import Compute
from numbasync.testing import counters, gate
from tests.common import add_one, full, only_fast_path, used

F32 = np.float32
X = np.random.default_rng(1).normal(0, 2, 1200).astype(F32)
LONG = np.random.default_rng(2).random(120_000).astype(F32) - F32(0.5)
Ids = tuple[na.BufferId, ...]


def no_axes(b: na.CommandBatch) -> Ids:
    x = b.upload(np.array(3.0))
    return x * 2, x


def with_its_inputs(b: na.CommandBatch) -> Ids:
    x, unused = b.upload(X), b.upload(LONG)
    return b.relu(x) * 2, x, unused


def nested(b: na.CommandBatch) -> Ids:
    r = b.relu(b.upload(X))
    y = r * 2
    return y, r, y + 1, y


def a_number(b: na.CommandBatch) -> Ids:
    x = b.upload(X)
    zero = b.where(x > 0, 1.0, 2.0)
    return zero, b.add(b.recorder.again(b.recorder.constant(2.5, np.dtype(F32))), 1.0), x + 2.5


RECORDS: dict[str, Callable[[na.CommandBatch], Ids]] = {
    "a chain": lambda b: (b.relu(b.upload(X)) * 2 + 1,),
    "two axes": lambda b: (b.upload(X.reshape(30, 40)) + b.upload(X[:40]),),
    "no axes": no_axes,
    "booleans and halves": lambda b: (
        b.where(b.upload(X > 0), b.upload(X.astype(np.float16)), F32(0.1)),
        b.upload(X) > 1,
    ),
    "layer_norm": lambda b: (b.layer_norm(b.upload(X.reshape(30, 40)), b.upload(X[:40]), 0.5),),
    "blocks that are counted": lambda b: (b.sum(b.upload(LONG)),),
    "what lies between kernels": lambda b: (b.sum(b.upload(LONG)) + b.upload(LONG),),
    "inputs": with_its_inputs,
    "one computed from the other": nested,
    "a number": a_number,
    "pinned": lambda b: (b.upload(na.HostBuffer.from_array(X)) * 2,),
}
# Nothing is launched for these, or more care is needed.
CAREFUL: dict[str, Callable[[na.CommandBatch], Ids]] = {
    "an input alone": lambda b: (b.upload(X),),
    "a number alone": lambda b: (b.recorder.again(b.recorder.constant(2.5, np.dtype(F32))),),
    "no elements": lambda b: (b.upload(X[:0]) + 1, b.sum(b.upload(X[:0]))),
    "large": lambda b: (b.upload(np.ones(2**19, F32)) + 1,),
}


def all_of(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    only_fast_path(monkeypatch, (Compute, "steps"))
    return monkeypatch


@pytest.mark.parametrize("fuse", [True, full(False)], ids=["fused", "apart"])
@pytest.mark.parametrize("name", [*RECORDS, *CAREFUL])
def test_it_gives_what_executing_and_reading_gives(
    device: na.Device, stream: na.Stream, request: pytest.FixtureRequest, name: str, fuse: bool
) -> None:
    """At once, and step by step."""
    record = {**RECORDS, **CAREFUL}[name]
    b = na.CommandBatch(fuse=fuse)
    ids = record(b)
    b.keep(*ids)
    b.op().sync_on(stream)
    want = [b.read_op(id).sync_on(stream) for id in ids]
    counts = b.transfers, b.kernels_launched
    b = na.CommandBatch(fuse=fuse)
    b.compute_op(*record(b)).sync_on(stream)  # a GPU has page-locked blocks of these sizes now
    patch = request.getfixturevalue("at_once") if name in RECORDS else None
    for turn in range(3):
        b = na.CommandBatch(fuse=fuse)
        ids = record(b)
        if turn == 2 and patch is not None:
            patch.undo()
            patch.setattr(Compute, "try_enqueue", lambda *_: False)
        before = counters()
        have = all_of(b.compute_op(*ids).sync_on(stream))
        after = counters()
        for one, two in zip(have, want, strict=True):
            np.testing.assert_array_equal(one, two)
            assert (type(one), one.shape, one.dtype) == (np.ndarray, two.shape, two.dtype)
            assert one.flags.writeable
        assert (b.transfers, b.kernels_launched) == counts
        assert after.launches - before.launches == b.kernels_launched
        copies = b.transfers.uploads + b.transfers.downloads
        small = all(node.nbytes <= SMALL for node in b.recorder.nodes)
        if small and patch is not None and turn < 2:
            copies = 0  # kernels reach what is so small where the host has it
        if name != "large":  # which is copied in parts
            assert after.copies - before.copies == copies
        # Afterwards it is executed.
        np.testing.assert_array_equal(b.read_op(ids[0]).sync_on(stream), want[0])
        for id, two in zip(ids, want, strict=True):
            if b.recorder.nodes[id.number].op != "constant":
                found = b.tensor(id)
                assert b.tensor(id) is found
                np.testing.assert_array_equal(found.to_host().sync_on(stream), two)
                del found  # or the next batch does not find its memory


async def test_one_submission_of_upload_kernel_and_download(
    device: na.Device, request: pytest.FixtureRequest
) -> None:
    for turn in range(3):
        b = na.CommandBatch()
        x = b.upload(X)
        y = b.relu(x) * 2
        if turn:
            request.getfixturevalue("at_once")
        have = await b.compute(y)
        np.testing.assert_array_equal(have, np.maximum(X, 0) * 2)
        assert (b.transfers.uploads, b.transfers.downloads, b.kernels_launched) == (1, 1, 1)
        assert len({id(s) for s in b.producers.values()}) == 1
        np.testing.assert_array_equal(await b.read(x), X)
        np.testing.assert_array_equal(await b.read(y), have)


def test_ids_that_nothing_else_keeps(device: na.Device, stream: na.Stream) -> None:
    """The operation keeps what it reads, and what others hold is written as ever."""
    for _ in range(3):
        b = na.CommandBatch()
        r = b.relu(b.upload(X))
        held = r * 3
        op = b.compute_op(r + 1)
        gc.collect()
        np.testing.assert_array_equal(op.sync_on(stream), np.maximum(X, 0) + 1)
        np.testing.assert_array_equal(
            b.tensor(held).to_host().sync_on(stream), np.maximum(X, 0) * F32(3)
        )


def test_arrays_are_ones_own(device: na.Device, stream: na.Stream) -> None:
    """They outlive the batch, and what comes later does not change them."""
    kept = []
    for k in range(20):
        b = na.CommandBatch()
        y = b.upload(X + k) * 2
        kept.append(b.compute_op(y, y).sync_on(stream))
        kept[-1][1][:] = 0
    for k, (first, second) in enumerate(kept):
        np.testing.assert_array_equal(first, (X + F32(k)) * 2)
        assert not second.any()


def test_nothing_is_left_behind(device: na.Device, stream: na.Stream) -> None:
    def turn(ask: bool) -> None:
        b = na.CommandBatch()
        y = b.upload(X) * 2
        b.compute_op(y).sync_on(stream)
        if ask:
            assert b.tensor(y).storage.holders == 1

    turn(False)
    gc.collect()
    before = used(device)
    for ask in (False, True):
        turn(ask)
        gc.collect()
        assert used(device) == before


# --- tensors of the program ---


def test_a_tensor_in_use_elsewhere_is_waited_for(device: na.Device) -> None:
    one, two = device.new_stream(), device.new_stream()
    start = np.arange(1000, dtype=F32)
    t = na.from_host(start).sync_on(one)

    def compute() -> Any:
        b = na.CommandBatch()
        x = b.use(t)
        return b.compute_op(x * 2, x)

    compute().sync_on(two)  # what loads kernels on a GPU would wait for the gate
    add_one(na.zeros(1000).sync_on(one).partition(256)).sync_on(one)
    for k in range(4):
        op = compute()
        with gate(one):
            if k:
                add_one(t.partition(256)).async_on(one)
            written = t.storage.writer.sequence
            found = op.async_on(two)
            assert not k or two.follows(one, written)
        two.synchronize()
        np.testing.assert_array_equal(found[0], (start + k) * 2)
        np.testing.assert_array_equal(found[1], start + k)
    # And those who write it wait for the batch, and for the copy.
    op = compute()
    with gate(two):
        found = op.async_on(two)
        add_one(t.partition(256)).async_on(one)
    two.synchronize()
    np.testing.assert_array_equal(found[0], (start + 3) * 2)
    np.testing.assert_array_equal(found[1], start + 3)
    one.synchronize()


@pytest.mark.parametrize("nbytes", [1200 * 4, 120_000 * 4])
def test_bytes_in_flight(device: na.Device, stream: na.Stream, nbytes: int) -> None:
    def compute() -> na.DeviceOp[Any]:
        b = na.CommandBatch(device)
        return b.compute_op(b.upload(np.ones(nbytes // 4, F32)) * 2)

    counts = []
    for _ in range(3):  # step by step, then at once
        with gate(stream):
            compute().async_on(stream)
            counts.append(stream.nbytes)
        stream.synchronize()
    on_device = 0 if nbytes <= SMALL else 2 * nbytes  # besides blocks of the host
    assert counts[1] == counts[2] == 2 * nbytes + on_device


@pytest.mark.parametrize("name", ["two axes", "a part", "columns", "an array"])
def test_tensors_of_any_layout(device: na.Device, stream: na.Stream, name: str) -> None:
    a = X.reshape(30, 40)
    t = na.from_host(a).sync_on(stream)
    make: Callable[[Any], Any] = {
        "two axes": lambda x: x, "a part": lambda x: x[3:7], "columns": lambda x: x[:, ::2],
        "an array": lambda x: x,
    }[name]  # fmt: skip
    for _ in range(3):
        b = na.CommandBatch()
        x = b.upload(a) if name == "an array" else b.use(make(t))
        same, double = b.compute_op(x, x * 2).sync_on(stream)
        np.testing.assert_array_equal(same, make(a))
        np.testing.assert_array_equal(double, make(a) * 2)


# --- with others ---


def test_within_a_limit(device: na.Device, stream: na.Stream) -> None:
    for ops, nbytes in ((1, None), (None, 4 * X.nbytes)):
        for _ in range(3):
            b = na.CommandBatch()
            x = b.upload(X)
            with na.limit(ops=ops, bytes=nbytes):
                have = b.compute_op(x * 2, x + 1).sync_on(stream)
            np.testing.assert_array_equal(have[0], X * 2)
            np.testing.assert_array_equal(have[1], X + 1)


def test_as_a_part_of_an_operation(device: na.Device, stream: na.Stream) -> None:
    for _ in range(3):
        b = na.CommandBatch()
        x = b.upload(X)
        one, two = b.compute_op(x * 2, x + 1).unzip()
        zipped = na.zip(one.map(lambda a: a), two)
        first, second = zipped.sync_on(stream)
        np.testing.assert_array_equal(first, X * 2)
        np.testing.assert_array_equal(second, X + 1)


def test_a_graph_repeats_it(device: na.Device, stream: na.Stream) -> None:
    t = na.from_host(X).sync_on(stream)
    for _ in range(3):
        na.memcpy(t, X).sync_on(stream)
        b = na.CommandBatch()
        x = b.use(t)
        b.compute_op(x * 2, x).sync_on(stream)  # the plan has been run
        b = na.CommandBatch()
        x = b.use(t)
        g = na.CudaGraph.capture(stream, b.compute_op(x * 2, x))
        found: Any = g.take_output()
        for k in range(3):
            na.memcpy(t, X + k).sync_on(stream)
            g.launch().sync_on(stream)
            np.testing.assert_array_equal(found[0], (X + F32(k)) * 2)
            np.testing.assert_array_equal(found[1], X + F32(k))


async def test_many_at_a_time(device: na.Device) -> None:
    async def one(k: int) -> Any:
        b = na.CommandBatch()
        return await b.compute(b.relu(b.upload(X + k)) * 2)

    for _ in range(2):
        for k, found in enumerate(await asyncio.gather(*map(one, range(20)))):
            np.testing.assert_array_equal(found, np.maximum(X + F32(k), 0) * 2)
    ops = []
    for k in range(20):
        b = na.CommandBatch()
        ops.append(b.compute_op(b.upload(X + k) * 2))
    for k, found in enumerate(await na.gather(*ops)):
        np.testing.assert_array_equal(found, (X + F32(k)) * 2)


def test_many_results_of_one_plan(device: na.Device, stream: na.Stream) -> None:
    """More than are remembered of it."""
    for k in range(100):
        b = na.CommandBatch()
        x = b.upload(X)
        ids = [x + 1, x * 2, b.relu(x)]
        want = [X + 1, X * 2, np.maximum(X, 0)]
        asked = [k // 3**i % 3 for i in range(5)]
        b.keep(*ids)
        found = b.compute_op(*[ids[i] for i in asked]).sync_on(stream)
        for have, i in zip(found, asked, strict=True):
            np.testing.assert_array_equal(have, want[i])
