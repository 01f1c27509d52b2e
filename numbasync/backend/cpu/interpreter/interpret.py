"""Kernels run as Python: the body is called once for every CUDA thread.

The function is copied, with the names it uses rebound: `cuda` and `math` to stand-ins,
device functions to copies of their own. Globals are frozen when the kernel is compiled, as
Numba freezes them. The user's function and module are not touched, so several kernels run at
once, in several threads and beside a GPU.

A kernel without barriers is a loop over its threads. With barriers, each thread of a block
is a greenlet: `syncthreads` switches back here, and the block goes on when all have arrived.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import greenlet
import numpy as np

from numbasync.backend import protocols
from numbasync.backend.cpu.interpreter.arrays import typed
from numbasync.backend.cpu.interpreter.bind import Binding
from numbasync.backend.cpu.interpreter.constants import strict
from numbasync.backend.cpu.interpreter.cuda_module import Intrinsics
from numbasync.backend.cpu.interpreter.freeze import Program
from numbasync.backend.cpu.interpreter.integers import tag_always
from numbasync.backend.cpu.library.declared_arguments import Formal
from numbasync.backend.cpu.limits import LIMITS
from numbasync.backend.cpu.races.shadow_memory import turns
from numbasync.backend.protocols import ArgumentAccess, Checks, Dim3
from numbasync.errors import BarrierDivergenceError, KernelError, NumbasyncError, OutOfBoundsError

if TYPE_CHECKING:
    from numbasync.backend.cpu.protocols import Workers

_per_thread = threading.local()


class Interpreted:
    """A kernel, ready to be run on the CPU device by any worker thread."""

    from_disk = False  # nothing is kept on disk
    engine = "interpreted"
    why = ""  # it is not compiled
    formal: Formal | None = None  # of declared signatures
    records: tuple[int, ...] = ()  # positions of structured scalars, which come as arrays

    def __init__(self, dispatcher: Any, max_threads: int) -> None:
        self.function: types.FunctionType = dispatcher.py_func
        self.name = self.function.__name__
        self.max_threads_per_block = max_threads
        try:
            self.program = Program(self.function)
        except NumbasyncError as error:
            error.args = (f"kernel {self.name}: {error}",)
            raise
        self.has_barriers = self.program.has_barriers

    def suggested_threads(self) -> int:
        # Blocks cost more here than threads do, and barriers more than blocks.
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
            checks: whose order is kept; accesses are not checked here, but for their indices.
            rights: not used.
        """
        machine = _machine()
        body = machine.bind(self.program)
        values = [_value(a, self.program.tags) for a in args]
        with np.errstate(all="ignore"):
            machine.run(self, body, values, grid, block, shared_bytes, engine, checks)


def _value(argument: Any, tags: str) -> Any:
    array = getattr(argument, "array", None)
    if array is not None:
        return typed(array, tags)
    if isinstance(argument, tuple):
        parts = [_value(a, tags) for a in argument]
        made: Any = type(argument)
        return made(*parts) if hasattr(argument, "_fields") else tuple(parts)
    return tag_always(argument) if "i" in tags else strict(argument)


def _machine() -> Machine:
    found = getattr(_per_thread, "machine", None)
    if found is None:
        found = _per_thread.machine = Machine()
    return found


