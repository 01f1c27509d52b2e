"""Kernels compiled by Numba for the processor: blocks of threads as loops."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from types import FunctionType
from typing import TYPE_CHECKING, Any, NoReturn

from numba.core.errors import NumbaError

from numbasync.backend.bfloat16_type import refuse_in_tuples
from numbasync.backend.cpu.compiler.block_memory import (
    BlockMemory,
    memory_of_blocks,
    memory_of_thread,
)
from numbasync.backend.cpu.compiler.block_scheduling import PARTS, Costs, helpers, workers
from numbasync.backend.cpu.compiler.cache_key import key_of
from numbasync.backend.cpu.compiler.checked_kernel import Checked
from numbasync.backend.cpu.compiler.extensions import register_extensions
from numbasync.backend.cpu.compiler.generate import compile_program, type_of
from numbasync.backend.cpu.compiler.kernel_errors import NO_SITE, error_of
from numbasync.backend.cpu.compiler.names import UntranslatableError
from numbasync.backend.cpu.compiler.numba_cuda import FrontEnd, may_be_refused, type_on_gpu
from numbasync.backend.cpu.compiler.program import PLACE
from numbasync.backend.cpu.compiler.translate import translate
from numbasync.backend.cpu.library import entry_points
from numbasync.backend.cpu.library.declared_arguments import Formal
from numbasync.backend.cpu.library.disk_cache import Entry, store_of
from numbasync.backend.cpu.library.processor_code import ProcessorCode
from numbasync.backend.cpu.limits import LIMITS
from numbasync.backend.protocols import ArgumentAccess, Checks, Dim3
from numbasync.errors import KernelCompileError, UnsupportedKernelError
from numbasync.native import compiled, known
from numbasync.threads import submit

if TYPE_CHECKING:
    from numbasync.backend.cpu.protocols import Workers

SHORT_THREADS = 1024


class Compiled(ProcessorCode):
    """A kernel, ready to be run on the CPU device by any thread."""

    engine = "compiled"
    why = ""
    formal: Formal | None = None  # by declared signatures
    records: tuple[int, ...] = ()  # positions of structured scalars, which come as arrays

    def __init__(
        self,
        dispatcher: Any,
        keys: tuple[Hashable, ...],
        max_threads: int,
        instrumented: bool = False,
    ) -> None:
        self.function: FunctionType = dispatcher.py_func
        self.name = self.function.__name__
        self.max_threads_per_block = max_threads
        argument_types = tuple(type_of(k) for k in keys)
        register_extensions()
        types_on_gpu = [type_on_gpu(k) for k in keys]
        refuse_in_tuples(types_on_gpu)
        front_end = FrontEnd(self.function, types_on_gpu)
        self.program = translate(self.function, argument_types, array_shapes=front_end)
        target_options = dispatcher.targetoptions
        options = {**entry_points.OPTIONS, "fastmath": bool(target_options.get("fastmath"))}
        if target_options.get("debug"):
            # Divisions by zero raise, so that every thread leaves a note of who it is.
            options["error_model"] = "python"
            self.program.prologue = f"_note(_m, {NO_SITE}, {PLACE})"
        if self.program.has_inlined:
            options["boundscheck"] = True
        self._is_straight = self.program.is_straight()
        self.static_shared_bytes = sum(nbytes for _, nbytes in self.program.shared)
        if self.static_shared_bytes > LIMITS.max_shared_bytes:
            raise KernelCompileError(
                f"kernel {self.name}: its shared arrays take {self.static_shared_bytes:,} bytes; a "
                f"device has {LIMITS.max_shared_bytes:,} a block for arrays of a fixed shape.\n"
                "Declare the arrays in na.shared_layout: a launch may take more for those."
            )
        self._has_rows = self.program.has_rows()
        self._plain: dict[
            bool, Entry
        ] = {}  # code without instrumentation, by whether it is for rows
        self._checked: Checked | None = None
        self._compile_arguments = argument_types, options
        self._making = threading.Lock()
        self._costs = Costs(self.program.has_atomics())
        self._store = store_of(dispatcher)
        self._key = None if self._store is None else key_of(self.program, argument_types, options)
        self.from_disk = self._load(self._has_rows)
        is_checked = self.from_disk or not (
            self.program.doubtful or may_be_refused(self.function, argument_types)
        )
        if not is_checked:
            front_end.check()
        if not (self.from_disk or (instrumented and self._can_be_checked())):
            self._entry(
                self._has_rows
            )  # at once; a kernel that is only run instrumented may never need it

    @property
    def source(self) -> str:
        return self._entry(self._has_rows).source

    def _is_row(self, block: Dim3) -> bool:
        """Whether a block is run by the code for blocks of one row."""
        return self._has_rows and block[1] == 1 and block[2] == 1

    def _load(self, row: bool) -> bool:
        """Whether there is code on disk."""
        entry = None
        if self._store is not None and self._key is not None:
            entry = self._store.load((self._key, row))
        if entry is not None:
            self._plain[row] = entry
        return entry is not None

    def _entry(self, row: bool) -> Entry:
        """The code without instrumentation; compiled now if it was not needed before."""
        with self._making:
            if row not in self._plain and (row == self._has_rows or not self._load(row)):
                entry = self._compiled(*self._compile_arguments, row)
                if self._store is not None and self._key is not None:
                    self._store.save((self._key, row), entry)
                self._plain[row] = entry
            return self._plain[row]

    def _compiled(
        self, argument_types: tuple[Any, ...], options: dict[str, Any], row: bool
    ) -> Entry:
        try:
            return compile_program(self.program, argument_types, options, row)
        except NumbaError as error:
            if not self.program.declared:
                raise
            # The declared types do not fit the kernel, on any device.
            types_text = ", ".join(map(str, argument_types))
            raise KernelCompileError(
                f"kernel {self.name} cannot be compiled for ({types_text}): {error}"
            ) from error

    def suggested_threads(self) -> int:
        return 256

    def allow_large_shared(self) -> None:
        """Nothing to do: memory of a block is the host's."""

    def launch_in_clusters(self, cluster: Dim3) -> None:
        """Nothing to do: only operations for tensor cores reach from block to block."""

    # --- running ---

    def short_launch(self, grid: Dim3, block: Dim3, shared_bytes: int) -> ShortLaunch | None:
        """The launch, if it surely takes less time than waking a thread does: no loops, few
        threads, and nothing left to compile.
        """
        blocks = grid[0] * grid[1] * grid[2]
        threads = blocks * block[0] * block[1] * block[2]
        entry = self._plain.get(self._is_row(block))
        if not self._is_straight or threads > SHORT_THREADS or entry is None:
            return None
        return ShortLaunch(self, entry, (0, blocks, *block, *grid), shared_bytes)

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
        values = [_value(a) for a in args]
        if checks is not None:
            self._with_checks().run(
                checks, grid, block, shared_bytes, args, values, argument_access
            )
            return
        if self._is_row(block) not in self._plain:
            self._entry(self._is_row(block))  # before the time is taken
        blocks = grid[0] * grid[1] * grid[2]
        if self.program.cooperative:
            # The blocks run together, each with memory of its own.
            self._run(0, 1, grid, block, shared_bytes, values, blocks)
            return
        threads = blocks * block[0] * block[1] * block[2]
        # A stepped device repeats the order of blocks. `workers` comes last: it takes longer than a
        # short launch.
        shared = (
            blocks > 1
            and engine.stepper is None
            and self._costs.are_shared(threads, blocks)
            and workers() > 1
        )
        began = time.perf_counter()
        if shared:
            self._spread(blocks, grid, block, shared_bytes, values, engine)
        else:
            self._run(0, blocks, grid, block, shared_bytes, values)
        self._costs.took(shared, (time.perf_counter() - began) / blocks)

    def _spread(
        self, blocks: int, grid: Dim3, block: Dim3, shared_bytes: int, values: list[Any],
        engine: Workers,
    ) -> None:  # fmt: skip
        parts = min(blocks, workers() * PARTS)
        bounds = [blocks * i // parts for i in range(parts + 1)]
        turn = itertools.count()
        failed: list[tuple[int, BaseException]] = []

        def work() -> None:
            while (part := next(turn)) < parts and not failed and not engine.stopping:
                try:
                    self._run(bounds[part], bounds[part + 1], grid, block, shared_bytes, values)
                except BaseException as error:
                    failed.append((part, error))

        others: list[Future[None]] = []  # one by one: those that have begun are waited for
        with contextlib.suppress(RuntimeError):  # no more threads can be started
            for _ in range(workers() - 1):
                others.append(submit(helpers(), work))  # noqa: PERF401 - keeps those before
        work()
        for other in others:
            other.result()
        if failed:
            raise min(failed, key=lambda f: f[0])[1]

    def _run(
        self, first: int, end: int, grid: Dim3, block: Dim3, shared_bytes: int, values: list[Any],
        blocks: int = 1,
    ) -> None:  # fmt: skip
        """Run the blocks `first` to `end`, of which `blocks` have memory at the same time."""
        row = self._is_row(block)
        entry = self._plain.get(row) or self._entry(row)
        nbytes = entry.fixed_bytes + shared_bytes
        alone = blocks == 1
        memory = memory_of_thread(nbytes) if alone else memory_of_blocks(self.name, nbytes, blocks)
        shared = self.program.shared
        memory.clear([*shared, (entry.fixed_bytes, shared_bytes)] if shared_bytes else shared)
        try:
            entry.run(first, end, *block, *grid, memory.address, shared_bytes, *values)
        except Exception as error:
            self.fail(memory, error)

    def fail(self, memory: BlockMemory, error: Exception) -> NoReturn:
        """Raise the error of a kernel that was stopped by `error`, from its record."""
        record = memory.record()
        raise error_of(self.program, record, error) from (
            None if record[0] != entry_points.RAISED else error
        )

    def _can_be_checked(self) -> bool:
        try:
            self._with_checks()
        except Exception:  # Numba raises many classes; a launch with checks raises its own
            return False
        return True

    def _with_checks(self) -> Checked:
        with self._making:
            if self._checked is None:
                try:
                    self._checked = Checked(self.function, *self._compile_arguments, self.program)
                except (UntranslatableError, NumbaError) as why:
                    raise UnsupportedKernelError(
                        f"kernel {self.name} cannot be checked: {why}"
                    ) from None
            return self._checked


@known
class ShortLaunch:
    """A launch of compiled code that takes less time than waking a thread.

    Attributes:
        is_plain: no argument has to be converted, and no memory to be filled.
    """

    __slots__ = (
        "_entry_point",
        "_extents",
        "_kernel",
        "_nbytes",
        "_shared",
        "_shared_bytes",
        "is_plain",
    )

    def __init__(
        self, kernel: Compiled, entry: Entry, extents: tuple[int, ...], shared_bytes: int
    ) -> None:
        self._kernel = kernel
        self._entry_point = entry.run
        self._nbytes = entry.fixed_bytes + shared_bytes
        self._extents = extents
        self._shared_bytes = shared_bytes
        self._shared = list(kernel.program.shared)
        if shared_bytes:
            self._shared.append((entry.fixed_bytes, shared_bytes))
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
    array = getattr(argument, "array", None)
    if array is not None:
        return array
    if type(argument) is tuple:
        return tuple(_value(a) for a in argument)
    return argument
