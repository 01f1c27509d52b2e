"""Kernels that Numba types and lowers unchanged, cut at barriers in LLVM's language: machine code
that runs blocks of threads over the processors, in the submitter's thread, or together.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from numbasync.backend.cpu import target
from numbasync.backend.cpu.disk_cache import store_of
from numbasync.backend.cpu.kernel import printing
from numbasync.backend.cpu.kernel.artifact import Artifact, LoadedCode, make
from numbasync.backend.cpu.kernel.cache_key import key_of
from numbasync.backend.cpu.kernel.errors import error_of
from numbasync.backend.cpu.kernel.memory import BlockMemory, memory_of_blocks, memory_of_thread
from numbasync.backend.cpu.kernel.merged_blocks import Shape, merged
from numbasync.backend.cpu.kernel.scheduling import PARTS, Costs, helpers, workers
from numbasync.backend.cpu.limits import LIMITS
from numbasync.backend.cpu.processor_code import ProcessorCode
from numbasync.backend.cpu.races import words
from numbasync.backend.cpu.races.shadow_memory import ShadowMemory
from numbasync.backend.cpu.record import DIVERGED, RAISED, RECORD_BYTES
from numbasync.backend.declared_signatures import refuse_in_tuples
from numbasync.backend.protocols import (
    MAY_ALLOCATE,
    THREADS_MAY_RETURN,
    ArgumentAccess,
    Checks,
    Dim3,
)
from numbasync.errors import KernelCompileError
from numbasync.native import compiled, known
from numbasync.threads import submit

if TYPE_CHECKING:
    from numbasync.backend.cpu.protocols import Workers

SHORT_THREADS = 1024
_ROW = (1, 1, 1)  # a block of one row


class Compiled(ProcessorCode):
    """A kernel, typed and lowered by Numba for the processor, ready to be run by any thread.

    Attributes:
        shared: offset and size of each static shared array in a block's memory.
        cooperative: whether blocks synchronise: each then has memory of its own.
    """

    engine = "compiled"
    why = ""

    def __init__(
        self,
        dispatcher: Any,
        argument_types: tuple[Any, ...],
        max_threads: int,
        instrumented: bool = False,
        lines: bool = False,
    ) -> None:
        """
        Args:
            instrumented: compile the code with checks first.
            lines: tell coverage.py which lines threads pass.
        """
        self.function = dispatcher.py_func
        self.name: str = self.function.__name__
        self.max_threads_per_block = max_threads
        self._argument_types = argument_types
        refuse_in_tuples(argument_types)
        target_options = dispatcher.targetoptions
        self._options = target.Options(
            fastmath=bool(target_options.get("fastmath")),
            debug=bool(target_options.get("debug")),
            may_return=getattr(dispatcher, THREADS_MAY_RETURN, False),
            may_allocate=getattr(dispatcher, MAY_ALLOCATE, False),
            lines=lines,
        )
        self._making = threading.Lock()
        self._plain: list[LoadedCode] = []  # without checks: for one row of threads, and for others
        self._checked: LoadedCode | None = None
        self._store = None if lines else store_of(dispatcher)
        self._key = None
        if self._store is not None:
            self._key = key_of(self.function, self._argument_types, [self._options])
        self.from_disk = self._load(_ROW)
        # At once, but for a kernel that is only run with checks, and may never need it.
        if not (self.from_disk or (instrumented and self._can_be_checked())):
            self._make(_ROW)
        made = (self._plain[0] if self._plain else self._with_checks()).artifact
        self.shared: Sequence[tuple[int, int]] = made.code.shared
        self.cooperative = made.code.cooperative
        self._is_straight = made.is_straight and not lines
        self._costs = Costs(made.has_atomics)
        self._check_shared_bytes()

    def _load(self, block: Dim3) -> bool:
        """Whether there is code on disk for such blocks."""
        if self._store is None or self._key is None:
            return False
        for is_row in (True, False) if _is_row(block) else (False,):
            kept = self._store.load((self._key, is_row))
            if kept is not None:
                self._plain.append(LoadedCode(kept[0], self._argument_types, kept[1]))
                return True
        return False

    def _made(self, block: Dim3) -> LoadedCode | None:
        for code in self._plain:
            if code.suits(block):
                return code
        return None

    def _code(self, block: Dim3) -> LoadedCode:
        return self._made(block) or self._make(block)

    def _make(self, block: Dim3) -> LoadedCode:
        """The code without checks; compiled now if it was not needed before."""
        with self._making:
            code = self._made(block)
            if code is None and self._plain and self._load(block):
                code = self._plain[-1]
            if code is None:
                artifact = make(self.function, self._argument_types, self._options, _is_row(block))
                code = LoadedCode(artifact, self._argument_types)
                if self._store is not None and self._key is not None:
                    key = self._key, artifact.code.is_row
                    self._store.save(key, artifact, code.call.object_code)
                self._plain.append(code)
            return code

    @property
    def static_shared_bytes(self) -> int:
        return sum(nbytes for _, nbytes in self.shared)

    def _check_shared_bytes(self) -> None:
        """
        Raises:
            KernelCompileError: the static shared arrays take more than a device has.
        """
        if self.static_shared_bytes > LIMITS.max_shared_bytes:
            raise KernelCompileError(
                f"kernel {self.name}: its shared arrays take {self.static_shared_bytes:,} bytes; a "
                f"device has {LIMITS.max_shared_bytes:,} a block for arrays of a fixed shape.\n"
                "Declare the arrays in na.shared_layout: a launch may take more for those."
            )

    def suggested_threads(self) -> int:
        return 256

    def short_launch(self, grid: Dim3, block: Dim3, shared_bytes: int) -> ShortLaunch | None:
        """The launch, if it surely takes less time than waking a thread does: no loops, few
        threads, and nothing left to compile.
        """
        blocks, threads = _count(grid), _count(block)
        code = self._made(block)
        if not self._is_straight or threads * blocks > SHORT_THREADS or code is None:
            return None
        nbytes = code.memory_bytes(threads, shared_bytes)
        return ShortLaunch(self, code, code.blocks(0, blocks, block, grid), nbytes, shared_bytes)

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
        """Run every block. Called on a worker thread, or by the submitter of a short launch.

        Args:
            checks: how to check every access; None: run without checks.
            argument_access: which elements of each argument may be written, for the checks.
        """
        values = [value_of(a) for a in args]
        try:
            if checks is None:
                self._run_plain(grid, block, shared_bytes, values, engine)
            else:
                self._run_checked(checks, grid, block, shared_bytes, args, values, argument_access)
        finally:
            for code in (*self._plain, self._checked) if self._options.lines else ():
                if code is not None and code.artifact.lines is not None:
                    code.artifact.lines.tell()

    def _run_plain(
        self, grid: Dim3, block: Dim3, shared_bytes: int, values: list[Any], engine: Workers
    ) -> None:
        code = self._code(block)  # before the time is taken
        if not self.cooperative:
            self._run_once(code, grid, block, shared_bytes, values, engine)
            return
        nbytes = code.memory_bytes(_count(block), shared_bytes)
        memory = memory_of_blocks(self.name, nbytes, _count(grid))
        memory.clear(self._filled(code, shared_bytes))
        self._run_once(code, grid, block, shared_bytes, values, engine, memory)
        while self._meet(code.artifact, memory, grid, block):
            self._run_once(code, grid, block, shared_bytes, values, engine, memory)

    def _meet(self, artifact: Artifact, memory: BlockMemory, grid: Dim3, block: Dim3) -> bool:
        """Whether blocks wait for each other, and all of them have come.

        Raises:
            BarrierDivergenceError: some have gone another way, or returned.
        """
        latest, other = memory.meeting()
        if other is not None:
            place = other % grid[0], other // grid[0] % grid[1], other // grid[0] // grid[1]
            site = artifact.code.sites[latest]
            memory.stop(other, [DIVERGED, site, 0, 0, _count(block), *place, 0, 0, 0])
            self._fail(artifact, memory, RuntimeError())
        return latest > 0

    def _run_once(
        self, code: LoadedCode, grid: Dim3, block: Dim3, shared_bytes: int, values: list[Any],
        engine: Workers, memory: BlockMemory | None = None,
    ) -> None:  # fmt: skip
        """Run every block, in the submitter's thread or in several.

        Args:
            memory: of the blocks, if these meet.
        """
        blocks = _count(grid)
        threads = blocks * _count(block)
        # A stepped device repeats the order of blocks. `workers` comes last: it takes longer than a
        # short launch.
        shared = (
            blocks > 1
            and engine.stepper is None
            and self._costs.are_shared(threads, blocks)
            and workers() > 1
        )
        most = code.artifact.code.most_merged if memory is None else 0
        shape = merged(grid, block, most, workers() * PARTS if shared and most else 1)
        began = time.perf_counter()
        if shared:
            self._spread(code, shape, shared_bytes, values, engine, memory)
        else:
            self._run(code, 0, _count(shape.grid), shape, shared_bytes, values, memory)
        self._costs.took(shared, (time.perf_counter() - began) / blocks)

    def _spread(
        self, code: LoadedCode, shape: Shape, shared_bytes: int, values: list[Any],
        engine: Workers, memory: BlockMemory | None,
    ) -> None:  # fmt: skip
        blocks = _count(shape.grid)
        parts = min(blocks, workers() * PARTS)
        bounds = [blocks * i // parts for i in range(parts + 1)]
        turn = itertools.count()
        failed: list[tuple[int, BaseException]] = []
        printed: list[list[str]] = [[] for _ in range(parts)]

        def work() -> None:
            while (part := next(turn)) < parts and not failed and not engine.stopping:
                first, end = bounds[part : part + 2]
                try:
                    with printing.kept(printed[part]):
                        self._run(code, first, end, shape, shared_bytes, values, memory)
                except BaseException as error:
                    failed.append((part, error))

        others: list[Future[None]] = []  # one by one: those that have begun are waited for
        with contextlib.suppress(RuntimeError):  # no more threads can be started
            for _ in range(workers() - 1):
                others.append(submit(helpers(), work))  # noqa: PERF401 - keeps those before
        work()
        for other in others:
            other.result()
        if any(printed):
            sys.stdout.write("".join(itertools.chain(*printed)))
        if failed:
            raise min(failed, key=lambda f: f[0])[1]

    def _run(
        self, code: LoadedCode, first: int, end: int, shape: Shape, shared_bytes: int,
        values: list[Any], memory: BlockMemory | None,
    ) -> None:  # fmt: skip
        """Run the blocks `first` to `end`, in their memory, or else in the thread's."""
        if memory is None:
            memory = memory_of_thread(code.memory_bytes(_count(shape.block), shared_bytes))
            memory.clear(self._filled(code, shared_bytes))
        numbers, _keep = code.blocks(first, end, shape.block, shape.grid)
        try:
            code.run(*numbers, memory.address, shared_bytes, *values)
        except Exception as error:
            self.fail(memory, error, shape)

    def _filled(self, code: LoadedCode, shared_bytes: int) -> list[tuple[int, int]]:
        """Offset and bytes of what is filled before blocks run."""
        dynamic = [(code.dynamic_offset, shared_bytes)] if shared_bytes else []
        return [*self.shared, *dynamic]

    def fail(self, memory: BlockMemory, error: Exception, shape: Shape | None = None) -> NoReturn:
        self._fail(self._plain[0].artifact, memory, error, shape=shape)

    @staticmethod
    def _fail(
        artifact: Artifact,
        memory: BlockMemory,
        error: Exception,
        shadow: ShadowMemory | None = None,
        shape: Shape | None = None,
    ) -> NoReturn:
        record = memory.record()
        if shape is not None:
            record = shape.record(record)
        if record[0] == RAISED:
            cause = artifact.raised(record[2])
            raise error_of(artifact, record, cause) from cause
        raise error_of(artifact, record, error, shadow) from None

    # --- checks ---

    def _can_be_checked(self) -> bool:
        try:
            self._with_checks()
        except Exception:  # Numba raises many classes; a launch with checks raises its own
            return False
        return True

    def _with_checks(self) -> LoadedCode:
        with self._making:
            if self._checked is None:
                options = replace(self._options, checked=True)
                artifact = make(self.function, self._argument_types, options, row=False)
                self._checked = LoadedCode(artifact, self._argument_types)
            return self._checked

    def _run_checked(
        self,
        checks: Checks,
        grid: Dim3,
        block: Dim3,
        shared_bytes: int,
        args: Sequence[Any],
        values: Sequence[Any],
        argument_access: Sequence[ArgumentAccess | None],
    ) -> None:
        """Run every block, one after the other, in the requested order. In a cooperative launch
        each block runs to the next barrier of the grid, and accesses are not checked: the shadow
        memory holds the writes of one block at a time.
        """
        code = self._with_checks()
        artifact = code.artifact
        nbytes = code.memory_bytes(_count(block), shared_bytes)
        blocks = _count(grid)
        if artifact.code.cooperative:
            checks = replace(checks, watches=False)
            memory = memory_of_blocks(self.name, nbytes, blocks)
        else:
            memory = BlockMemory(nbytes)
        memory.clear([(RECORD_BYTES, nbytes - RECORD_BYTES)])
        shared = [*artifact.code.shared, (code.dynamic_offset, shared_bytes)]
        shadow = ShadowMemory(
            checks, grid, block, nbytes, nbytes, shared, args, argument_access, artifact.has_fences
        )
        memory.put(words.STATE, shadow.address)
        numbers, _keep = code.blocks(0, blocks, block, grid)
        goes_on = True
        while goes_on:
            try:
                code.run(*numbers, memory.address, shared_bytes, *values)
            except Exception as error:
                self._fail(artifact, memory, error, shadow)
            goes_on = artifact.code.cooperative and self._meet(artifact, memory, grid, block)
        if checks.writers is not None and checks.watches:
            checks.writers.append(shadow.writers())


