"""Collectives by a library of the devices that fails: here a library that does nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

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

    def all_reduce(self, stream: Any, send: Any, recv: Any, op: str) -> None:
        self.calls += 1
        self.call()

    def abort(self) -> None:
        self.aborted.set()


class Library:
    def takes(self, dtype: Any, op: str | None = None) -> bool:
        return True


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


def test_the_first_error_is_raised_as_it_is_and_later_calls_are_refused(
    comm: Communicator, rank: Rank
) -> None:
    error = RankLostError("gone")
    rank.call = raising(error)
    for _ in range(2):
        with pytest.raises(RankLostError) as raised:
            all_reduce(ones(), comm=comm).sync()
        assert raised.value is error and error.__cause__ is None
    assert rank.calls == 1, "a second call would wait for the lost rank"


@pytest.mark.parametrize("kind", [KeyError, KeyboardInterrupt])
def test_an_error_that_is_not_the_librarys_ends_no_other_call(
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


def test_a_call_that_waited_for_an_aborted_one_is_not_made(
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


def test_an_end_of_nccls_calls_has_its_beginning() -> None:
    """^C before the first call: an end of nothing would be an error in its place."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    ends: list[None] = []
    bindings = SimpleNamespace(
        NCCLError=ValueError, group_start=interrupted, group_end=lambda: ends.append(None)
    )
    with pytest.raises(KeyboardInterrupt), nccl.Nccl(bindings, bytes).together():
        pass
    assert not ends
    bindings.group_start = lambda: None
    with pytest.raises(ZeroDivisionError), nccl.Nccl(bindings, bytes).together():
        1 / 0  # noqa: B018
    assert len(ends) == 1
