"""What must hold of failure: who is told what, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import DOCUMENTATION, DeviceLostError, DriverError, KernelError
from numbasync.testing import Gate, settle
from tests.common import add_one, replace_method, waited
from tests.waiting import in_time

# --- a word says "done", not "well" ---


Plant = Callable[[na.Stream], DeviceLostError]


@pytest.fixture
def plant(device: na.Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plant]:
    """Lets the device say that a stream is broken, whatever its word says, to the end of the
    test.
    """

    def plant(stream: na.Stream) -> DeviceLostError:
        error = DeviceLostError("a planted fault")
        replace_method(monkeypatch, stream.backend, "fault", lambda: error)
        replace_method(monkeypatch, stream.backend, "verified_sequence", lambda: 0)
        return error

    yield plant
    monkeypatch.undo()
    device.forget_fault()


async def test_an_await_checks_the_status_before_success(
    device: na.Device, stream: na.Stream, gate: Gate, plant: Plant
) -> None:
    await na.zeros(4)
    gate.close()
    future = na.spawn(na.zeros(4), stream)
    task = asyncio.ensure_future(waited(future))
    await settle(device)
    assert not task.done()
    error = plant(stream)
    gate.open()
    with pytest.raises(DeviceLostError) as caught:
        await task
    assert caught.value is error
    with pytest.raises(DeviceLostError):
        await future


@pytest.mark.parametrize("first", ["await", "sync"])
def test_it_does_so_though_others_saw_the_word(
    device: na.Device, stream: na.Stream, plant: Plant, first: str
) -> None:
    future = na.spawn(na.zeros(4), stream)
    stream.synchronize()
    assert future.done()
    error = plant(stream)
    with pytest.raises(DeviceLostError) as caught:
        na.run(waited(future)) if first == "await" else future.sync()
    assert caught.value is error


async def test_a_result_that_was_given_is_given_again(
    device: na.Device, stream: na.Stream, plant: Plant
) -> None:
    future = na.spawn(na.ones(4).to_host(), stream)
    first = await future
    plant(stream)
    assert await future is future.sync() is first


MARKS: dict[str, Callable[[na.Device, na.Stream], Any]] = {
    "stream.done": lambda device, stream: stream.done(),
    "event": lambda device, stream: device.new_event().record(stream),
    "a value": lambda device, stream: na.spawn(na.value(3), stream),
    "a holder": lambda device, stream: na.spawn(na.shared(3).map(id), stream),
}


@pytest.mark.parametrize("mark", MARKS)
async def test_every_await_on_a_broken_stream_says_so(
    device: na.Device, stream: na.Stream, plant: Plant, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await na.zeros(4).schedule(stream)
    awaitable = MARKS[mark](device, stream)
    error = plant(stream)
    replace_method(monkeypatch, stream.backend, "spin_poll", lambda: False)  # which asks the driver
    with pytest.raises(DeviceLostError) as caught:
        await awaitable
    assert caught.value is error


def test_after_a_fault_the_stream_fails_without_hanging(
    device: na.Device, stream: na.Stream, gate: Gate, plant: Plant
) -> None:
    z = na.zeros(4).sync()
    add_one(z).sync()
    gate.close()
    before = [na.spawn(add_one(z), stream) for _ in range(3)]
    plant(stream)  # the gate stays shut: the word will not move

    async def wait() -> list[Any]:
        return await asyncio.gather(*map(waited, before), return_exceptions=True)

    assert all(isinstance(e, DeviceLostError) for e in in_time(lambda: na.run(wait())))
    attempts: list[Callable[[], Any]] = [
        lambda: add_one(z).sync_on(stream),
        lambda: add_one(z).async_on(stream),
        lambda: na.spawn(add_one(z), stream).sync(),
        lambda: na.run(waited(add_one(z).schedule(stream))),
        stream.synchronize,
        stream.query,
        lambda: na.run(waited(stream.done())),
    ]
    for attempt in attempts:
        with pytest.raises(DeviceLostError):
            in_time(attempt)
    assert "broken" in repr(stream)
    gate.open()
    stream.backend.synchronize()


# --- launch error, synchronise error, the work's own error ---


def failing(work: bool, launch: bool) -> na.DeviceOp[Any]:
    """An operation whose work fails on the device, and whose enqueuing fails, if so wished."""
    array, source = np.zeros(4, np.float32), na.ones(4).sync()

    def refuse(_: Any) -> None:
        array.flags.writeable = False  # so that the copy fails when the device is done

    op: na.DeviceOp[Any] = na.memcpy(array, source).inspect(refuse) if work else na.value(0)
    return op.map(lambda _: 1 // 0) if launch else op


@pytest.mark.parametrize("launch", [True, False])
@pytest.mark.parametrize("synchronise", [True, False])
@pytest.mark.parametrize("work", [True, False])
def test_the_first_of_several_errors_notes_the_others(
    device: na.Device, stream: na.Stream, monkeypatch: pytest.MonkeyPatch,
    work: bool, synchronise: bool, launch: bool,
) -> None:  # fmt: skip
    wait = stream.backend.synchronize

    def fail() -> None:
        wait()
        raise DriverError("cuStreamSynchronize", 999, "CUDA_ERROR_UNKNOWN", "planted")

    op = failing(work, launch)
    if synchronise:
        replace_method(monkeypatch, stream.backend, "synchronize", fail)
    expected: list[tuple[type[Exception], str]] = []
    if launch:
        expected.append((ZeroDivisionError, "division"))
    if synchronise:
        expected.append((DriverError, "cuStreamSynchronize failed"))
    if work:
        expected.append((ValueError, "read-only"))
    if not expected:
        assert op.sync_on(stream) == 0
        return
    (kind, text), *others = expected
    with pytest.raises(kind, match=text) as caught:
        op.sync_on(stream)
    notes = [n for n in getattr(caught.value, "__notes__", []) if DOCUMENTATION not in n]
    assert len(notes) == len(others)
    for note, (_, said) in zip(notes, others, strict=True):
        assert said in note


# --- exceptions of kernels ---


@na.launcher(debug=True, opt=False)
def divide(z: na.KernelOutput, by):
    z[0] = 1 // by


@pytest.mark.filterwarnings("ignore::numba.core.errors.NumbaPerformanceWarning")
async def test_a_debug_kernels_exception_arrives_at_its_await(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    tensors = [await na.zeros(1, np.int64) for _ in range(3)]
    for z in tensors:  # at once, so that there is host memory for all three
        divide[1, 1](z, 1).async_on(stream)
    await stream.done()
    gate.close()
    first, second, third = (
        na.spawn(divide[1, 1](z, by), stream) for z, by in zip(tensors, (0, 1, 0), strict=True)
    )
    task = asyncio.ensure_future(waited(first))
    await settle(device)
    assert not task.done() and not third.done(), "the launches did not wait for each other"
    gate.open()
    with pytest.raises(KernelError, match=r"kernel divide, block \(0, 0, 0\)"):
        await task
    assert (await second)[1] == 1
    with pytest.raises(KernelError):
        await third
    assert (await tensors[1].to_host())[0] == 1
