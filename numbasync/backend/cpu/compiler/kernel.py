"""Kernels compiled by Numba for the processor, from their source: blocks of threads as loops."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from typing import Any, NoReturn

from numba.core.errors import NumbaError

from numbasync.backend.bfloat16_type import refuse_in_tuples
from numbasync.backend.cpu.compiler.block_kernel import BlockKernel
from numbasync.backend.cpu.compiler.block_memory import BlockMemory
from numbasync.backend.cpu.compiler.block_scheduling import Costs
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
from numbasync.backend.cpu.library.disk_cache import Entry, store_of
from numbasync.backend.protocols import ArgumentAccess, Checks, Dim3
from numbasync.errors import KernelCompileError, UnsupportedKernelError


class Compiled(BlockKernel):
    """A kernel, translated to functions that Numba compiles."""

    def __init__(
        self,
        dispatcher: Any,
        keys: tuple[Hashable, ...],
        max_threads: int,
        instrumented: bool = False,
    ) -> None:
        super().__init__(dispatcher.py_func, max_threads)
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
        self.shared = self.program.shared
        self.cooperative = self.program.cooperative
        self.check_shared_bytes()
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

    def _made(self, block: Dim3) -> Entry | None:
        return self._plain.get(self._is_row(block))

    def _code(self, block: Dim3) -> Entry:
        row = self._is_row(block)
        return self._plain.get(row) or self._entry(row)

    def _end_of_all(self, blocks: int) -> int:
        return 1  # the loop over blocks is in each region

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

    def fail(self, memory: BlockMemory, error: Exception) -> NoReturn:
        record = memory.record()
        raise error_of(self.program, record, error) from (
            None if record[0] != entry_points.RAISED else error
        )

    def run_checked(
        self,
        checks: Checks,
        grid: Dim3,
        block: Dim3,
        shared_bytes: int,
        args: Sequence[Any],
        values: Sequence[Any],
        argument_access: Sequence[ArgumentAccess | None],
    ) -> None:
        self._with_checks().run(checks, grid, block, shared_bytes, args, values, argument_access)

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
