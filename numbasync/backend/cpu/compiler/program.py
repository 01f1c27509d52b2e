"""A translated kernel: one thread's statements, and the values of the names in them."""

from __future__ import annotations

import ast
import copy
import math
import types
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from textwrap import dedent
from typing import Any, Protocol

import numpy as np
from numba.core.registry import cpu_target

from numbasync.backend.cpu.compiler.names import Signatures
from numbasync.backend.cpu.library import arithmetic, atomics, entry_points
from numbasync.backend.cpu.library.entry_points import types as numba_types

# Hidden variables of a thread: its indices, the extents, the block's memory.
HIDDEN = ("_tx", "_ty", "_tz", "_bx", "_by", "_bz", "_wx", "_wy", "_wz", "_gx", "_gy", "_gz", "_m",
          "_d")  # fmt: skip
ALL = ", ".join(HIDDEN)
PLACE = "(_bx, _by, _bz, _tx, _ty, _tz)"
RECORD_BYTES = 128
MOST_THREADS = 1024


# Functions of their arguments alone: where these are the same for all threads, so is the result.
_PURE: list[Any] = [
    int,
    float,
    bool,
    abs,
    len,
    range,
    math.sqrt,
    math.log2,
    math.ceil,
    np.int32,
    np.int64,
    np.uint32,
    np.uint64,
    np.float32,
    np.float64,
    numba_types.int32,
    numba_types.int64,
    numba_types.uint32,
    numba_types.uint64,
    numba_types.float32,
    numba_types.float64,
    arithmetic.larger,
    arithmetic.smaller,
    arithmetic.popc,
    arithmetic.clz,
    arithmetic.ffs,
    arithmetic.floor,
    arithmetic.ceil,
]


@dataclass(frozen=True)
class Site:
    """A place in the source that a message may name."""

    function: str
    file: str
    line: int
    what: str


@dataclass(frozen=True)
class Call:
    """A call of a device function that is written out, or is compiled by itself.

    Attributes:
        caller: None if it is compiled by itself, and may be called from several places.
    """

    caller: types.FunctionType | None
    line: int


class GpuTypes(Protocol):
    """What numba-cuda knows of a kernel; see `numba_cuda.FrontEnd`."""

    def shape_at(self, function: types.FunctionType, line: int) -> Any: ...

    def types_of_call(
        self, caller: types.FunctionType, line: int, called: types.FunctionType
    ) -> Any: ...

    def has_several_types(self, called: types.FunctionType) -> bool: ...


