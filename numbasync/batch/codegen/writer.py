"""The writer that all generated kernels share: parameters, loads, indices and values.

The source depends on the structure of a group, and on the distribution of its work over threads; it
does not depend on data: values are numbered in order of appearance, and numbers (constants, most
extents) are arguments. Equal sources are compiled once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from numbasync.batch.codegen import vector_loads
from numbasync.batch.codegen.expressions import (
    HELPERS,
    Formulas,
    identifier,
    register,
    rounding,
    stored,
    typed,
)
from numbasync.batch.fusion.groups import Group
from numbasync.batch.fusion.indexing import Space, Step, steps
from numbasync.batch.fusion.tuning import WORD, Tuning
from numbasync.batch.record.element_ops import BOOL, DType, is_small
from numbasync.batch.record.nodes import CONSTANT, Nodes, broadcast
from numbasync.dtypes import EXTENSIONS
from numbasync.layout import Shape

REGISTERS = 65536  # per block
FEW_THREADS = 256  # threads that may each have as many registers as a thread can
MOST_LINES = 512  # approximate limit of an unrolled kernel, for the time to compile it
WIDTH = vector_loads.WIDTH
WIDE = 2**31  # from this number of elements on, an index is computed in 64 bits


class Argument(NamedTuple):
    """The argument for a parameter of a kernel.

    Attributes:
        role: `"read"`, `"write"`, `"constant"` (of a node), `"number"`, `"partial"`, `"counter"`.
        value: the node, the number as a NumPy scalar or an int, or the index of the partial result.
    """

    role: str
    value: Any


class Scratch(NamedTuple):
    """Memory that a kernel needs for itself."""

    extent: int
    dtype: DType


@dataclass(frozen=True)
class KernelText:
    """The source of a kernel, and its call.

    Attributes:
        name: of the kernel.
        source: of its module.
        functions: users' functions, by their names in the source.
        arguments: in the order of the kernel's parameters.
        partials: partial results of a reduction that many blocks share.
        counters: the number of counters of these blocks; the counters start at zero.
    """

    name: str
    source: str
    functions: tuple[tuple[str, Any], ...]
    arguments: tuple[Argument, ...]
    grid: int
    block: int
    partials: tuple[Scratch, ...] = ()
    counters: int = 0


class Emitter:
    """Writes the source of one kernel.

    Attributes:
        arguments: name and argument of each parameter, in order.
    """

    def __init__(self, nodes: Nodes, group: Group, written: Iterable[int], tuning: Tuning) -> None:
        self.nodes = nodes
        self.group = group
        self.space: Space = group.space
        self.tuning = tuning
        self.formulas = Formulas()
        self.arguments: dict[str, Argument] = {}
        self.outputs: dict[int, str] = {}
        self._arrays: dict[int, str] = {}
        self._constants: dict[int, str] = {}
        self._numbers: dict[tuple[Step, ...], list[str]] = {}
        self._moves: set[str] = set()
        self._count = 0
        wanted = set(written)
        for n in group.roots:
            if n in wanted:
                self.outputs[n] = self.parameter(f"y{len(self.outputs)}", "write", n)
        for n in group.reads:
            self._arrays[n] = self.parameter(f"x{len(self._arrays)}", "read", n)
        constants = {i for n in sorted(group.inside) for i in nodes[n].inputs}
        for n in sorted(c for c in constants if nodes[c].op == CONSTANT):
            self._constants[n] = self.parameter(f"c{len(self._constants)}", "constant", n)

    # --- parameters ---

    def parameter(self, name: str, kind: str, value: Any) -> str:
        self.arguments[name] = Argument(kind, value)
        return name

    def number(self, value: Any) -> str:
        """A parameter for a number."""
        return self.parameter(f"n{len(self.arguments)}", "number", value)

    @property
    def reads(self) -> dict[int, str]:
        return self._arrays

    def constants(self) -> dict[int, str]:
        return dict(self._constants)

    def name(self) -> str:
        """A new name for a value."""
        self._count += 1
        return f"v{self._count - 1}"

    # --- memory ---

    def itemsize(self) -> int:
        """Bytes per element of the largest array that is read at every element. If all arrays are
        broadcast, the size counts as small.
        """
        whole = self.space.shape
        sizes = [self.nodes[n].dtype.itemsize for n in self._arrays if self.steps(n, whole) is None]
        return max(sizes, default=WORD // 2)

    def load(self, n: int, index: str) -> str:
        text = f"{self._arrays[n]}[{index}]"
        dtype = self.nodes[n].dtype
        return typed(dtype, text) if is_small(dtype) else text

    def store(self, n: int, index: str, value: str) -> str:
        return f"{self.outputs[n]}[{index}] = {stored(self.nodes[n].dtype, value)}"

    def neighbours(self, n: int, index: str, names: Sequence[str]) -> list[str]:
        """Load neighbouring elements: four by one instruction, or one."""
        if len(names) == 1:
            return [f"{names[0]} = {self.load(n, index)}"]
        self._moves.add("load4")
        text = f"load4({self._arrays[n]}, {index})"
        dtype = self.nodes[n].dtype
        if not is_small(dtype):
            return [f"{', '.join(names)} = {text}"]
        raw = [f"{name}_half" for name in names]
        converted = [f"{new} = {typed(dtype, old)}" for new, old in zip(names, raw, strict=True)]
        return [f"{', '.join(raw)} = {text}", *converted]

    def store_neighbours(self, n: int, index: str, values: Sequence[str]) -> str:
        """Store neighbouring elements: four by one instruction, or one."""
        if len(values) == 1:
            return self.store(n, index, values[0])
        self._moves.add("store4")
        converted = [stored(self.nodes[n].dtype, v) for v in values]
        return f"store4({self.outputs[n]}, {index}, ({', '.join(converted)}))"

    def aligned(self, whole: Shape) -> str:
        """The condition under which all arrays with neighbouring accesses allow accesses of four
        elements.
        """
        fits = {n for n in (*self.outputs, *self._arrays)  # others are used for results alone
                if broadcast([self.nodes[n].shape, whole]) == whole}  # fmt: skip
        outputs = [y for n, y in self.outputs.items() if n in fits and self.steps(n, whole) is None]
        reads = [x for n, x in self._arrays.items() if n in fits and self.steps(n, whole) != ()]
        self._moves.add("is_aligned")
        return " and ".join(f"is_aligned({name})" for name in reads + outputs) or "True"

    def steps(self, n: int, whole: Shape) -> tuple[Step, ...] | None:
        return steps(self.nodes[n].shape, whole)

    def place(self, n: int, whole: Shape, flat: str) -> str:
        """The index of a value that is broadcast to `whole`, at element `flat` of `whole`."""
        index_steps = self.steps(n, whole)
        if index_steps is None:
            return flat
        return self.index(index_steps, self.numbers(index_steps), flat) if index_steps else "0"

    def elements(self, names: Mapping[int, Sequence[str]], at: str) -> list[str]:
        """Load values of any shape, each broadcast to the kernel's space, at neighbouring elements.

        Args:
            names: of each value, for its elements.
            at: the first of the elements.
        """
        lines: list[str] = []
        placed: dict[tuple[Step, ...], dict[int, Sequence[str]]] = {}
        for n, value_names in names.items():
            index_steps = self.steps(n, self.space.shape)
            if index_steps is None:
                lines += self.neighbours(n, at, value_names)
            elif not index_steps:
                lines.append(f"{' = '.join(value_names)} = {self.load(n, '0')}")
            else:
                placed.setdefault(index_steps, {})[n] = value_names
        for index_steps, loads in placed.items():
            lines += self._broadcast(index_steps, loads, at)
        return lines

    def _broadcast(
        self, steps: tuple[Step, ...], loads: Mapping[int, Sequence[str]], at: str
    ) -> list[str]:
        """Load values that are broadcast with equal indices, at neighbouring elements."""
        width = len(next(iter(loads.values())))
        inner, base = steps[-1], f"p{self.name()}"
        lines = [f"{base} = {self.index(steps, self.numbers(steps), at)}"]
        # neighbours in the value, too
        if width > 1 and inner.below == 1 and inner.extent % width == 0:
            for n, names in loads.items():
                lines += self.neighbours(n, base, names)
        elif width > 1 and inner.below != 1 and inner.below % width == 0:  # one element
            for n, names in loads.items():
                lines.append(f"{names[0]} = {self.load(n, base)}")
                lines += [f"{name} = {names[0]}" for name in names[1:]]
        else:
            for e in range(width):
                index = f"{base}_{e}" if e else base
                if e:
                    flat = f"({at} + {e})"
                    lines.append(f"{index} = {self.index(steps, self.numbers(steps), flat)}")
                lines += [f"{names[e]} = {self.load(n, index)}" for n, names in loads.items()]
        return lines

    def index(self, steps: tuple[Step, ...], numbers: Sequence[str], flat: str) -> str:
        """The index of a broadcast value's element, at element `flat` of the whole."""
        remaining = list(numbers)
        wide = self.space.size >= WIDE
        terms = []
        for step in steps:
            text = flat if wide else f"np.uint32({flat})"
            if step.below != 1:
                text = f"{text} // {remaining.pop(0)}"
            if step.extent:
                text = f"{text} % {remaining.pop(0)}"
            if step.stride != 1:
                text = f"{text} * {remaining.pop(0)}"
            terms.append(text)
        return " + ".join(terms)

    def numbers(self, steps: tuple[Step, ...]) -> list[str]:
        """Parameters for the numbers of an index; equal indices share them."""
        if steps in self._numbers:
            return self._numbers[steps]
        cls: Callable[[int], Any] = int if self.space.size >= WIDE else np.uint32
        absent = (1, 0, 1)
        values = [v for step in steps for v, a in zip(step, absent, strict=True) if v != a]
        names = self._numbers[steps] = [self.number(cls(v)) for v in values]
        return names

    # --- values ---

    def expression(self, n: int, names: dict[int, str]) -> str:
        """The expression of an elementwise node, given the names of its operands."""
        node = self.nodes[n]
        args = [
            self.formulas.cast(names[i], self.nodes[i].dtype, dtype)
            for i, dtype in zip(node.inputs, node.loops, strict=True)
        ]
        if node.op.startswith("call "):
            return self.formulas.call(node.extra, node.op[5:], node.dtype, args)
        return self.formulas.of(node.op, node.loops, node.dtype, args)

    def compute(self, targets: Iterable[int], names: dict[int, str], lines: list[str]) -> None:
        """Append statements that compute `targets` from named values; the results are added to
        `names`.
        """
        for n in self.order(targets, names):
            name = self.name()
            lines.append(f"{name} = {self.expression(n, names)}")
            names[n] = name

    def order(self, targets: Iterable[int], known: Iterable[int]) -> list[int]:
        """The nodes to compute or load for `targets`, operands first."""
        needed: set[int] = set()
        available = set(known)
        waiting = list(targets)
        while waiting:
            n = waiting.pop()
            if n not in needed and n not in available:
                needed.add(n)
                if n not in self._arrays:
                    waiting += self.nodes[n].inputs
        return sorted(needed)

    def at_results(
        self, targets: Iterable[int], whole: Shape, flat: str, names: dict[int, str],
        lines: list[str],
    ) -> None:  # fmt: skip
        """`compute` where there is one element of `whole` for each result of a reduction."""
        for n in self.order(targets, names):
            if n in self._arrays:
                names[n] = self.name()
                lines.append(f"{names[n]} = {self.load(n, self.place(n, whole, flat))}")
        self.compute(targets, names, lines)

    # --- the module ---

    def finish(
        self, body: list[str], grid: int, block: int, device: Iterable[str] = (), *,
        partials: tuple[Scratch, ...] = (), counters: int = 0, registers: int = 0,
    ) -> KernelText:  # fmt: skip
        """The source of the module.

        Args:
            body: the kernel's lines.
            device: sources of functions that the kernel calls.
            registers: registers that a thread may use to keep loads in flight together, although
                fewer threads may then run concurrently: without the option the compiler uses few.
                0: no option.
        """
        name = self.title()
        imports = _IMPORTS
        if self._moves:
            moves = ", ".join(sorted(self._moves))
            imports += (
                f"\nfrom {vector_loads.__name__} import {moves}  # form {vector_loads.FORM}\n"
            )
        texts = (*body, *device)
        for extension in sorted(EXTENSIONS):
            is_used = any(f"{extension}(" in text for text in texts)
            if is_used or rounding(extension) in self.formulas.helpers:
                imports += f"from ml_dtypes import {extension}\n"
        parts = [f'"""{self._said()}"""', imports]
        cached = not self.formulas.functions
        placeholder = "{}: Any = None  # a function of the program\n"
        parts += [placeholder.format(function) for function in self.formulas.functions]
        for helper, text in HELPERS.items():
            if helper in self.formulas.helpers:
                parts.append(f"@cuda.jit(device=True){text}")
        parts += [f"@cuda.jit(device=True)\n{text}" for text in device]
        options = ["cache=True"] if cached else []
        # A block that needs more registers than there are does not run.
        if block > FEW_THREADS or registers:
            options.append(f"max_registers={min(REGISTERS // block, registers or REGISTERS)}")
        head = f"@cuda.jit({', '.join(options)})\ndef {name}({', '.join(self.arguments)}):"
        parts.append("\n".join([head, *(f"    {line}" for line in body)]) + "\n")
        return KernelText(
            name, "\n\n".join(parts), tuple(self.formulas.functions.items()),
            tuple(self.arguments.values()), grid, block, partials, counters,
        )  # fmt: skip

    def title(self) -> str:
        """A name that describes the computation, as far as a short name can."""
        names = [identifier(self.nodes[n].op.removeprefix("call "))
                 for n in sorted(self.group.inside)]  # fmt: skip
        if len(names) > 4:
            names = [*names[:3], f"{len(names) - 3}_more"]
        return "_".join(["batch", *names])

    def _said(self) -> str:
        count = len(self.group.inside)
        operations = "operation" if count == 1 else "operations"
        arrays = "array" if len(self._arrays) == 1 else "arrays"
        return f"{count} {operations} on {len(self._arrays)} {arrays}, written by numbasync."


_IMPORTS = """\
import math
from typing import Any

import numpy as np
from numbasync.kernel_names import cuda, libdevice

dmul_rn, fmul_rn = libdevice.dmul_rn, libdevice.fmul_rn
"""


def argument_value(value: Any, dtype: DType) -> Any:
    """A constant as it is passed to a kernel: in the register of its type."""
    return np.bool_(value) if dtype == BOOL else register(dtype).type(value)


def indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]