def _is_row(block: Dim3) -> bool:
    return block[1] == 1 and block[2] == 1


def _count(extents: Dim3) -> int:
    return extents[0] * extents[1] * extents[2]


@known
class ShortLaunch:
    """A launch of compiled code that takes less time than waking a thread.

    Attributes:
        is_plain: no argument has to be converted, and no memory to be filled.
    """

    __slots__ = (
        "_entry_point",
        "_extents",
        "_keep",
        "_kernel",
        "_nbytes",
        "_shared",
        "_shared_bytes",
        "is_plain",
    )

    def __init__(
        self,
        kernel: Compiled,
        code: LoadedCode,
        extents: tuple[tuple[int, ...], Any],
        nbytes: int,
        shared_bytes: int,
    ) -> None:
        self._kernel = kernel
        self._entry_point = code.run
        self._nbytes = nbytes
        self._extents, self._keep = extents
        self._shared_bytes = shared_bytes
        self._shared = list(kernel.shared)
        if shared_bytes:
            self._shared.append((code.dynamic_offset, shared_bytes))
        self.is_plain = not (self._shared or kernel.formal is not None or kernel.records)

    @compiled
    def run(self, args: Sequence[Any]) -> None:
        """Run every block."""
        memory = memory_of_thread(self._nbytes)
        memory.clear(self._shared)
        try:
            self._entry_point(
                *self._extents, memory.address, self._shared_bytes, *map(_value, args)
            )
        except Exception as error:
            self._kernel.fail(memory, error)


@compiled
def _value(argument: Any) -> Any:
    if isinstance(argument, tuple):  # a named one may have a field of any name
        values, make = tuple(map(_value, argument)), getattr(argument, "_make", None)
        return values if make is None else make(values)
    array = getattr(argument, "array", None)
    return argument if array is None else array


value_of = _value  # the argument as compiled code takes it
