"""Kernels that Numba types and lowers unchanged, cut at barriers in LLVM's language."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from numba.core.errors import NumbaError

from numbasync.backend.bfloat16_type import refuse_in_tuples
from numbasync.backend.cpu import target
from numbasync.backend.cpu.compiler.block_kernel import BlockKernel
from numbasync.backend.cpu.compiler.block_memory import BlockMemory, memory_of_blocks
from numbasync.backend.cpu.compiler.block_scheduling import Costs
from numbasync.backend.cpu.compiler.kernel_errors import error_of
from numbasync.backend.cpu.compiler.numba_cuda import type_on_gpu
from numbasync.backend.cpu.compiler.program import RECORD_BYTES
from numbasync.backend.cpu.library.disk_cache import store_of
from numbasync.backend.cpu.library.entry_points import RAISED
from numbasync.backend.cpu.lowered.artifact import Artifact, LoadedCode, make
from numbasync.backend.cpu.lowered.cache_key import key_of
from numbasync.backend.cpu.races import words
from numbasync.backend.cpu.races.shadow_memory import ShadowMemory
from numbasync.backend.protocols import ArgumentAccess, Checks, Dim3
from numbasync.errors import UnsupportedKernelError


class Lowered(BlockKernel):
    """A kernel, typed and lowered by Numba for the processor."""

    def __init__(
        self,
        dispatcher: Any,
        keys: tuple[Hashable, ...],
        max_threads: int,
        instrumented: bool = False,
    ) -> None:
        super().__init__(dispatcher.py_func, max_threads)
        self._argument_types = tuple(type_on_gpu(k) for k in keys)
        refuse_in_tuples(self._argument_types)
        target_options = dispatcher.targetoptions
        self._options = target.Options(
            fastmath=bool(target_options.get("fastmath")),
            debug=bool(target_options.get("debug")),
        )
        self._making = threading.Lock()
        self._plain: LoadedCode | None = None
        self._checked: LoadedCode | None = None
        self._store = store_of(dispatcher)
        self._key = None
        if self._store is not None:
            self._key = key_of(self.function, self._argument_types, [self._options])
        self.from_disk = self._load()
        if not self.from_disk and not (instrumented and self._can_be_checked()):
            self._make()  # at once; a kernel that is only run with checks may never need it
        made = (self._plain or self._checked or self._make()).artifact
        self.shared = made.code.shared
        self.cooperative = made.code.cooperative
        self._is_straight = made.is_straight
        self._costs = Costs(made.atomics)
        self.check_shared_bytes()

    @property
    def source(self) -> str:
        return self._code((1, 1, 1)).artifact.source

    def _load(self) -> bool:
        """Whether there is code on disk."""
        if self._store is not None and self._key is not None:
            kept = self._store.load_parts(self._key)
            if kept is not None:
                artifact, call = kept
                self._plain = LoadedCode(artifact, self._argument_types, call)
        return self._plain is not None

    def _made(self, block: Dim3) -> LoadedCode | None:
        return self._plain

    def _code(self, block: Dim3) -> LoadedCode:
        return self._plain or self._make()

    def _make(self) -> LoadedCode:
        """The code without checks; compiled now if it was not needed before."""
        with self._making:
            if self._plain is None:
                artifact = make(self.function, self._argument_types, self._options)
                loaded = LoadedCode(artifact, self._argument_types)
                if self._store is not None and self._key is not None and not artifact.keep:
                    self._store.save_parts(self._key, artifact, loaded.call.object_code)
                self._plain = loaded
            return self._plain

    def fail(self, memory: BlockMemory, error: Exception) -> NoReturn:
        self._fail(self._code((1, 1, 1)).artifact, memory, error)

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
                try:
                    artifact = make(self.function, self._argument_types, options)
                except NumbaError as why:
                    raise UnsupportedKernelError(
                        f"kernel {self.name} cannot be checked: {why}"
                    ) from None
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
