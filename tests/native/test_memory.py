"""New tensors, small copies and graph launches of the core, beside the Python code."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync import native
from numbasync.device.submission import Submission
from numbasync.errors import MovedError, ShapeError
from numbasync.testing import Gate
from tests.common import add_one

pytestmark = pytest.mark.skipif(native.core is None, reason="the compiled core is not installed")
both_ways = pytest.mark.parametrize("on", [True, False])


@pytest.fixture(autouse=True)
def _on_again() -> Iterator[None]:
    yield
    native.switch(True)


# --- operations built by the core ---

SHAPES = [
    4, 0, (), (2, 3), (4,), 4.0, (4.0,), -1, (2, -1), True, (True, 2), [2, 3], np.int64(4), "4",
    None, (np.int64(2), 2), 10**30,
]  # fmt: skip
DTYPES = [np.float32, float, "int32", np.dtype("f8"), None, object, np.int8, np.datetime64]


def told(build: Any) -> str:
    try:
        op = build()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    op.suppress_warning()
    return f"{op!r} {op._kind.shape!r} {op._kind.dtype} {op._site[0].co_name}"


@pytest.mark.parametrize("make", [na.empty, na.zeros], ids=["empty", "zeros"])
def test_tensors_of_any_kind_are_those_of_python(make: Any) -> None:
    for shape in SHAPES:
        for dtype in DTYPES:
            answers = []
            for on in (False, True, True):  # at first, no spec is known
                native.switch(on)
                answers.append(told(lambda: make(shape, dtype)))  # noqa: B023 - called at once
            assert answers[1:] == answers[:1] * 2


def arrays() -> dict[str, Any]:
    a = np.arange(24, dtype=np.float32)
    readonly = a.copy()
    readonly.flags.writeable = False
    return {
        "plain": a, "of two axes": a.reshape(4, 6), "F order": np.asfortranarray(a.reshape(4, 6)),
        "strided": a[::2], "no elements": a[:0], "no axes": a[3:4].reshape(()),
        "read-only": readonly, "bool": a > 3, "times": np.zeros(3, "M8[s]"),
        "structures": np.zeros(3, [("x", "f4"), ("y", "i4")]), "bfloat16": bfloat16s(),
        "masked": np.ma.masked_array(a), "a list": [1.0, 2.0], "pinned": na.pinned(4), "text": "a",
        "other byte order": a.astype(">f4"), "long double": a.astype(np.longdouble),
    }  # fmt: skip


def bfloat16s() -> Any:
    return np.ones(4, pytest.importorskip("ml_dtypes").bfloat16)


def test_arrays_of_any_kind_return_as_in_python(device: na.Device, stream: na.Stream) -> None:
    for name, array in arrays().items():
        answers = []
        for on in (False, True, True):
            native.switch(on)
            try:
                tensor = na.from_host(array).sync_on(stream)
                back = tensor.to_host().sync_on(stream)
                answers.append((back.tobytes(), back.shape, back.dtype, tensor.nbytes))
            except Exception as error:
                answers.append((type(error), str(error)))
        assert answers[1:] == answers[:1] * 2, name


@both_ways
def test_a_reshaped_array_is_not_copied_as_before(
    device: na.Device, stream: na.Stream, on: bool
) -> None:
    native.switch(on)
    for _ in range(2):
        array = np.arange(6, dtype=np.float32).reshape(2, 3)
        op = na.from_host(array)
        array.resize((3, 2), refcheck=False)
        with pytest.raises(ShapeError, match=r"had the shape \(2, 3\), and has \(3, 2\)"):
            op.sync_on(stream)


# --- what is recorded, and kept ---


def submission_on(stream: na.Stream) -> Submission:
    return Submission(stream, "a test's")


def enqueued(op: Any, stream: na.Stream) -> Submission | None:
    """The submission of an operation that its fast path has enqueued."""
    op.consume()
    submission = submission_on(stream)
    if not op.try_enqueue(submission, None):
        return None
    stream.commit(submission, False)
    return submission


def warm(stream: na.Stream) -> None:
    """Blocks of 4 KiB that are free, on the device and in page-locked memory."""
    tensors = [na.zeros(1024).sync_on(stream) for _ in range(4)]
    arrays = [t.to_host().sync_on(stream) for t in tensors]
    del tensors, arrays
    gc.collect()


@both_ways
def test_a_new_tensor_names_and_keeps_its_writer(
    device: na.Device, stream: na.Stream, on: bool
) -> None:
    warm(stream)
    native.switch(on)
    ops = {
        "zeros": na.zeros(1024), "empty": na.empty(1024), "ones": na.ones(1024),
        "from_host": na.from_host(np.zeros(1024, np.float32)),
    }  # fmt: skip
    for name, op in ops.items():
        used = device.pool.stats().used_current
        submission = enqueued(op, stream)
        assert submission is not None
        tensor = op.result()
        storage = tensor.storage
        assert (tensor.device, tensor.shape, tensor.dtype, tensor.is_contiguous) == (
            device, (1024,), np.float32, True
        )  # fmt: skip
        assert (storage.holders, storage.identity, storage.readers) == (1, id(storage), {})
        assert storage.fast_path_device is device.backend
        works = name != "empty"
        assert (storage.writer is submission) is works
        assert (storage in submission.keep_alive) is works or submission.done
        assert submission.nbytes == {"empty": 0, "from_host": 8192}.get(name, 4096)
        assert submission.is_empty is not works
        assert (submission.sequence > 0) is works
        view = tensor[1:]
        assert storage.holders == 2
        del view
        assert storage.holders == 1
        assert device.pool.stats().used_current == used + 4096
        stream.synchronize()
        del tensor, storage, submission
        assert device.pool.stats().used_current == used


@both_ways
def test_memory_in_use_is_not_used_again(device: na.Device, stream: na.Stream, on: bool) -> None:
    warm(stream)
    native.switch(on)
    x = na.from_host(np.arange(1024, dtype=np.float32)).sync_on(stream)
    used = device.pool.stats().used_current
    gate = Gate(stream)
    gate.close()
    x.to_host().async_on(stream)
    na.zeros(1024).async_on(stream)
    na.from_host(np.zeros(1024, np.float32)).async_on(stream)
    del x
    gc.collect()
    assert device.pool.stats().used_current == used + 2 * 4096
    assert stream.nbytes == 3 * 4096 + 4096
    gate.open()
    stream.synchronize()
    assert stream.nbytes == 0
    assert device.pool.stats().used_current == used - 4096


@both_ways
def test_a_download_waits_for_a_writer_elsewhere(
    device: na.Device, stream: na.Stream, on: bool
) -> None:
    warm(stream)
    native.switch(on)
    other = device.new_stream()
    z = na.zeros(1024).sync_on(other)
    add_one(z).sync_on(other)
    gate = Gate(other)
    gate.close()
    add_one(z).async_on(other)
    assert enqueued(z.to_host(), stream) is None
    assert stream not in z.storage.readers
    host = na.spawn(z.to_host(), stream)
    gate.open()
    np.testing.assert_array_equal(host.sync(), 2)
    submission = enqueued(z.to_host(), stream)
    assert submission is not None
    assert z.storage.readers[stream] is submission
    assert z.storage in submission.keep_alive
    stream.synchronize()


@both_ways
def test_a_writer_waits_for_a_download_elsewhere(
    device: na.Device, stream: na.Stream, on: bool
) -> None:
    warm(stream)
    native.switch(on)
    other = device.new_stream()
    z = na.zeros(1024).sync_on(stream)
    add_one(z).sync_on(other)
    gate = Gate(stream)
    gate.close()
    host = na.spawn(z.to_host(), stream)
    add_one(z).async_on(other)
    gate.open()
    np.testing.assert_array_equal(host.sync(), 1)
    np.testing.assert_array_equal(z.to_host().sync_on(other), 2)


@both_ways
def test_many_readers_are_forgotten(device: na.Device, stream: na.Stream, on: bool) -> None:
    warm(stream)
    native.switch(on)
    z = na.zeros(1024).sync_on(stream)
    streams = [device.new_stream() for _ in range(20)]
    for each in streams:
        z.to_host().sync_on(each)
    assert len(z.storage.readers) <= 8


@both_ways
def test_a_moved_tensor_is_not_read(device: na.Device, stream: na.Stream, on: bool) -> None:
    native.switch(on)
    z = na.zeros(1024).sync_on(stream)
    op = z.to_host()
    z.take()
    with pytest.raises(MovedError):
        op.sync_on(stream)


# --- graphs ---


@both_ways
def test_a_graph_launch_uses_all_its_buffers(
    device: na.Device, stream: na.Stream, on: bool
) -> None:
    other = device.new_stream()
    z = na.zeros(8).sync_on(stream)
    add_one(z).sync_on(stream)
    graph = add_one(z).graph_on(stream)
    graph.launch().sync_on(stream)
    native.switch(on)
    submission = enqueued(graph.launch(), stream)
    assert submission is not None
    assert submission.launched == ("add_one",)
    assert submission.keep_alive == [graph, graph._recorded]
    assert z.storage.writer.latest is submission
    assert graph.statistics().launches == 2
    assert enqueued(graph.launch(), other) is None, "another stream must wait"
    stream.synchronize()
    add_one(z).sync_on(other)
    assert enqueued(graph.launch(), stream) is None, "others have used a buffer"
    graph.launch().sync_on(stream)
    graph.update(na.fill(z, 10))
    graph.launch().sync_on(stream)
    assert graph.statistics().launches == 4
    np.testing.assert_array_equal(z.to_host().sync_on(stream), 11)


@both_ways
def test_an_update_on_another_stream_is_waited_for(
    device: na.Device, stream: na.Stream, on: bool
) -> None:
    z, unrelated = na.zeros(8).sync_on(stream), na.zeros(8).sync_on(stream)
    graph = add_one(z).graph_on(stream)
    other = device.new_stream()
    graph.launch().sync_on(other)
    native.switch(on)
    assert enqueued(graph.launch(), other) is not None
    graph.update(na.fill(unrelated, 5))
    assert enqueued(graph.launch(), other) is None
    graph.launch().sync_on(other)
    assert enqueued(graph.launch(), other) is not None
    other.synchronize()
    np.testing.assert_array_equal(z.to_host().sync_on(other), 4)


# --- random programs ---


def program(device: na.Device, seed: int) -> list[Any]:
    """What random uploads, fills, downloads and graph launches on two streams leave behind."""
    rng = random.Random(seed)
    streams = [device.new_stream(), device.new_stream()]
    # Free blocks for all that follows: a new tensor's number depends on whether there is one.
    spare = [na.from_host(np.zeros(16, np.float32)).sync_on(streams[0]) for _ in range(80)]
    arrays: list[Any] = [t.to_host().sync_on(streams[0]) for t in spare]
    del spare, arrays[:]
    gc.collect()
    first = [stream._sequence for stream in streams]
    tensors = [na.full(16, i).sync_on(streams[0]) for i in range(4)]
    add_one(tensors[0]).sync_on(streams[0])
    graphs = [add_one(t).graph_on(s) for t, s in zip(tensors, streams, strict=False)]
    gc.collect()
    before = device.pool.stats().used_current
    seen: list[Any] = []
    gates: dict[int, Gate] = {}
    for _ in range(60):
        which, at = rng.randrange(2), rng.randrange(2, 4)
        stream, action = streams[which], rng.randrange(9)
        number = rng.randrange(3)
        if action == 0 and not gates:
            gates[which] = Gate(stream)
            gates[which].close()
        elif action == 1 and gates:
            gates.popitem()[1].open()
        elif action == 2:
            tensors[at] = na.zeros(16).async_on(stream)
        elif action == 3:
            array = np.full(16, number, np.float32)
            tensors[at] = na.from_host(array).async_on(stream)
            array[...] = -1  # which was copied
        elif action == 4:
            na.empty(16).async_on(stream)
        elif action == 5:
            arrays.append(tensors[rng.randrange(4)].to_host().async_on(stream))
        elif action == 6 and not gates:
            seen.append(tensors[rng.randrange(4)].to_host().sync_on(stream).tolist())
        elif action == 7:
            graphs[number % 2].launch().async_on(stream)
        else:
            add_one(tensors[rng.randrange(4)]).async_on(stream)
        seen.append([s._sequence - n for s, n in zip(streams, first, strict=True)])
        for tensor in tensors:
            storage = tensor.storage
            writer = storage.writer
            seen.append((
                writer.sequence - first[streams.index(writer.stream)] if writer else None,
                sorted(streams.index(s) for s in storage.readers),
                storage.holders,
            ))  # fmt: skip
    for gate in gates.values():
        gate.open()
    for stream in streams:
        stream.synchronize()
    seen += [t.to_host().sync_on(streams[0]).tolist() for t in tensors]
    seen += [array.tolist() for array in arrays]
    seen += [[s.in_flight_count, s.nbytes] for s in streams]
    seen.append([graph.statistics().launches for graph in graphs])
    gc.collect()
    seen.append(device.pool.stats().used_current - before)
    return seen


@pytest.mark.parametrize("seed", range(16))
def test_random_programs_are_those_of_python(device: na.Device, seed: int) -> None:
    results = []
    for on in (False, True):
        assert native.switch(on) is on
        results.append(program(device, seed))
    assert len(results[0]) == len(results[1])
    for i, (want, got) in enumerate(zip(*results, strict=True)):
        assert got == want, f"step {i}"
