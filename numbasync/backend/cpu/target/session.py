"""What the lowering of one kernel collects: its module, the places it names, what it uses."""

from __future__ import annotations

import os
from typing import Any

import numba
from llvmlite import binding, ir
from numba import cuda
from numba.cuda.core.imputils import user_function  # pyright: ignore[reportMissingImports]

from numbasync.backend.cpu.record import RAISED, Site
from numbasync.backend.cpu.target.module import I32, I64, STOPPED, VOID, Options

_NUMBAS = tuple(os.path.dirname(m.__file__) + os.sep for m in (numba, cuda) if m.__file__)


def is_numbas(file: str) -> bool:
    """Whether a file is one of Numba's."""
    return file.startswith(_NUMBAS)


class Session:
    """One kernel, while it is lowered. All of its functions are in one module.

    Attributes:
        uses: of "barrier", "grid", "atomic", "fence", "print", "vector".
        compiled: for each dispatcher and types of arguments, the result of the compiler.
        functions: what emits a call of each of these, by the key that Numba knows it by.
        linked: text of modules whose functions this one calls.
        shared: memory of each shared array, and the element at which it begins.
        operations: signatures of operators, by their types of arguments.
        registered: how many things Numba knew when it was asked last.
        sizes: in bytes, of types of LLVM.
        collectives: how many operations of threads that meet there are so far.
        refused: what makes the kernel one for a GPU only.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.module = ir.Module("kernel")
        self.module.triple = binding.get_process_triple()
        self.sites: list[Site] = []
        self.exceptions: list[tuple[type[BaseException], tuple[Any, ...]]] = []
        self.uses: set[str] = set()
        self.compiled: dict[Any, dict[tuple[Any, ...], Any]] = {}
        self.functions: dict[Any, Any] = {}
        self.linked: dict[str, str] = {}
        self.shared: list[tuple[Any, Any]] = []
        self.collectives = 0
        self.registered = -1
        self.operations: dict[Any, Any] = {}
        self.sizes: dict[Any, int] = {}
        self.refused = ""
        self.kernel = Site("", "", 0, "")
        self._numbers: dict[Site, int] = {}
        self.lines: dict[tuple[str, int], int] = {}

    def add(self, result: Any) -> None:
        """Let functions of the kernel call another one."""
        self.functions[result.entry_point] = user_function(result.fndesc, [result.library])

    def site(self, location: Any, function: str, what: str) -> ir.Constant:
        """The number of a place; of the kernel itself, where the place is in Numba."""
        if location is None or is_numbas(location.filename):
            place = Site(self.kernel.function, self.kernel.file, self.kernel.line, what)
        else:
            place = Site(function, location.filename, location.line, what)
        if place not in self._numbers:
            self._numbers[place] = len(self.sites)
            self.sites.append(place)
        return I32(self._numbers[place])

    def line(self, file: str, line: int) -> ir.Constant:
        """The number of a line."""
        return I32(self.lines.setdefault((file, line), len(self.lines)))

    def exception(self, kind: type[BaseException], arguments: tuple[Any, ...]) -> ir.Constant:
        """The number of an exception."""
        self.exceptions.append((kind, arguments))
        return I64(len(self.exceptions) - 1)

    def refuse(self, what: str, where: str = "") -> None:
        """Note something that only a GPU has. The kernel is lowered to its end all the same: Numba
        may refuse it, for a GPU too.
        """
        self.refused = self.refused or f"{what}, which only a GPU has{where}"

    def function(self, name: str, result: Any, *parameters: Any) -> Any:
        """A function that the code calls. What those of the contract promise, `regions` says."""
        known = self.module.globals.get(name)
        if known is None:
            known = ir.Function(self.module, ir.FunctionType(result, parameters), name)
        return known

    # --- errors ---

    def note(self, builder: Any, kind: int, site: Any, a: Any, b: Any, c: Any) -> None:
        """Say what is wrong, and stop the thread."""
        note = self.function("na.note", VOID, I32, I32, I64, I64, I64)
        builder.call(note, [I32(kind), site, a, b, c])
        builder.ret(I32(STOPPED))

    def raise_(self, builder: Any, kind: Any, arguments: Any, location: Any, function: str) -> None:
        number = self.exception(kind or RuntimeError, arguments or ())
        site = self.site(location, function, "raise")
        self.note(builder, RAISED, site, number, I64(0), I64(0))
