"""Kernels that run as Python: the kernel's own code object is called once for every CUDA thread, so
that `breakpoint()`, `print` and coverage tools work. Numbers are Python's and NumPy's.

In a kernel without barriers a block is a loop over its threads. In one with barriers each thread
of a block is a greenlet, which a barrier suspends until all threads of the block have arrived.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import greenlet
import numpy as np

from numbasync.backend.cpu.interpreter.bind import Binding
from numbasync.backend.cpu.interpreter.cuda_module import (
    BlockState,
    Index3,
    Place,
    enter,
    leave,
    with_fields,
)
from numbasync.backend.cpu.library.declared_arguments import Formal
from numbasync.backend.cpu.library.processor_code import ProcessorCode
from numbasync.backend.cpu.races.shadow_memory import turns
from numbasync.backend.protocols import GENERATED, ArgumentAccess, Checks, Dim3
from numbasync.errors import BarrierDivergenceError, KernelError, NumbasyncError, OutOfBoundsError

if TYPE_CHECKING:
    from numbasync.backend.cpu.protocols import Workers

GUARD = (
    "Guard the work between barriers, not the barriers: if i < n: ...; then cuda.syncthreads() "
    "outside the if."
)


class Interpreted(ProcessorCode):
    """A kernel, ready to be run on the CPU device by any worker thread. Names keep the values that
    they have when the kernel is first needed; elements of global arrays do not.
    """

    from_disk = False
    engine = "interpreted"
    why = "NUMBASYNC_CPU_ENGINE=interpreted asks for it"
    formal: Formal | None = None  # of declared signatures
    records: tuple[int, ...] = ()  # positions of structured scalars, which come as arrays
    static_shared_bytes = 0  # not known before the kernel runs

    def __init__(self, dispatcher: Any, max_threads: int) -> None:
        self.function: types.FunctionType = dispatcher.py_func
        self.name = self.function.__name__
        self.max_threads_per_block = max_threads
        binding = Binding()
        try:
            self._body = binding.function(self.function)
        except NumbasyncError as error:
            error.args = (f"kernel {self.name}: {error}",)
            raise
        self.has_barriers = binding.has_barriers
        self.has_breakpoints = binding.has_breakpoints
        self._files = binding.files - {GENERATED}

    def allow_large_shared(self) -> None:
        """Nothing to do: memory of a block is the host's."""

    def suggested_threads(self) -> int:
        # A block costs more here than a thread, and a barrier more than a block.
        return 64 if self.has_barriers else 256

    def is_short(self, grid: Dim3, block: Dim3) -> bool:
        return False

    def run(
        self,
        grid: Dim3,
        block: Dim3,
        shared_bytes: int,
        args: Sequence[Any],
        engine: Workers,
        checks: Checks | None = None,
        argument_access: Sequence[ArgumentAccess | None] = (),
    ) -> None:
        """Run every block, one after the other. Called on a worker thread.

        Args:
            checks: the order of blocks and threads; accesses are not checked but for their indices.
            argument_access: not used.
        """
        state = BlockState(Index3(*grid), Index3(*block), shared_bytes)
        values = [_value(argument) for argument in args]
        threads = list(_ordered(_indices(block), checks))
        lanes = _Lanes() if self.has_barriers else None
        enter(state)
        try:
            with np.errstate(all="ignore"):
                for state.block in _ordered(_indices(grid), checks):
                    if engine.stopping:
                        return
                    if lanes is not None:
                        lanes.run_block(self._body, values, threads, state)
                        continue
                    for state.thread in threads:
                        self._body(*values)
        except NumbasyncError as error:
            error.args = (f"{self._place(state)}{error}",)
            raise
        except Exception as error:
            cls = OutOfBoundsError if isinstance(error, IndexError) else KernelError
            text = f"{type(error).__name__}: {error}{self._line(error)}"
            raise cls(f"{self._place(state)}{text}") from error
        finally:
            leave()
            if lanes is not None:
                lanes.end()

    def _place(self, state: BlockState) -> str:
        return f"kernel {self.name}, block {tuple(state.block)}, thread {tuple(state.thread)}: "

    def _line(self, error: BaseException) -> str:
        """The innermost line of the kernel, or of its device functions, in a traceback."""
        text = ""
        trace = error.__traceback__
        while trace is not None:
            file = trace.tb_frame.f_code.co_filename
            if file in self._files:
                text = f" ({file}:{trace.tb_lineno})"
            trace = trace.tb_next
        return text


