"""Asynchronous barriers, barriers of a part of a block, fences, and registers of a warpgroup.

A phase of a barrier ends when its arrivals and bytes are complete. A thread that waits looks again
when the phase has ended, as a GPU's does, and may then find the next one ended, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from numbasync.backend.cpu.interpreter.scheduler import Thread
from numbasync.backend.cpu.interpreter.tensor_cores.accesses import units_of
from numbasync.backend.cpu.interpreter.tensor_cores.block import SharedBarriers, TensorCoreBlock
from numbasync.backend.cpu.interpreter.tensor_cores.calls import WARP, Call
from numbasync.backend.cpu.interpreter.tensor_cores.order import Event, merged
from numbasync.errors import (
    BarrierDivergenceError,
    DataRaceError,
    KernelError,
    OutOfBoundsError,
    UninitialisedReadError,
)

_NOBODY: np.ndarray[Any, Any] = np.zeros(0, np.int64)


class Barrier:
    """One asynchronous barrier.

    Attributes:
        name: for messages.
        phase: the number of the phase that goes on; its parity is that of the number.
        ended: an event's column: the phases that a thread knows to have ended.
        initialised: known to the threads that may use it.
        is_fenced: whether asynchronous copies may use it.
    """

    def __init__(
        self, block: TensorCoreBlock, call: Call, name: str, address: int, arrivals: int
    ) -> None:
        self.name, self.text, self.by = name, str(call), call.number
        self.phase = 0
        self.is_fenced = False
        self.ended = block.order.columns(2)
        self.initialised = Event(self.ended + 1, 1)
        block.order.note([call.number], self.initialised)
        self._block = block
        self._need = arrivals
        self._arrived = self._expected = self._copied = 0
        self._row = self._ended_row = _NOBODY  # what those who have arrived know
        self._coming: list[tuple[int, Callable[[], None]]] = []
        # The last arrival of each thread of other blocks: the call, and an event.
        self._from_others: dict[tuple[int, int], tuple[Call, Event]] = {}
        self._waiting: list[Thread] = []
        # Bytes of its own, to see whether something writes over them.
        self.bytes = np.frombuffer(np.int64(~address).tobytes(), np.uint8)

    def copies(self, nbytes: int, deliver: Callable[[], None]) -> Event:
        """A copy into shared memory begins. Gives the event that threads know which have waited.

        Args:
            deliver: writes the bytes.
        """
        event = Event(self.ended, self.phase + 1)
        self._coming.append((self.phase, deliver))
        self._copied += nbytes
        self._end_phase()
        return event

    def arrive(self, call: Call, nbytes: int = 0) -> None:
        if self._arrived == self._need:
            raise KernelError(
                f"{call}: a phase of barrier {self.name} has {self._need} arrivals, and one more "
                "comes while its bytes are copied."
            )
        self._arrived += 1
        self._expected += nbytes
        if call.block is not self._block:
            self._note_arrival(call)
        self._row = merged(self._row, call.block.order.row(call.number))
        self._end_phase()

    def _note_arrival(self, call: Call) -> None:
        """A thread of another block arrives: the barrier's block must not have ended."""
        order, thread = call.block.order, (call.block.rank, call.number)
        if thread in self._from_others:
            before = self._from_others[thread][1]
            event = Event(before.column, before.count + 1)
        else:
            event = Event(order.columns(), 1)
        self._from_others[thread] = call, event
        order.note([call.number], event)

    def _end_phase(self) -> None:
        if self._arrived < self._need or self._copied != self._expected:
            return
        self.phase += 1
        self._arrived = self._expected = self._copied = 0
        self._ended_row = merged(self._ended_row, self._row)
        self._row = _NOBODY
        for thread in self._waiting:
            self._block.threads.resume(thread)
        self._waiting = []

    def wait(self, call: Call, parity: int) -> None:
        """Wait until the phase that goes on has not this parity."""
        threads = self._block.threads
        while self.phase & 1 == parity:
            self._waiting.append(threads.current)
            threads.wait(call.wait(lambda: self._lacking(parity)))
        later = []
        for phase, deliver in self._coming:
            if phase < self.phase:
                deliver()
            else:
                later.append((phase, deliver))
        self._coming = later
        order = self._block.order
        order.learn(call.number, self._ended_row)
        order.note([call.number], Event(self.ended, self.phase))

    def check_end(self) -> None:
        """
        Raises:
            DataRaceError: the block ends while copies of the barrier go on, or before a thread of
                another block has arrived.
        """
        if self._coming:
            phase = self._coming[0][0]
            raise DataRaceError(
                f"the block ends while copies go on that end phase {phase} of barrier {self.name}, "
                f"parity {phase & 1}: no thread has waited for it."
            )
        for call, event in self._from_others.values():
            if self._block.order.known[:, event.column].max() < event.count:
                raise DataRaceError(
                    f"the block may end before {call}, of block {call.block.rank} of the cluster, "
                    f"arrives at its barrier {self.name}: cluster_sync() is missing at the end of "
                    "the kernel."
                )

    def _lacking(self, parity: int) -> str:
        text = f"barrier {self.name}, parity {parity}: {self._arrived} of {self._need} arrivals"
        if self._expected or self._copied:
            text += f", {self._copied:,} of {self._expected:,} bytes"
        return text