@dataclass
class Program:
    """A kernel, translated.

    Attributes:
        parameters: of the kernel, as they are called in `body`.
        body: one thread's statements, with barriers.
        functions: sources of the device functions that it calls.
        declared: for which types each of those is declared, if it is.
        names: what the generated code's names stand for.
        sites: what the numbers in the code mean.
        fixed_bytes: memory of a block, without dynamic shared memory.
        shared: offset and size of each static shared array in it.
        has_barriers: whether its threads synchronise, or exchange values in a warp.
        cooperative: whether the blocks synchronise, too: each then has memory of its own.
        prologue: a statement that every thread begins with, or a piece of its work.
        checked: whether every access is, and threads take turns in an order that is passed.
        has_inlined: whether overloads are written out in it, whose indices Numba must check.
        doubtful: sources of which numba-cuda must say whether they compile for a GPU.
        array_shapes: what numba-cuda knows of the kernel, if it may be asked.
        generated: the source of each generated function, and the statements of which it was made.
        shared_of_functions: offsets of the shared arrays of device functions, by where they are
            made, with a call of the function for each.
        has_vectors: whether it accesses several elements at once, at addresses that must fit.
        has_fences: whether a thread passes one (`cuda.threadfence`).
        row: whether it is written for blocks of one row, whose y and z are 1.
        pure: names of functions whose result depends on their arguments alone.
    """

    name: str
    parameters: list[str] = field(default_factory=list)
    body: list[ast.stmt] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    declared: dict[str, Signatures] = field(default_factory=dict)
    names: dict[str, Any] = field(default_factory=dict)
    sites: list[Site] = field(default_factory=list)
    fixed_bytes: int = RECORD_BYTES
    shared: list[tuple[int, int]] = field(default_factory=list)
    has_barriers: bool = False
    cooperative: bool = False
    prologue: str = "pass"
    checked: bool = False
    has_inlined: bool = False
    has_vectors: bool = False
    has_fences: bool = False
    row: bool = False
    doubtful: list[str] = field(default_factory=list)
    array_shapes: GpuTypes | None = None
    generated: dict[str, tuple[str, list[ast.stmt]]] = field(default_factory=dict)
    shared_of_functions: dict[Hashable, list[tuple[Call, int]]] = field(default_factory=dict)
    _count: int = 0
    _frozen: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    pure: set[str] = field(default_factory=lambda: {"_i32", "_natural"})

    def has_rows(self) -> bool:
        """Whether nothing in it asks for y and z of a thread, or of the block's shape."""
        sources = (source.partition("\n")[2] for source in self.functions)
        inner = [statement for source in sources for statement in ast.parse(dedent(source)).body]
        return not any(map(_asks_for_more, [*self.body, *inner]))

    def copy(self, row: bool = False) -> Program:
        """One to generate code of, which takes memory and names."""
        body = copy.deepcopy(self.body)
        return replace(
            self, body=body, names=dict(self.names), row=row, pure=set(self.pure), generated={}
        )

    def is_straight(self) -> bool:
        """Whether it is known that a thread does a few steps and ends: no loops, no barriers, and
        no functions that may have some.
        """
        nodes = [n for s in self.body for n in ast.walk(s)]
        return not self.has_barriers and not any(
            isinstance(n, ast.For | ast.While | ast.Slice)
            or (isinstance(n, ast.Call) and not self._is_step(n.func))
            for n in nodes
        )

    def has_atomics(self) -> bool:
        """Whether blocks may write to the same elements."""
        return any(getattr(v, "__module__", "") == atomics.__name__ for v in self.names.values())

    def _is_step(self, function: ast.expr) -> bool:
        if not isinstance(function, ast.Name):
            return False
        called = self.names.get(function.id)
        module = getattr(called, "__module__", None) or ""
        return any(called is each for each in _PURE) or module in (
            "math",
            entry_points.__name__,
            arithmetic.__name__,
            atomics.__name__,
        )

    def only_reads(self, function: ast.expr) -> bool:
        """Whether what is called is known to change nothing."""
        if not isinstance(function, ast.Name):
            return False
        called = self.names.get(function.id)
        is_atomic = getattr(called, "__module__", "") == atomics.__name__
        return self._is_step(function) and not is_atomic and called is not entry_points.note

    def number(self) -> int:
        """One that no name of the generated code has yet."""
        self._count += 1
        return self._count

    def frozen(self, array: Any) -> Any:
        """A copy of a global array, as Numba makes one; the same however often it is named."""
        return self._frozen.setdefault(id(array), (array, array.copy()))[1]

    def as_bits(self, array: Any) -> Any:
        """A frozen array of float16 or bfloat16 as uint16; the same however often it is named."""
        return self._frozen.setdefault(id(array), (array, array.view(np.uint16)))[1]

    def bind(self, value: Any, hint: str) -> str:
        """A name of the generated code for a value."""
        for name, known in self.names.items():
            if known is value and name.startswith(f"_{hint}_"):
                return name
        name = f"_{hint}_{len(self.names)}"
        self.names[name] = value
        if any(value is each for each in _PURE):
            self.pure.add(name)
        return name

    def take(self, nbytes: int) -> int:
        """Room in the block's memory; its offset."""
        offset = self.fixed_bytes
        self.fixed_bytes += -(-nbytes // 64) * 64
        return offset

    def site(self, function: types.FunctionType, node: ast.AST, what: str) -> int:
        code = function.__code__
        self.sites.append(Site(code.co_name, code.co_filename, getattr(node, "lineno", 0), what))
        return len(self.sites) - 1


def _asks_for_more(node: ast.AST) -> bool:
    if isinstance(node, ast.Tuple) and ast.unparse(node) in (f"({ALL})", PLACE):
        return False  # what is passed on to functions and to messages
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "_here":
        return False
    if isinstance(node, ast.Name) and node.id in ("_ty", "_tz", "_wy", "_wz"):
        return isinstance(node.ctx, ast.Load)
    return any(map(_asks_for_more, ast.iter_child_nodes(node)))


def parsed(source: str) -> ast.expr:
    """The expression that `source` is."""
    return ast.parse(source, mode="eval").body


def item_bytes(numba_type: Any) -> int:
    context: Any = cpu_target.target_context
    return int(context.get_abi_sizeof(context.get_data_type(numba_type)))


def item_alignment(numba_type: Any) -> int:
    context: Any = cpu_target.target_context
    return int(context.get_abi_alignment(context.get_data_type(numba_type)))
