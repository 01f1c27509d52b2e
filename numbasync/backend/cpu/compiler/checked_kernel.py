"""Kernels that are compiled with checks of every access, which find what a GPU hides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any

from numbasync.backend.cpu.compiler.block_memory import BlockMemory, memory_of_blocks
from numbasync.backend.cpu.compiler.generate import compile_program
from numbasync.backend.cpu.compiler.kernel_errors import error_of
from numbasync.backend.cpu.compiler.program import RECORD_BYTES, Program
from numbasync.backend.cpu.compiler.translate import translate
from numbasync.backend.cpu.library.entry_points import RAISED
from numbasync.backend.cpu.races import rules, words
from numbasync.backend.cpu.races.shadow_memory import ShadowMemory
from numbasync.backend.protocols import ArgumentAccess, Checks, Dim3


class Checked:
    """One variant of a kernel, every access of which is checked.

    Blocks run one after the other, in the requested order. In a cooperative launch each block runs
    to the next barrier of the grid, and accesses are not checked: the shadow memory holds the
    writes of one block at a time.
    """

    def __init__(
        self,
        function: FunctionType,
        argument_types: tuple[Any, ...],
        options: dict[str, Any],
        like: Program,
    ) -> None:
        rules.ready()
        self.program = translate(function, argument_types, True, like.array_shapes)
        self.program.prologue = like.prologue
        entry = compile_program(self.program, argument_types, options)
        self.source = entry.source
        self._result = entry.result
        self._fixed_bytes = entry.fixed_bytes
        self._entry: Callable[..., None] = entry.result.entry_point

    def run(
        self,
        checks: Checks,
        grid: Dim3,
        block: Dim3,
        shared_bytes: int,
        args: Sequence[Any],
        values: Sequence[Any],
        argument_access: Sequence[ArgumentAccess | None],
    ) -> None:
        """Run every block.

        Args:
            args: the launch's arguments.
            values: the same arguments, as compiled code takes them.
            argument_access: of `args`, or empty.
        """
        program = self.program
        nbytes = self._fixed_bytes + shared_bytes
        blocks = grid[0] * grid[1] * grid[2]
        end = blocks
        if program.cooperative:
            checks = replace(checks, watches=False)
            memory, end = memory_of_blocks(program.name, nbytes, blocks), 1
        else:
            memory = BlockMemory(nbytes)
        memory.clear([(RECORD_BYTES, nbytes - RECORD_BYTES)])
        shadow = ShadowMemory(
            checks, grid, block, nbytes, self._fixed_bytes, program.shared, args, argument_access,
            program.has_fences,
        )  # fmt: skip
        memory.put(words.STATE, shadow.address)
        try:
            self._entry(0, end, *block, *grid, memory.address, shared_bytes, *values)
        except Exception as error:
            record = memory.record()
            cause = error if record[0] == RAISED else None
            raise error_of(program, record, error, shadow) from cause
        if checks.writers is not None and checks.watches:
            checks.writers.append(shadow.writers())
