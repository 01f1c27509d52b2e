"""Operations made of operations: their length, their streams, and who warns."""

from __future__ import annotations

import gc
import warnings

import pytest

import numbasync as na
from numbasync.errors import AlreadySubmittedError, CallerError, OperationError, StateError
from tests.common import add_one, copy_to


def test_chains_can_be_of_any_length(device: na.Device) -> None:
    op = na.value(0)
    for _ in range(3000):
        op = op.map(lambda n: n + 1)
        op = op.then(lambda n: na.value(n + 1))
    assert len(str(op)) < 500
    assert "...5994 more..." in str(op)
    assert op.sync() == 6000


async def test_a_self_extending_chain_needs_no_stack(device: na.Device) -> None:
    def down(n: int) -> na.DeviceOp[int]:
        return na.value(n) if n == 0 else na.value(n).then(lambda n: down(n - 1))

    assert await down(5000) == 0


# --- an operation that names its stream ---


def test_a_bracketed_stream_holds_for_derived_operations(
    device: na.Device, stream: na.Stream
) -> None:
    z = na.zeros(4).sync()
    other = device.new_stream()
    for make in (
        lambda op: op.map(lambda r: r),
        lambda op: op.then(na.value),
        lambda op: na.zip(na.value(1), op),
        lambda op: op.shared(),
        lambda op: op.unzip()[0],
        lambda op: copy_to(na.zeros(4).sync(), op.output()),
    ):
        op = make(add_one[1, 4, stream](z))
        assert op.stream is stream
        with pytest.raises(OperationError, match="brackets"):
            op.sync_on(other)
        if not isinstance(op, na.DeviceOp):
            continue
        future = make(add_one[1, 4, stream](z)).schedule(stream)
        assert future.stream is stream
        future.sync()
        op.suppress_warning()


def test_parts_that_name_different_streams_are_refused(
    device: na.Device, stream: na.Stream
) -> None:
    z = na.zeros(4).sync()
    other = device.new_stream()
    with pytest.raises(OperationError, match="one stream"):
        na.zip(add_one[1, 4, stream](z), add_one[1, 4, other](z))
    with pytest.raises(OperationError, match="one stream"):
        copy_to[1, 4, other](na.zeros(4).sync(), add_one[1, 4, stream](z).output())
    with pytest.raises(OperationError, match="one stream"):
        na.value(1).then(lambda _: add_one[1, 4, other](z)).sync_on(stream)
    assert z.to_host().sync().tolist() == [0] * 4
    # What a shared operation gave may be used on any stream.
    shared = add_one[1, 4, stream](z).output().shared()
    shared.sync()
    copied = copy_to[1, 4, other](na.zeros(4).sync(), shared).sync()
    assert copied.z.to_host().sync().tolist() == [1] * 4


# --- warnings ---


def collected(recwarn: pytest.WarningsRecorder) -> list[str]:
    gc.collect()
    return [str(w.message) for w in recwarn.list]


def test_half_of_an_unzip_may_be_unused(
    device: na.Device, recwarn: pytest.WarningsRecorder
) -> None:
    assert na.zip(na.value(1), na.value(2)).unzip()[0].sync() == 1
    assert collected(recwarn) == []


def test_an_unused_unzip_warns_once(recwarn: pytest.WarningsRecorder) -> None:
    na.zip(na.value(1), na.value(2)).unzip()
    (said,) = collected(recwarn)
    assert said.startswith("zip(") and "never awaited" in said


def test_an_element_runs_once(device: na.Device) -> None:
    a, b = na.zip(na.value(1), na.value(2)).unzip()
    assert a.sync() == 1
    with pytest.raises(AlreadySubmittedError):
        a.sync()
    assert b.sync() == 2


def test_a_refused_operation_warns_of_nothing(
    device: na.Device, recwarn: pytest.WarningsRecorder
) -> None:
    with pytest.raises(CallerError):
        add_one.compile("no array")
    with pytest.raises(CallerError):
        na.zip(na.value(1), 3)  # type: ignore[call-overload]
    assert collected(recwarn) == []


# --- the context of a closure ---


def test_work_enqueued_by_a_closure_is_awaited(device: na.Device, stream: na.Stream) -> None:
    from numbasync.testing import gate

    event = device.new_event()
    held = gate(stream)
    held.close()
    future = na.spawn(na.with_context(lambda ctx: event.record(ctx.stream)), stream)
    assert not future.done()
    held.open()
    assert future.sync() is event and event.query()


# --- a policy, a device, a program ---


def test_what_is_no_device_is_refused() -> None:
    for make in (na.StreamPoolRoundRobin, na.SingleStream, na.LeastPending, na.Priority):
        with pytest.raises(CallerError, match="needs a device"):
            make("cuda")  # type: ignore[arg-type]
    with pytest.raises(CallerError, match="use_device takes a device"), na.use_device(0):  # type: ignore[arg-type]
        pass
    with pytest.raises(CallerError, match="number of streams, n, is 0"):
        na.StreamPoolRoundRobin(na.default_device(), 0)


def test_priority_is_a_policy(device: na.Device) -> None:
    urgent = na.Priority(device, -1, n=2)
    assert urgent.next_stream() is not urgent.next_stream()
    assert na.spawn(na.value(3), urgent).sync() == 3
    assert "-1" in repr(urgent)


def test_run_takes_operations_and_says_what_it_refuses() -> None:
    assert na.run(na.value(3)) == 3

    async def main() -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(StateError, match="notebook"):
                na.run(main())
        return 1

    assert na.run(main()) == 1
    with pytest.raises(CallerError, match=r"main\(\)"):
        na.run(main)  # type: ignore[arg-type]
