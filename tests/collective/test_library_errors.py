"""Collectives by a library of the devices that fails: here a library that does nothing."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import numbasync as na
from numbasync.backend.cuda import nccl
from numbasync.collective import Communicator, all_reduce, new_key
from numbasync.collective.communicator import Channel, WorkOnDevice
from numbasync.errors import (
    AccessConflictError,
    CollectiveError,
    DeviceMismatchError,
    DriverError,
    RankLostError,
)
from numbasync.testing import Gate


class Rank:
    """A rank whose calls a test replaces."""

    def __init__(self) -> None:
        self.calls = 0
        self.aborted = threading.Event()
        self.call: Callable[[], None] = lambda: None

    def all_reduce(self, stream: Any, send: Any, recv: Any, op: str) -> Callable[[], None]:
        return self._made

    def _made(self) -> None:
        self.calls += 1
        self.call()

    def abort(self) -> None:
        self.aborted.set()


class Library:
    def takes(self, dtype: Any, op: str | None = None) -> bool:
        return True

    def make(self, calls: Sequence[Callable[[], None]], rank: Rank) -> None:
        for call in calls:
            call()


@pytest.fixture
def comm(cpu: na.Device) -> Iterator[Communicator]:
    with Communicator(new_key(1), 0, cpu, timeout=0.2) as comm:
        comm._group.by_library = (Library(), Rank())  # type: ignore[assignment]
        yield comm


@pytest.fixture
def rank(comm: Communicator) -> Any:
    assert comm._group.by_library is not None
    return comm._group.by_library[1]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[WorkOnDevice]:
    """All work that a channel watches from now on."""
    works: list[WorkOnDevice] = []
    watch = Channel.watch
    monkeypatch.setattr(
        Channel, "watch", lambda self, work: (works.append(work), watch(self, work))
    )
    return works


def raising(error: BaseException) -> Callable[[], None]:
    def call() -> None:
        raise error

    return call


def ones() -> na.Tensor:
    return na.from_host(np.ones(8, np.float32)).sync()


def test_the_first_error_is_raised_then_calls_refused(comm: Communicator, rank: Rank) -> None:
    error = RankLostError("gone")
    rank.call = raising(error)
    for _ in range(2):
        with pytest.raises(RankLostError) as raised:
            all_reduce(ones(), comm=comm).sync()
        assert raised.value is error and error.__cause__ is None
    assert rank.calls == 1, "a second call would wait for the lost rank"


@pytest.mark.parametrize("kind", [KeyError, KeyboardInterrupt])
def test_a_foreign_error_ends_no_other_call(
    comm: Communicator, rank: Rank, watched: list[WorkOnDevice], kind: type[BaseException]
) -> None:
    rank.call = raising(kind("k"))
    with pytest.raises(kind):
        all_reduce(ones(), comm=comm).sync()
    rank.call = lambda: None
    all_reduce(ones(), comm=comm).sync()
    assert [work.is_over() for work in watched] == [True] * 2, "nothing to end"


def test_a_refused_operation_is_not_watched(
    cpu: na.Device, comm: Communicator, rank: Rank, watched: list[WorkOnDevice]
) -> None:
    t, busy, other = ones(), cpu.new_stream(), cpu.new_stream()
    na.set_ordering("strict")
    try:
        with Gate(busy):
            na.fill(t, 2).async_on(busy)
            with pytest.raises(AccessConflictError):
                all_reduce(t, comm=comm).sync_on(other)
    finally:
        na.set_ordering("auto")
    assert not watched and rank.calls == 0
    busy.synchronize()
    all_reduce(t, comm=comm).sync()


def test_a_call_behind_an_aborted_one_is_skipped(
    cpu: na.Device, comm: Communicator, rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library has freed what it would use."""
    inside, behind, errors = threading.Event(), threading.Event(), list[BaseException]()
    new_event = type(cpu.backend).new_event

    def waits_for_the_lock_next(self: Any, timing: bool) -> Any:
        if inside.is_set():  # it is the second call's
            behind.set()
        return new_event(self, timing)

    def until_aborted() -> None:
        inside.set()
        assert rank.aborted.wait(60) and behind.wait(60)
        raise RankLostError("ended")

    def run() -> None:
        try:
            with na.use_device(cpu):  # a thread begins with the process's default device
                all_reduce(ones(), comm=comm).sync()
        except CollectiveError as error:
            errors.append(error)

    monkeypatch.setattr(type(cpu.backend), "new_event", waits_for_the_lock_next)
    rank.call = until_aborted
    first, second = threading.Thread(target=run), threading.Thread(target=run)
    first.start()
    assert inside.wait(60)
    second.start()
    first.join(60)
    second.join(60)
    assert rank.calls == 1 and len(errors) == 2