class Machine:
    """One worker thread's stand-ins, rebound functions and greenlets."""

    def __init__(self) -> None:
        self.cuda = Intrinsics()
        # A kernel that nobody holds any more goes away.
        self._bound: WeakKeyDictionary[Program, types.FunctionType] = WeakKeyDictionary()
        self._lanes: list[greenlet.greenlet] = []

    # --- names ---

    def bind(self, program: Program) -> types.FunctionType:
        """The kernel, with this thread's stand-ins where its names are."""
        found = self._bound.get(program)
        if found is None:
            found = self._bound[program] = Binding(program, self.cuda).function(program.main)
        return found

    # --- threads ---

    def run(
        self, kernel: Interpreted, body: types.FunctionType, args: list[Any],
        grid: Dim3, block: Dim3, shared_bytes: int, engine: Workers, checks: Checks | None,
    ) -> None:  # fmt: skip
        cuda = self.cuda
        cuda.shared.begin(shared_bytes, LIMITS.max_shared_bytes, kernel.program.tags)
        cuda.local.tags = kernel.program.tags
        cuda.gridDim.x, cuda.gridDim.y, cuda.gridDim.z = grid
        cuda.blockDim.x, cuda.blockDim.y, cuda.blockDim.z = block
        threads = list(_in_turn(_indices(block), checks))
        run_block = self._run_lanes if kernel.has_barriers else self._run_loop
        try:
            for bx, by, bz in _in_turn(_indices(grid), checks):
                if engine.stopping:
                    return
                index, origin = cuda.blockIdx, cuda.origin
                index.x, index.y, index.z = bx, by, bz
                origin.x, origin.y, origin.z = bx * block[0], by * block[1], bz * block[2]
                run_block(body, args, threads)
        except NumbasyncError as error:
            error.args = (f"{self._place(kernel)}{error}",)
            raise
        except Exception as error:
            line = _line_in(error, kernel.program)
            of_index = isinstance(error, IndexError)
            raise (OutOfBoundsError if of_index else KernelError)(
                f"{self._place(kernel)}{type(error).__name__}: {error}{line}"
            ) from error

    def _place(self, kernel: Interpreted) -> str:
        b, t = self.cuda.blockIdx, self.cuda.threadIdx
        return f"kernel {kernel.name}, block ({b.x}, {b.y}, {b.z}), thread ({t.x}, {t.y}, {t.z}): "

    def _run_loop(self, body: Callable[..., None], args: list[Any], threads: list[Dim3]) -> None:
        at = self.cuda.threadIdx
        for at.x, at.y, at.z in threads:
            body(*args)

    def _run_lanes(self, body: Callable[..., None], args: list[Any], threads: list[Dim3]) -> None:
        """One block with barriers: every lane runs to its next barrier, then all go on."""
        at = self.cuda.threadIdx
        lanes = self._take_lanes(len(threads))
        send: list[Any] = [(body, args)] * len(lanes)
        self.cuda.wait_at_barrier = _arrive
        try:
            while True:
                arrived: list[tuple[int, tuple[Any, int], str, Any]] = []
                for i, lane in enumerate(lanes):
                    at.x, at.y, at.z = threads[i]
                    stop = lane.switch(send[i])
                    if stop is not None:
                        arrived.append((i, *stop))
                if not arrived:
                    return
                _check_all_arrived(arrived, threads)
                reply = _combine(arrived[0][2], [value for *_, value in arrived])
                send = [reply] * len(lanes)
        except BaseException:
            self._drop_lanes()
            raise
        finally:
            self.cuda.wait_at_barrier = None

    def _take_lanes(self, count: int) -> list[greenlet.greenlet]:
        # A greenlet costs ten times as much to make as to switch to, so they are kept.
        while len(self._lanes) < count:
            self._lanes.append(greenlet.greenlet(_lane))
        return self._lanes[:count]

    def _drop_lanes(self) -> None:
        lanes, self._lanes = self._lanes, []
        for lane in lanes:
            if lane and not lane.dead:
                lane.throw(greenlet.GreenletExit)


def _lane(job: tuple[Callable[..., None], list[Any]]) -> None:
    """A greenlet's life: run a thread's body, report that it ended, take the next."""
    hub = greenlet.getcurrent().parent
    assert hub is not None  # only the interpreter makes lanes
    with np.errstate(all="ignore"):  # a greenlet has a context of its own, and so NumPy's state
        while True:
            body, args = job
            body(*args)
            del job, body, args  # a lane that waits must not hold the last work's arrays
            job = hub.switch(None)


def _arrive(place: tuple[Any, int], kind: str, value: Any) -> Any:
    hub = greenlet.getcurrent().parent
    assert hub is not None  # only lanes arrive
    return hub.switch((place, kind, value))


def _check_all_arrived(
    arrived: list[tuple[int, tuple[Any, int], str, Any]], threads: list[Dim3]
) -> None:
    first, place, kind, _ = arrived[0]
    for i, other, other_kind, _ in arrived:
        if other != place:
            left = protocols.GENERATED in (place[0].co_filename, other[0].co_filename)
            raise BarrierDivergenceError(
                f"thread {threads[first]} {_stopped(place, kind)}, while thread {threads[i]} "
                f"{_stopped(other, other_kind)}.\n"
                + (_GUARD if left else "Every thread of a block must come to the same barrier.")
            )
    if len(arrived) < len(threads):
        absent = next(t for i, t in enumerate(threads) if all(i != a[0] for a in arrived))
        raise BarrierDivergenceError(
            f"{len(arrived)} of {len(threads)} threads wait at cuda.{kind}, line {_line(place)}, "
            f"but thread {absent} has returned.\n{_GUARD}"
        )


_GUARD = (
    "Guard the work between barriers, not the barriers: if i < n: ...; then cuda.syncthreads() "
    "outside the if."
)


def _stopped(place: tuple[Any, int], kind: str) -> str:
    """Where a thread is that waits at a barrier."""
    if place[0].co_filename == protocols.GENERATED:
        return "is done with its tile"
    return f"waits at cuda.{kind}, line {_line(place)}"


def _combine(kind: str, values: list[Any]) -> Any:
    if kind == "syncthreads_count":
        return sum(1 for v in values if v)
    if kind == "syncthreads_and":
        return int(all(values))
    return int(any(values))


def _line(place: tuple[Any, int]) -> int | None:
    code, offset = place
    positions = list(code.co_positions())
    line: int | None = positions[offset // 2][0]
    return line


def _line_in(error: BaseException, program: Program) -> str:
    """Where in the kernel, or in a device function of it, the exception came from."""
    found = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename in program.files:
            found = f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"
        trace = trace.tb_next
    return found or ""


def _in_turn(places: Iterator[Dim3], checks: Checks | None) -> Iterable[Dim3]:
    if checks is None:
        return places
    known = list(places)
    return [known[k] for k in turns(checks, len(known))]


def _indices(extent: Dim3) -> Iterator[Dim3]:
    """Every index, x fastest, as the hardware numbers threads."""
    return ((x, y, z) for z, y, x in product(*(range(n) for n in reversed(extent))))
