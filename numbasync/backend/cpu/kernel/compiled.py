"""Kernels that Numba types and lowers unchanged, cut at barriers in LLVM's language."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from numbasync.backend.bfloat16_type import refuse_in_tuples
from numbasync.backend.cpu import target
from numbasync.backend.cpu.disk_cache import store_of
from numbasync.backend.cpu.kernel.artifact import Artifact, LoadedCode, make
from numbasync.backend.cpu.kernel.block_kernel import BlockKernel
from numbasync.backend.cpu.kernel.cache_key import key_of
from numbasync.backend.cpu.kernel.errors import error_of
from numbasync.backend.cpu.kernel.memory import BlockMemory, memory_of_blocks
from numbasync.backend.cpu.kernel.scheduling import Costs
from numbasync.backend.cpu.races import words
from numbasync.backend.cpu.races.shadow_memory import ShadowMemory
from numbasync.backend.cpu.record import RAISED, RECORD_BYTES
from numbasync.backend.protocols import ArgumentAccess, Checks, Dim3

if TYPE_CHECKING:
    from numbasync.backend.cpu.protocols import Workers

_ROW = (1, 1, 1)  # a block of one row


class Compiled(BlockKernel):
    """A kernel, typed and lowered by Numba for the processor."""

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
        super().__init__(dispatcher.py_func, max_threads)
        self._argument_types = argument_types
        refuse_in_tuples(argument_types)
        target_options = dispatcher.targetoptions
        self._options = target.Options(
            fastmath=bool(target_options.get("fastmath")),
            debug=bool(target_options.get("debug")),
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
        self.shared = made.code.shared
        self.cooperative = made.code.cooperative
        self._is_straight = made.is_straight and not lines
        self._costs = Costs(made.atomics)
        self.check_shared_bytes()

    def _load(self, block: Dim3) -> bool:
        """Whether there is code on disk for such blocks."""
        for is_row in (True, False):
            if self._store is None or self._key is None or not self._suits(is_row, block):
                continue
            kept = self._store.load((self._key, is_row))
            if kept is not None:
                self._plain.append(LoadedCode(kept[0], self._argument_types, kept[1]))
                return True
        return False

    @staticmethod
    def _suits(is_row: bool, block: Dim3) -> bool:
        return not is_row or (block[1] == 1 and block[2] == 1)

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
                row = block[1] == 1 and block[2] == 1
                artifact = make(self.function, self._argument_types, self._options, row)
                code = LoadedCode(artifact, self._argument_types)
                if self._store is not None and self._key is not None and not artifact.keep:
                    key = self._key, artifact.code.is_row
                    self._store.save(key, artifact, code.call.object_code)
                self._plain.append(code)
            return code

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
        try:
            super().run(grid, block, shared_bytes, args, engine, checks, argument_access)
        finally:
            if self._options.lines:
                for code in [*self._plain, *([self._checked] if self._checked else [])]:
                    if code.artifact.lines is not None:
                        code.artifact.lines.tell()

    def fail(self, memory: BlockMemory, error: Exception) -> NoReturn:
        self._fail(self._plain[0].artifact, memory, error)

    @staticmethod
    def _fail(
        artifact: Artifact,
        memory: BlockMemory,
        error: Exception,
        shadow: ShadowMemory | None = None,
    ) -> NoReturn:
        record = memory.record()
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
        """Run every block, one after the other, in the requested order. In a cooperative launch
        each block runs to the next barrier of the grid, and accesses are not checked: the shadow
        memory holds the writes of one block at a time.
        """
        code = self._with_checks()
        artifact = code.artifact
        nbytes = code.memory_bytes(block[0] * block[1] * block[2], shared_bytes)
        blocks = grid[0] * grid[1] * grid[2]
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
        try:
            code.run(*numbers, memory.address, shared_bytes, *values)
        except Exception as error:
            self._fail(artifact, memory, error, shadow)
        if checks.writers is not None and checks.watches:
            checks.writers.append(shadow.writers())
