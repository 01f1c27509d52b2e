"""The lines of compiled kernels that threads have passed, told to coverage.py."""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import binding

_numbers = itertools.count()


class PassedLines:
    """The steps from line to line in code that was compiled with lines.

    Attributes:
        text: the definition of what the code calls, in LLVM's language.
    """

    def __init__(self, lines: Sequence[tuple[str, int]]) -> None:
        self._lines = lines
        count = len(lines)
        self._passed = np.zeros((count, count), np.bool_)
        self._told = np.zeros((count, count), np.bool_)
        self._telling = threading.Lock()
        symbol = f"na.passed.{next(_numbers)}"
        binding.add_symbol(symbol, int(self._passed.ctypes.data))
        self.text = f"""
@{symbol} = external global i8
define internal void @na.line(i32 %before, i32 %line) alwaysinline {{
  %row = mul i32 %before, {count}
  %at = add i32 %row, %line
  %place = getelementptr i8, ptr @{symbol}, i32 %at
  store i8 1, ptr %place
  ret void
}}
"""

    def tell(self) -> None:
        """Tell coverage.py what it does not know yet, if it runs."""
        with self._telling:
            steps = np.argwhere(self._passed & ~self._told)
            if not len(steps):
                return
            self._told |= self._passed
        coverage = getattr(sys.modules.get("coverage"), "Coverage", None)
        session = None if coverage is None else coverage.current()
        if session is None:
            return
        data = session.get_data()
        arcs: dict[str, list[tuple[int, int]]] = {}
        for before, line in steps.tolist():
            if before == line:  # parts of one line, such as a loop's head
                continue
            (file, first), (_, second) = self._lines[before], self._lines[line]
            arcs.setdefault(os.path.realpath(file), []).append((first, second))
        known = set(data.measured_files())
        _add(data, {file: pairs for file, pairs in arcs.items() if file in known})


def _add(data: Any, arcs: dict[str, list[tuple[int, int]]]) -> None:
    if data.has_arcs():
        data.add_arcs(arcs)
    else:
        lines = {file: {n for p in pairs for n in p if n > 0} for file, pairs in arcs.items()}
        data.add_lines(lines)