@pytest.mark.parametrize(
    "collective",
    [na.collective.all_reduce, na.collective.all_gather, na.collective.reduce_scatter],
)
def test_a_tensor_of_another_device_is_refused(
    cpu: na.Device, comm: Communicator, collective: Callable[..., Any]
) -> None:
    other = na.devices("cpu")[1]
    assert other is not cpu
    with na.use_device(other):
        t = ones()
    with pytest.raises(DeviceMismatchError, match=r"cpu:0.*\n.*to_device\(t, comm.device\)"):
        collective(t, comm=comm)


def test_an_aborted_communicator_of_nccl_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    aborted: list[object] = []
    bindings = SimpleNamespace(NCCLError=ValueError, comm_abort=aborted.append)
    monkeypatch.setattr(nccl, "enter", lambda device: None)
    device: Any = None
    stream: Any = None
    array: Any = SimpleNamespace(dtype=np.dtype(np.float32), nbytes=32, address=0)
    rank = nccl.NcclRank(nccl.Nccl(bindings, bytes), "a communicator", device)
    rank.abort()
    rank.abort()
    with pytest.raises(DriverError, match="it was aborted"):
        rank.send(stream, array, 1)
    assert aborted == ["a communicator"]


class Bindings:
    """NCCL's, whose calls note their names, and of which one may fail."""

    NCCLError = type("NCCLError", (Exception,), {"status": 3})

    def __init__(self, failing: str = "") -> None:
        self.made: list[str] = []
        for name in ("group_start", "all_reduce", "broadcast", "group_end"):
            setattr(self, name, self._function(name, name == failing))

    def _function(self, name: str, fails: bool) -> Any:
        def function(*args: object) -> None:
            if fails:
                raise self.NCCLError(name)
            self.made.append(name)

        function.__name__ = name
        return function


def calls_of(bindings: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[nccl.Nccl, list[Any], Any]:
    """Calls of two ranks that are prepared, and the first rank."""
    monkeypatch.setattr(nccl, "enter", lambda device: None)
    own, device = nccl.Nccl(bindings, bytes), cast(Any, None)
    array: Any = SimpleNamespace(dtype=np.dtype(np.float32), nbytes=32, address=0)
    ranks = [nccl.NcclRank(own, i, device) for i in range(2)]
    stream = cast(Any, SimpleNamespace(handle_number=0))
    return own, [
        ranks[0].all_reduce(stream, array, array, "sum"),
        ranks[1].broadcast(stream, array, array, 0),
    ], ranks[0]  # fmt: skip


EVERY_CALL = ["group_start", "all_reduce", "broadcast", "group_end"]


def test_no_interrupt_comes_between_nccls_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a group some of whose calls are missing the others wait on their devices for ever."""
    bindings = Bindings()
    nccls, calls, rank = calls_of(bindings, monkeypatch)
    between = set[str]()

    def trace(frame: Any, event: str, _: Any) -> Any:
        frame.f_trace_opcodes = True
        if event in ("line", "opcode") and 0 < len(bindings.made) < len(EVERY_CALL):
            between.add(frame.f_code.co_name)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        nccls.make(calls, rank)
    finally:
        sys.settrace(before)
    assert bindings.made == EVERY_CALL
    assert between == {"function"}, "those of the bindings, which in NCCL's are compiled"


@pytest.mark.parametrize(
    ("failing", "made"),
    [
        ("group_start", []),
        ("all_reduce", ["group_start", "group_end"]),
        ("broadcast", ["group_start", "all_reduce", "group_end"]),
        ("group_end", EVERY_CALL[:-1]),
    ],
)
def test_what_nccl_has_begun_it_ends(
    failing: str, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bindings = Bindings(failing)
    nccls, calls, rank = calls_of(bindings, monkeypatch)
    with pytest.raises(DriverError, match=f"nccl {failing}"):
        nccls.make(calls, rank)
    assert bindings.made == made


def test_one_call_of_nccl_is_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    bindings = Bindings()
    nccls, calls, rank = calls_of(bindings, monkeypatch)
    nccls.make(calls[:1], rank)
    assert bindings.made == ["all_reduce"]
