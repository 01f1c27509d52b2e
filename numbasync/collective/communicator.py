"""A communicator: one process, and one device, of a group of processes on one machine.

The collectives of a communicator run one after the other, in the order in which their operations
are started, on a thread of its own. Every process must start the same ones in the same order.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np

from numbasync.arguments import as_whole, is_number, shown
from numbasync.backend.protocols import Library, Rank
from numbasync.collective.exchange import SLOT_BYTES, Bytes, Exchange, GroupKey
from numbasync.collective.reductions import reduced
from numbasync.device.device import Device
from numbasync.errors import CallerError, StateError
from numbasync.extending import (
    ArraySpec,
    HostArray,
    attempt,
    chosen_device,
    on_worker,
    unpicklable,
)
from numbasync.threads import refused, submit

T = TypeVar("T")

ID_BYTES = 128  # of a library's identity of a group
LONGEST = 2_000_000  # seconds: a socket counts milliseconds in 32 bits


class WorkOnDevice:
    """A collective on the device, by a library.

    Attributes:
        done: an event behind it; None until the library's call has returned.
        has_failed: whether that call has raised.
        was_undisturbed: whether it was over before any work of its channel was ended.
    """

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.done: Any = None
        self.has_failed = False
        self.was_undisturbed = False

    def is_over(self) -> bool:
        return self.has_failed or (self.done is not None and bool(self.done.query()))


class Channel:
    """An exchange, and the thread that uses it; and the rank of the devices' library, if any.

    Attributes:
        device: of the tensors that are sent and received.
        by_library: the library and the rank, once connected; None: they have none.
        is_connected: whether `connect` has returned.
        failure: why collectives on the device were ended, or cannot be started.
    """

    def __init__(self, exchange: Exchange, device: Device) -> None:
        self._exchange = exchange
        self.device = device
        self.by_library: tuple[Library, Rank] | None = None
        self.is_connected = False
        self.failure: Exception | None = None
        self._has_ended_work = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"numbasync-rank-{exchange.rank}")

    def watch(self, work: WorkOnDevice) -> None:
        """Return at once. From now on the thread looks at the work until it is over. It ends the
        work, or the library's call that is to start it, if another rank is lost or late.
        """

        def until_done() -> None:
            deadline, pause = time.monotonic() + self._exchange.timeout, 1e-4
            while not work.is_over():
                error = self._exchange.lost(pause)
                if error is None and time.monotonic() > deadline:
                    error = self._exchange.late()
                if error is not None and not work.is_over():
                    self.failure = self.failure or error
                    if not self._has_ended_work:  # of all calls at once, and it can be done once
                        self._has_ended_work = True
                        work.rank.abort()
                    return
                pause = min(2 * pause, 0.01)
            work.was_undisturbed = not self._has_ended_work

        _give(self._thread, until_done)

    def check(self, work: WorkOnDevice) -> None:
        """Raise if the elements of work that is over may be wrong."""
        if self._has_ended_work and not work.was_undisturbed and self.failure is not None:
            raise self.failure

    def later(self, call: Callable[[], Any]) -> Call:
        """`call` as a prerequisite, to run on the thread after earlier ones."""
        return Call(self._thread, call)

    def is_lost(self) -> bool:
        """Whether another rank has ended, or closed its communicator."""
        return self._exchange.lost(0) is not None

    def close(self) -> None:
        self._thread.shutdown(wait=True)
        self._exchange.close()

    # --- what runs on the thread ---

    def connect(self) -> None:
        """Wait for the other ranks. If every device has a library of collectives, use that."""
        library: Library | None = self.device.backend.collectives
        exchange = self._exchange
        own = np.zeros(1 + ID_BYTES, np.uint8)
        if library is not None:
            own[0] = 1
            if exchange.rank == 0:
                identity = np.frombuffer(library.new_id(), np.uint8)
                own[1 : 1 + identity.size] = identity
        slots = exchange.round("connect", own)
        if library is not None and all(slot[0] for slot in slots):
            identity = slots[0][1 : 1 + ID_BYTES].tobytes()
            rank = library.rank(identity, exchange.rank, exchange.size, self.device.backend)
            self.by_library = library, rank
        self.is_connected = True

    def _rounds(
        self,
        what: str,
        send: HostArray | None,
        nbytes: int,
        read: Callable[[int, int, Sequence[Bytes]], None],
    ) -> None:
        """Exchange `nbytes` of each rank, in rounds of at most `SLOT_BYTES`.

        Args:
            send: this rank's array, C-contiguous; None: the others read nothing of it.
            read: called with the first byte and the end of each round, and the slots of all ranks.
        """
        own = None if send is None else send.reshape(-1).view(np.uint8)
        for start in range(0, nbytes, SLOT_BYTES) or (0,):
            end = min(start + SLOT_BYTES, nbytes)
            chunk = None if own is None else own[start:end]
            slots = self._exchange.round(f"{what}, byte {start}", chunk)
            read(start, end, [slot[: end - start] for slot in slots])

    def all_reduced(self, send: HostArray, op: str) -> HostArray:
        out = np.empty_like(send)
        flat, size = out.reshape(-1), send.itemsize

        def read(start: int, end: int, slots: Sequence[Bytes]) -> None:
            parts = [slot.view(send.dtype) for slot in slots]
            reduced(parts, op, flat[start // size : end // size])

        self._rounds(f"all_reduce {op} of {_kind(send)}", send, send.nbytes, read)
        return out

    def all_gathered(self, send: HostArray) -> HostArray:
        ranks = self._exchange.size
        out = np.empty((ranks, send.nbytes), np.uint8)

        def read(start: int, end: int, slots: Sequence[Bytes]) -> None:
            for row, slot in zip(out, slots, strict=True):
                row[start:end] = slot

        self._rounds(f"all_gather of {_kind(send)}", send, send.nbytes, read)
        shape = (ranks * send.shape[0], *send.shape[1:])
        return out.reshape(-1).view(send.dtype).reshape(shape)

    def sent(self, what: str, send: HostArray | None, root: int, like: ArraySpec) -> HostArray:
        """The array of rank `root`, whose shape and dtype are those of `like`."""
        out = np.empty(like.shape, like.dtype)
        flat = out.reshape(-1).view(np.uint8)

        def read(start: int, end: int, slots: Sequence[Bytes]) -> None:
            flat[start:end] = slots[root]

        self._rounds(f"{what} of {_kind(like)} from {root}", send, like.nbytes, read)
        return out


class Communicator:
    """This process's end of a group of processes.

    The constructor blocks until every process of the group has called it; `connect` does not.

    Args:
        key: the group's key, created once by `new_key` and passed to every process.
        rank: this process's number, from 0; each is taken once.
        device: the device of the results; None: the default device.
        timeout: seconds that connecting, and each collective, may wait for other processes.

    Raises:
        CallerError: `key` is no key, the group has no such rank, or the time is not positive.
        CollectiveTimeoutError: not every process has come in time.

    Examples:
        >>> key = na.collective.new_key(1)
        >>> comm = na.collective.Communicator(key, rank=0)
        >>> comm.rank, comm.size
        (0, 1)
        >>> comm.close()
    """

    def __init__(
        self, key: GroupKey, rank: int, device: Device | None = None, timeout: float = 30.0
    ) -> None:
        if not isinstance(key, GroupKey):
            raise CallerError(
                f"a communicator needs a key of na.collective.new_key, not {shown(key)}."
            )
        number = as_whole(rank)
        if number is None or number not in range(key.size):
            raise CallerError(
                f"rank of a communicator: a group of {key.size} has ranks 0 to {key.size - 1}, "
                f"not {shown(rank)}."
            )
        if not is_number(timeout) or not 0 < float(timeout) <= LONGEST:
            raise CallerError(
                f"timeout of a communicator is a positive number of seconds, not {shown(timeout)}: "
                f"write at most {LONGEST:,}, which sockets can wait."
            )
        self.device = chosen_device(device, "a communicator")
        self.rank = rank = number
        self.size = key.size
        self.timeout = timeout = float(timeout)
        self._key = key
        self._is_closed = False
        self._group = Channel(Exchange(key, rank, timeout), self.device)
        self._group.connect()
        self._pairs = dict[tuple[int, int], Channel]()

    def close(self) -> None:
        """Leave the group. Collectives that other processes still wait in fail there."""
        if not self._is_closed:
            self._is_closed = True
            for channel in (*self._pairs.values(), self._group):
                channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self._is_closed else ""
        return f"<Communicator rank {self.rank} of {self.size}, {self.device.label}{state}>"

    def is_lost(self) -> bool:
        """Whether this communicator is closed, or another process of the group has ended."""
        return self._is_closed or self._group.is_lost()

    @property
    def group(self) -> Channel:
        """The channel of all ranks."""
        self._check_open()
        return self._group

    def channel(self, source: int, target: int) -> Channel:
        """The channel from one rank to another, of which this is one; connected when first used."""
        self._check_open()
        pair = source, target
        if pair not in self._pairs:
            rank = 0 if self.rank == source else 1
            exchange = Exchange(GroupKey(self._key.folder, 2), rank, self.timeout, pair)
            self._pairs[pair] = Channel(exchange, self.device)
        return self._pairs[pair]

    def _check_open(self) -> None:
        if self._is_closed:
            raise StateError(f"{self!r}: connect again, with a new key.")


def _kind(array: HostArray | ArraySpec) -> str:
    return f"{array.dtype.str}{list(array.shape)}"


class Call:
    """A call on a communicator's thread, as a prerequisite of an operation; its `value`."""

    def __init__(self, thread: ThreadPoolExecutor, call: Callable[[], Any]) -> None:
        self._thread = thread
        self._call = call
        self.value: Any = None

    def _run(self) -> None:
        self.value = self._call()

    def run(self) -> None:
        _give(self._thread, self._run).result()

    def future(self, if_closed: Callable[[], object]) -> asyncio.Future[BaseException | None]:
        need = partial(attempt, _OnThread(self._run))
        return on_worker(lambda: _give(self._thread, need), self, if_closed)


def _give(thread: ThreadPoolExecutor, call: Callable[[], T]) -> Future[T]:
    """A call for the thread of a group.

    Raises:
        DeviceError: the thread cannot be started.
    """
    try:
        return submit(thread, call)
    except RuntimeError as error:
        raise refused("the calls of a group of processes", error) from error


class _OnThread:
    def __init__(self, run: Callable[[], None]) -> None:
        self.run = run


unpicklable(Communicator, "Pickle the key, and connect where it is used.")
