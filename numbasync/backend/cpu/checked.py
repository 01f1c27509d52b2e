"""Kernels that are compiled once more, to find what a GPU hides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from numbasync.backend.base import Checks, Dim3, Right
from numbasync.backend.cpu import watch
from numbasync.backend.cpu.generate import entry_of
from numbasync.backend.cpu.native import FIELDS, RAISED
from numbasync.backend.cpu.program import RECORD_BYTES
from numbasync.backend.cpu.reports import error_of
from numbasync.backend.cpu.shadow import Shadow
from numbasync.backend.cpu.translate import translate


class Checked:
    """One variant of a kernel, every access of which is checked.

    Blocks run one after the other, in the order that is asked for.
    """

    def __init__(
        self, function: FunctionType, kinds: tuple[Any, ...], options: dict[str, Any], prologue: str
    ) -> None:
        self.program = translate(function, checked=True)
        self.program.prologue = prologue
        entry = entry_of(self.program, kinds, options)
        self.source = entry.source
        self._result = entry.result
        self._entry: Callable[..., None] = entry.result.entry_point

    def run(
        self,
        checks: Checks,
        grid: Dim3,
        block: Dim3,
        shared_bytes: int,
        args: Sequence[Any],
        values: Sequence[Any],
        rights: Sequence[Right | None],
    ) -> None:
        """Run every block.

        Args:
            args: of the launch.
            values: the same, as compiled code takes them.
            rights: of `args`, or none.
        """
        program = self.program
        nbytes = program.fixed_bytes + shared_bytes
        raw = np.zeros(nbytes + 64, np.uint8)
        memory = raw[-raw.ctypes.data % 64 :][:nbytes]
        memory[RECORD_BYTES:] = 0xFF
        shadow = Shadow(
            checks, grid, block, nbytes, program.fixed_bytes, program.shared, args, rights
        )
        words = memory[:RECORD_BYTES].view(np.int64)
        words[watch.STATE] = shadow.address
        blocks = grid[0] * grid[1] * grid[2]
        try:
            self._entry(0, blocks, *block, *grid, memory.ctypes.data, shared_bytes, *values)
        except Exception as error:
            record = words[: len(FIELDS)].tolist()
            cause = error if record[0] == RAISED else None
            raise error_of(program, record, error, shadow) from cause