class _Lanes:
    """The greenlets of one launch: one for each thread of a block, used again for each block."""

    def __init__(self) -> None:
        self._greenlets: list[greenlet.greenlet] = []

    def run_block(
        self, body: Callable[..., None], args: list[Any], threads: list[Index3], state: BlockState
    ) -> None:
        """Run each thread to its next barrier, then all threads to the one after that."""
        while len(self._greenlets) < len(threads):
            self._greenlets.append(greenlet.greenlet(_lane))
        messages: Any = (body, args)
        while True:
            arrived: list[tuple[Index3, Place, str, Any]] = []
            for lane, state.thread in zip(self._greenlets, threads, strict=True):
                stop = lane.switch(messages)
                if stop is not None:
                    arrived.append((state.thread, *stop))
            if not arrived:
                return
            _check_all_arrived(arrived, threads)
            messages = _combined(arrived[0][2], [value for *_, value in arrived])

    def end(self) -> None:
        for lane in self._greenlets:
            if lane:  # started, and not at its end
                lane.throw(greenlet.GreenletExit)


def _lane(job: tuple[Callable[..., None], list[Any]]) -> None:
    """Run one thread of each block: the body, then a report to the parent that it has returned."""
    parent: Any = greenlet.getcurrent().parent
    with np.errstate(all="ignore"):  # a greenlet has a context of its own, and so NumPy's settings
        while True:
            body, args = job
            body(*args)
            job = parent.switch(None)


def _check_all_arrived(
    arrived: list[tuple[Index3, Place, str, Any]], threads: list[Index3]
) -> None:
    first, place, name, _ = arrived[0]
    for thread, other, other_name, _ in arrived:
        if other != place:
            in_tile = GENERATED in (place[0].co_filename, other[0].co_filename)
            raise BarrierDivergenceError(
                f"thread {tuple(first)} {_stopped(place, name)}, while thread {tuple(thread)} "
                f"{_stopped(other, other_name)}.\n"
                + (GUARD if in_tile else "Every thread of a block must come to the same barrier.")
            )
    if len(arrived) < len(threads):
        waiting = {thread for thread, *_ in arrived}
        absent = next(thread for thread in threads if thread not in waiting)
        raise BarrierDivergenceError(
            f"{len(arrived)} of {len(threads)} threads wait at cuda.{name}, line {_line(place)}, "
            f"but thread {tuple(absent)} has returned.\n{GUARD}"
        )


def _stopped(place: Place, name: str) -> str:
    if place[0].co_filename == GENERATED:
        return "is done with its tile"
    return f"waits at cuda.{name}, line {_line(place)}"


def _line(place: Place) -> int | None:
    code, offset = place
    return list(code.co_positions())[offset // 2][0]


def _combined(name: str, values: list[Any]) -> Any:
    """What a barrier gives to every thread, from what each thread has passed to it."""
    if name == "syncthreads_count":
        return sum(1 for value in values if value)
    return int(all(values) if name == "syncthreads_and" else any(values))


def _value(argument: Any) -> Any:
    """An argument as the kernel's code takes it: a NumPy array, a number, or a tuple of them."""
    array = getattr(argument, "array", None)
    if array is not None:
        return with_fields(array)
    if type(argument) is tuple:
        return tuple(_value(part) for part in argument)
    return argument


def _ordered(indices: Iterator[Index3], checks: Checks | None) -> Iterable[Index3]:
    if checks is None:
        return indices
    known = list(indices)
    return [known[k] for k in turns(checks, len(known))]


def _indices(extent: Dim3) -> Iterator[Index3]:
    """Every index, x fastest, as the hardware numbers threads."""
    return (Index3(x, y, z) for z, y, x in product(*(range(n) for n in reversed(extent))))