def of_call(
    call: Call, barriers: SharedBarriers, index: Any, block: TensorCoreBlock | None = None
) -> Barrier:
    """The barrier that an operation names, of the calling thread's block or of another one.

    Raises:
        OutOfBoundsError: there is none of that index.
        UninitialisedReadError: it is not initialised, or something has been written over it.
        DataRaceError: the thread does not know that it is initialised.
    """
    name, address = _place(call, barriers, index)
    own = block is None or block is call.block
    of = call.block if block is None else block
    if not own:
        name += f" of block {of.rank}"
    meeting = "cuda.syncthreads()" if own else "cluster_sync()"
    barrier: Barrier | None = of.barriers.get(address)
    if barrier is None:
        raise UninitialisedReadError(
            f"{call}: barrier {name} is not initialised; one thread must call barrier_init"
            f"{'' if own else ', and cluster_sync() must lie between'}."
        )
    accesses = of.accesses
    if (accesses.bytes[address : address + 8] != barrier.bytes).any():
        writer = accesses.writer_of(units_of(np.array([address]), 8))
        raise UninitialisedReadError(
            f"{call}: the bytes of barrier {name} have been written over, by {writer}: arrays of "
            "the shared layout overlap."
        )
    if not call.block.order.is_known([call.number], barrier.initialised):
        raise DataRaceError(
            f"{call}: barrier {name} may not be initialised yet, which thread {barrier.by} does in "
            f"{barrier.text}; {meeting} must lie between."
        )
    return barrier


def _place(call: Call, barriers: SharedBarriers, index: Any) -> tuple[str, int]:
    number = int(index[0] if isinstance(index, tuple) else index)
    if not 0 <= number < barriers.count:
        raise OutOfBoundsError(
            f"{call}: {barriers.name} has {barriers.count} barriers, none of index {number}"
        )
    return f"{barriers.name}[{number}]", barriers.offset + 8 * number


# --- operations ---


def barrier_init(barriers: SharedBarriers, index: Any, arrivals: Any) -> None:
    call = Call("barrier_init")
    name, address = _place(call, barriers, index)
    if int(arrivals) < 1:
        raise KernelError(f"{call}: barrier {name} of {int(arrivals)} arrivals; write at least 1.")
    before = call.block.barriers.get(address)
    if before is not None:
        raise KernelError(
            f"{call}: the bytes of barrier {name} are barrier {before.name}, since {before.text}. "
            "A barrier is initialised once."
        )
    barrier = Barrier(call.block, call, name, address, int(arrivals))
    call.block.barriers[address] = barrier
    call.block.accesses.bytes[address : address + 8] = barrier.bytes


def fence_barrier_init() -> None:
    _fence_own(Call("fence_barrier_init"))


def _fence_own(call: Call) -> None:
    """Barriers that the thread has initialised are known to asynchronous copies."""
    for barrier in call.block.barriers.values():
        barrier.is_fenced |= barrier.by == call.number


def barrier_arrive(barriers: SharedBarriers, index: Any, rank: Any = None) -> None:
    call = Call("barrier_arrive")
    blocks = call.block.cluster.blocks
    if rank is not None and not 0 <= int(rank) < len(blocks):
        raise OutOfBoundsError(f"{call}: rank {int(rank)}, in a cluster of {len(blocks)} blocks.")
    of = call.block if rank is None else blocks[int(rank)]
    of_call(call, barriers, index, of).arrive(call)


def barrier_expect(barriers: SharedBarriers, index: Any, nbytes: Any) -> None:
    call = Call("barrier_expect")
    of_call(call, barriers, index).arrive(call, int(nbytes))


def barrier_wait(barriers: SharedBarriers, index: Any, parity: Any) -> None:
    call = Call("barrier_wait")
    barrier = of_call(call, barriers, index)
    if int(parity) not in (0, 1):
        raise KernelError(f"{call}: a phase of parity {int(parity)}; write 0 or 1.")
    barrier.wait(call, int(parity))


def fence_async() -> None:
    call = Call("fence_async")
    _fence_own(call)
    call.block.fence(call.number)


# --- a part of the block ---


class Part:
    """A barrier of `part_sync`: those who have arrived since all have come the last time.

    Attributes:
        number: of the barrier.
        threads: how many must come.
    """

    def __init__(self, number: int, threads: int) -> None:
        self.number, self.threads = number, threads
        self._arrived: list[int] = []
        self._row = _NOBODY
        self._waiting: list[Thread] = []

    def arrive(self, call: Call, threads: int, waits: bool) -> None:
        block = call.block
        if not self._arrived:
            self.threads = threads
        if threads != self.threads:
            raise BarrierDivergenceError(
                f"{call}: barrier {self.number} of {threads} threads, at which others wait for "
                f"{self.threads}."
            )
        self._arrived.append(call.number)
        self._row = merged(self._row, block.order.row(call.number))
        if waits:
            self._waiting.append(block.threads.current)
        if len(self._arrived) == threads:
            for thread in self._waiting:
                block.order.learn(thread.number, self._row)
                block.threads.resume(thread)
            self._arrived, self._waiting, self._row = [], [], _NOBODY
        if waits:
            block.threads.wait(call.wait(self._lacking))

    def _lacking(self) -> str:
        return f"barrier {self.number}: {len(self._arrived)} of {self.threads} threads have come"


def _part(call: Call, number: Any, threads: Any, waits: bool) -> None:
    which, count = int(number), int(threads)
    if not 1 <= which <= 15 or count < WARP or count % WARP:
        raise KernelError(
            f"{call}: barrier {which} of {count} threads; write a number from 1 to 15, and whole "
            "warps."
        )
    parts = call.block.parts
    parts.setdefault(which, Part(which, count)).arrive(call, count, waits)


def part_sync(number: Any, threads: Any) -> None:
    _part(Call("part_sync"), number, threads, waits=True)


def part_arrive(number: Any, threads: Any) -> None:
    _part(Call("part_arrive"), number, threads, waits=False)


# --- registers ---


def give_up_registers(count: Any) -> None:
    Call("give_up_registers").with_warpgroup(None, lambda numbers, values: values)


def take_registers(count: Any) -> None:
    Call("take_registers").with_warpgroup(None, lambda numbers, values: values)
