"""A kernel's source as source of Numba's CPU compiler: one thread's part of the work.

What a thread knows of itself are variables: `_tx` to `_tz` (its index in the block), `_bx` to
`_bz`, `_wx` to `_wz` (threads of a block) and `_gx` to `_gz` (blocks), all 64-bit; `_m` is the
address of the block's memory, which begins with the record of `native`, and `_d` the size of
the dynamic shared memory. Variables of the kernel get a number, so no name is taken.

Where the threads of a block meet, a call of a `@name` is left, which `regions` replaces. A
device function in which they meet is written out at its call; others become functions of their
own, which take the variables above as their first argument.
"""

from __future__ import annotations

import ast
import copy
import math
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numba import cuda

from numbasync.backend.cpu import libdevice, native
from numbasync.backend.cpu.names import (
    MISSING,
    Scope,
    UntranslatableError,
    device_function,
    element_type,
)
from numbasync.backend.cpu.native import types as numba_types
from numbasync.backend.cpu.rewrite import definition

HIDDEN = ("_tx", "_ty", "_tz", "_bx", "_by", "_bz", "_wx", "_wy", "_wz", "_gx", "_gy", "_gz", "_m",
          "_d")  # fmt: skip
ALL = ", ".join(HIDDEN)
PLACE = "(_bx, _by, _bz, _tx, _ty, _tz)"
RECORD_BYTES = 128
MOST_THREADS = 1024

_AXES = {cuda.threadIdx: "_t", cuda.blockIdx: "_b", cuda.blockDim: "_w", cuda.gridDim: "_g"}
_SIZES = {"x": "({g}x * {w}x)", "y": "({g}y * {w}y)", "z": "({g}z * {w}z)"}

# Where threads meet: whether all of a block must come, and how many arguments there are.
MEETINGS: dict[Any, tuple[str, bool]] = {
    cuda.syncthreads: ("@barrier", True),
    cuda.syncthreads_count: ("@count", True),
    cuda.syncthreads_and: ("@and", True),
    cuda.syncthreads_or: ("@or", True),
    cuda.syncwarp: ("@warp", False),
    cuda.shfl_sync: ("@shfl", False),
    cuda.shfl_up_sync: ("@shfl_up", False),
    cuda.shfl_down_sync: ("@shfl_down", False),
    cuda.shfl_xor_sync: ("@shfl_xor", False),
    cuda.all_sync: ("@all", False),
    cuda.any_sync: ("@any", False),
    cuda.eq_sync: ("@eq", False),
    cuda.ballot_sync: ("@ballot", False),
    cuda.match_any_sync: ("@match_any", False),
    cuda.match_all_sync: ("@match_all", False),
    cuda.activemask: ("@activemask", False),
}
_NOTHING = (cuda.threadfence, cuda.threadfence_block, cuda.threadfence_system, cuda.nanosleep)
_FUNCTIONS: dict[Any, Any] = {
    cuda.popc: native.popc, cuda.clz: native.clz, cuda.ffs: native.ffs, cuda.brev: native.brev,
    cuda.fma: native.fma, cuda.selp: native.selp, cuda.cbrt: native.cbrt,
    math.floor: native.floor, math.ceil: native.ceil, math.trunc: native.trunc,
    min: native.smaller, max: native.larger, math.remainder: native.remainder,
    math.fmod: np.fmod, math.modf: native.modf,
    **libdevice.FUNCTIONS,
}  # fmt: skip
_ATOMICS = {getattr(cuda.atomic, name): function for name, function in native.ATOMICS.items()}

_STATEMENTS = (
    ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.If, ast.While, ast.For, ast.Return,
    ast.Pass, ast.Break, ast.Continue, ast.Raise, ast.Assert,
)  # fmt: skip
_REFUSED = (
    ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Await, ast.Yield,
    ast.YieldFrom, ast.JoinedStr, ast.List, ast.Dict, ast.Set, ast.Starred, ast.NamedExpr,
)  # fmt: skip


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
    native.larger,
    native.smaller,
    native.popc,
    native.clz,
    native.ffs,
    native.floor,
    native.ceil,
]


@dataclass(frozen=True)
class Site:
    """A place in the source that a message may name."""

    function: str
    file: str
    line: int
    what: str


@dataclass
class Program:
    """A kernel, translated.

    Attributes:
        parameters: of the kernel, as they are called in `body`.
        body: one thread's statements, with meetings.
        functions: sources of the device functions that it calls.
        names: what the generated code's names stand for.
        sites: what the numbers in the code mean.
        fixed_bytes: memory of a block, without dynamic shared memory.
        shared_bytes: of static shared memory.
        meets: whether its threads meet.
        prologue: a statement that every thread begins with, or a piece of its work.
        pure: names of functions whose result depends on their arguments alone.
    """

    name: str
    parameters: list[str] = field(default_factory=list)
    body: list[ast.stmt] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    names: dict[str, Any] = field(default_factory=dict)
    sites: list[Site] = field(default_factory=list)
    fixed_bytes: int = RECORD_BYTES
    shared_bytes: int = 0
    meets: bool = False
    prologue: str = "pass"
    pure: set[str] = field(default_factory=lambda: {"_i32", "_natural"})

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
        at = self.fixed_bytes
        self.fixed_bytes += -(-nbytes // 64) * 64
        return at

    def site(self, function: types.FunctionType, node: ast.AST, what: str) -> int:
        code = function.__code__
        self.sites.append(Site(code.co_name, code.co_filename, getattr(node, "lineno", 0), what))
        return len(self.sites) - 1


def translate(kernel: types.FunctionType) -> Program:
    """The kernel's program.

    Raises:
        UntranslatableError: it has something that this engine does not know.
    """
    program = Program(kernel.__name__)
    program.names.update(
        _i32=np.int32, _check=native.check, _axis=native.check_axis, _get=native.get,
        _stop=native.stop, _note=native.note, _natural=native.natural,
    )  # fmt: skip
    translation = _Translation(program)
    program.meets = translation.meets(kernel)
    function = _Function(translation, kernel, in_kernel=True)
    program.parameters = function.parameters
    program.body = function.block(function.node.body)
    return program


def parsed(source: str) -> ast.expr:
    """The expression that `source` is."""
    return ast.parse(source, mode="eval").body


class _Translation:
    """What the functions of one program share."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.count = 0
        self._meets: dict[types.FunctionType, bool] = {}
        self._made: dict[types.FunctionType, str] = {}

    def number(self) -> int:
        self.count += 1
        return self.count

    def meets(self, function: types.FunctionType) -> bool:
        """Whether threads meet in a function, or in one that it calls."""
        found = self._meets.get(function)
        if found is not None:
            return found
        self._meets[function] = False
        node, scope = self.source(function)
        for each in ast.walk(node):
            if not isinstance(each, ast.Call):
                continue
            callee = scope.resolve(each.func)
            inner = device_function(callee)
            if _is_meeting(callee) or (inner is not None and self.meets(inner)):
                self._meets[function] = True
        return self._meets[function]

    @staticmethod
    def source(function: types.FunctionType) -> tuple[ast.FunctionDef, Scope]:
        found = definition(function)
        if found is None:
            raise UntranslatableError(f"{function.__name__}, whose source is not at hand")
        return found[1], Scope(function, found[1])

    def device(self, function: types.FunctionType) -> str:
        """The name of a device function, which is made when it is first called."""
        name = self._made.get(function)
        if name is None:
            name = f"_{function.__name__}_{self.number()}f"
            self._made[function] = name
            made = _Function(self, function, in_kernel=False)
            body = made.block(made.node.body)
            head = ast.parse(f"{ALL} = _c").body
            tree = ast.FunctionDef(
                name, ast.arguments([], [ast.arg("_c"), *map(ast.arg, made.parameters)], None, [],
                                    [], None, made.defaults()),
                [*head, *body], [], None, None,
            )  # fmt: skip
            self.program.functions.append(ast.unparse(ast.fix_missing_locations(tree)))
        return name


def _is_meeting(value: Any) -> bool:
    try:
        return value in MEETINGS
    except TypeError:
        return False


class _Function(ast.NodeTransformer):
    """One function's statements; what an expression needs done before it is put in front."""

    def __init__(
        self, translation: _Translation, function: types.FunctionType, in_kernel: bool
    ) -> None:
        self._translation = translation
        self._program = translation.program
        self._function = function
        self._in_kernel = in_kernel
        self.node, self._scope = translation.source(function)
        self._number = translation.number()
        arguments = self.node.args
        if arguments.vararg or arguments.kwarg or arguments.kwonlyargs:
            raise UntranslatableError("parameters with a star", self.node)
        self._arguments = [a.arg for a in [*arguments.posonlyargs, *arguments.args]]
        self.parameters = [self._own(a) for a in self._arguments]
        self._before: list[ast.stmt] = []
        self._result: str | None = None

    def _own(self, name: str) -> str:
        return f"{name}_{self._number}"

    def defaults(self) -> list[ast.expr]:
        values = self._function.__defaults__ or ()
        return [ast.Name(self._program.bind(v, "default"), ast.Load()) for v in values]

    # --- statements ---

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        done: list[ast.stmt] = []
        for i, statement in enumerate(statements):
            if (
                i == 0
                and isinstance(statement, ast.Expr)
                and isinstance(statement.value, ast.Constant)
            ):
                continue  # a docstring
            done += self._statement(copy.deepcopy(statement))
        return done or [ast.Pass()]

    def _statement(self, statement: ast.stmt) -> list[ast.stmt]:
        if not isinstance(statement, _STATEMENTS):
            raise UntranslatableError(
                f"a `{type(statement).__name__.lower()}` statement", statement
            )
        outer, self._before = self._before, []
        try:
            made = self._lowered(statement)
            return [*self._before, *made]
        finally:
            self._before = outer

    def _lowered(self, statement: ast.stmt) -> list[ast.stmt]:
        match statement:
            case ast.If():
                statement.test = self.visit(statement.test)
                statement.body = self.block(statement.body)
                statement.orelse = self.block(statement.orelse) if statement.orelse else []
            case ast.While():
                before, self._before = self._before, []
                statement.test = self.visit(statement.test)
                first, self._before = self._before, before
                if first:
                    if statement.orelse:
                        raise UntranslatableError(
                            "an else of a loop in which threads meet", statement
                        )
                    end = ast.UnaryOp(ast.Not(), statement.test)
                    first.append(ast.If(end, [ast.Break()], []))
                    statement.test = ast.Constant(True)
                statement.body = [*first, *self.block(statement.body)]
                statement.orelse = self.block(statement.orelse) if statement.orelse else []
            case ast.For():
                statement.iter = self.visit(statement.iter)
                statement.target = self.visit(statement.target)
                statement.body = self.block(statement.body)
                statement.orelse = self.block(statement.orelse) if statement.orelse else []
            case ast.Expr():
                value = self.visit(statement.value)
                return [] if isinstance(value, ast.Name | ast.Constant) else [ast.Expr(value)]
            case ast.Return():
                return self._returned(statement)
            case ast.Raise():
                if statement.cause is not None:
                    raise UntranslatableError("raise ... from", statement)
                # What is raised is looked up by Numba, so that it must be a name of its own.
                return [self._note(statement, "raise"), self.generic_visit(statement)]
            case ast.Assert():
                error = ast.Call(ast.Name("AssertionError", ast.Load()),
                                 [statement.msg] if statement.msg else [], [])  # fmt: skip
                failed = ast.copy_location(ast.Raise(error, None), statement)
                test = ast.UnaryOp(ast.Not(), self.visit(statement.test))
                return [ast.If(test, [self._note(statement, "assert"), failed], [])]
            case ast.AnnAssign():
                if statement.value is None or not isinstance(statement.target, ast.Name):
                    raise UntranslatableError("an annotation without a value", statement)
                plain = ast.Assign([statement.target], statement.value)
                return self._lowered(ast.copy_location(plain, statement))
            case _:
                return [self.generic_visit(statement)]
        return [statement]

    def _note(self, node: ast.AST, what: str) -> ast.stmt:
        site = self._program.site(self._function, node, what)
        return ast.Expr(parsed(f"_note(_m, {site}, {PLACE})"))

    def _returned(self, statement: ast.Return) -> list[ast.stmt]:
        value = None if statement.value is None else self.visit(statement.value)
        if self._result is None:
            if self._in_kernel and value is not None:
                none = isinstance(value, ast.Constant) and value.value is None
                if not none:
                    raise UntranslatableError("a value returned by the kernel", statement)
                value = None
            return [ast.Return(value)]
        # Written out where it is called: only at the end, which the caller has made sure of.
        if value is None:
            return [ast.Pass()]
        return [ast.Assign([ast.Name(self._result, ast.Store())], value)]

    # --- names ---

    def visit_Name(self, node: ast.Name) -> Any:
        if node.id in self._scope.locals:
            node.id = self._own(node.id)
            return node
        return self._global(node, self._scope.find(node.id), node.id)

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        axes = self._scope.resolve(node.value)
        if isinstance(axes, type) and axes in _AXES and node.attr in "xyz":
            return parsed(f"_i32({_AXES[axes]}{node.attr})")
        found = self._scope.resolve(node)
        if found is not MISSING:
            return self._global(node, found, node.attr)
        node.value = self.visit(node.value)
        return node

    def _global(self, node: ast.expr, value: Any, name: str) -> Any:
        if value is cuda.laneid:
            return parsed("_i32((_tx + _wx * (_ty + _wy * _tz)) & 31)")
        if value is cuda.warpsize:
            return parsed("_i32(32)")
        if value is MISSING:
            raise UntranslatableError(f"the name {name}", node)
        if isinstance(value, types.ModuleType) or device_function(value) is not None:
            raise UntranslatableError(f"{name} as a value", node)
        module = getattr(value, "__module__", None) or ""
        if isinstance(module, str) and module.startswith("numba.cuda") and not _is_type(value):
            raise UntranslatableError(f"cuda.{name}", node)
        if isinstance(value, types.FunctionType) and not module.startswith(("numpy", "numba")):
            raise UntranslatableError(f"{name}, which is no device function", node)
        if isinstance(value, np.ndarray):
            value = value.copy()
        return ast.copy_location(ast.Name(self._program.bind(value, name), ast.Load()), node)

    # --- elements ---

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        base, index = node.value, node.slice
        text = ast.unparse(base)
        made_here = self._is_array(base)
        new = self.visit(base)
        if isinstance(index, ast.Constant) and not made_here:
            node.value = new
            return node
        has_name = isinstance(new, ast.Name)
        if not has_name and isinstance(node.ctx, ast.Store):
            held = f"_h{self._translation.number()}"
            self._before.append(ast.Assign([ast.Name(held, ast.Store())], new))
            new, has_name = ast.Name(held, ast.Load()), True
        site = self._program.site(self._function, node, text)
        if isinstance(index, ast.Tuple):
            parts = [self.visit(e) for e in index.elts]
            plain = not any(_is_open(e) for e in index.elts)
            if has_name:
                for axis, part in enumerate(parts):
                    if isinstance(part, ast.Slice):
                        continue
                    if _is_open(part):
                        break  # which axis the next one is of depends on the array
                    parts[axis] = _called("_axis", new, ast.Constant(axis), part, site)
                node.value, node.slice = new, ast.Tuple(parts, ast.Load())
                return node
            if plain and not any(isinstance(e, ast.Slice) for e in parts):
                return _called("_get", new, ast.Tuple(parts, ast.Load()), None, site)
            node.value, node.slice = new, ast.Tuple(parts, ast.Load())
            return node
        if isinstance(index, ast.Slice):
            node.value, node.slice = new, self.visit(index)
            return node
        at = self.visit(index)
        if has_name:
            node.value, node.slice = new, _called("_check", new, at, None, site)
            return node
        return _called("_get", new, at, None, site)

    def _is_array(self, base: ast.expr) -> bool:
        """Whether it is known to be an array, and no tuple: one of its own that was made here."""
        if not isinstance(base, ast.Name):
            return False
        made = self._scope._constants.get(base.id)
        called = made.func if isinstance(made, ast.Call) else None
        return called is not None and self._scope.resolve(called) in (
            cuda.shared.array,
            cuda.local.array,
        )

    # --- calls ---

    def visit_Call(self, node: ast.Call) -> Any:
        callee = self._scope.resolve(node.func)
        if callee is MISSING:
            return self._method(node)
        handler = self._special(callee)
        if handler is not None:
            return handler(node)
        inner = device_function(callee)
        if inner is not None:
            return self._device(node, inner)
        function = self._global(node.func, callee, getattr(callee, "__name__", "f"))
        keywords = [ast.keyword(k.arg, self.visit(k.value)) for k in node.keywords]
        return ast.Call(function, self._in_order(node.args), keywords)

    def _special(self, callee: Any) -> Callable[[ast.Call], Any] | None:
        try:
            hash(callee)
        except TypeError:
            return None
        if callee in MEETINGS:
            return lambda node: self._meeting(node, *MEETINGS[callee])
        if callee is cuda.grid or callee is cuda.gridsize:
            return lambda node: self._grid(node, callee is cuda.grid)
        if callee in (cuda.shared.array, cuda.local.array):
            return lambda node: self._array(node, callee is cuda.shared.array)
        if callee is cuda.const.array_like:
            return lambda node: self.visit(node.args[0])
        if callee in _NOTHING:
            return lambda node: ast.copy_location(ast.Constant(None), node)
        if callee is cuda.lanemask_lt:
            name = self._program.bind(np.uint32, "u32")
            lane = "((_tx + _wx * (_ty + _wy * _tz)) & 31)"
            return lambda node: parsed(f"{name}((1 << {lane}) - 1)")
        if callee in _ATOMICS:
            return lambda node: self._atomic(node, _ATOMICS[callee])
        if callee is cuda.atomic.cas:
            return lambda node: self._atomic(node, native.atomic_cas)
        if callee is cuda.atomic.compare_and_swap:
            return self._compare_and_swap
        if callee in _FUNCTIONS:
            return lambda node: self._renamed(node, callee)
        return None

    def _renamed(self, node: ast.Call, callee: Any) -> Any:
        arguments = self._in_order(node.args)
        if node.keywords:
            raise UntranslatableError("keywords of a function of cuda or math", node)
        function = _FUNCTIONS[callee]
        if callee in (min, max) and len(arguments) != 2:
            if len(arguments) < 2:
                raise UntranslatableError(f"{callee.__name__} of one argument", node)
            made = arguments[0]
            for more in arguments[1:]:
                made = self._call(function, [made, more])
            return made
        return self._call(function, arguments)

    def _call(self, function: Any, arguments: list[ast.expr]) -> Any:
        name = self._program.bind(function, getattr(function, "__name__", "f"))
        return ast.Call(ast.Name(name, ast.Load()), arguments, [])

    def _method(self, node: ast.Call) -> Any:
        """A method of a value, such as `array.sum`; Numba knows which there are."""
        if not isinstance(node.func, ast.Attribute):
            raise UntranslatableError("a call of something that is computed", node)
        return self.generic_visit(node)

    def _grid(self, node: ast.Call, position: bool) -> Any:
        count = self._scope.constant(node.args[0]) if len(node.args) == 1 else MISSING
        if count not in (1, 2, 3):
            raise UntranslatableError("cuda.grid of something else than 1, 2 or 3", node)
        form = "(_natural(_b{0} * _w{0}) + _t{0})" if position else "(_g{0} * _w{0})"
        axes = [form.format(a) for a in "xyz"[:count]]
        return parsed(axes[0] if count == 1 else f"({', '.join(axes)})")

    def _array(self, node: ast.Call, shared: bool) -> Any:
        given: dict[str, ast.expr] = dict(zip(("shape", "dtype"), node.args, strict=False))
        given |= {k.arg: k.value for k in node.keywords if k.arg is not None}
        shape = self._scope.constant(given.get("shape"))
        kind = element_type(self._scope.constant(given.get("dtype")))
        shape = (shape,) if isinstance(shape, int) else shape
        if kind is MISSING or not isinstance(shape, tuple):
            raise UntranslatableError("an array whose shape or dtype is no constant", node)
        if not all(isinstance(n, int) and n >= 0 for n in shape):
            raise UntranslatableError("an array whose shape is no constant", node)
        program = self._program
        if shared and shape == (0,):
            make = program.bind(native.array_of_bytes(kind), "dynamic")
            program.pure.add(make)
            return parsed(f"{make}(_m + _fixed, _d)")
        nbytes = math.prod(shape) * item_bytes(kind)
        make = program.bind(native.array_at(shape, kind), "array")
        program.pure.add(make)
        if shared:
            program.shared_bytes += nbytes
        if shared or not (self._in_kernel and program.meets):
            return parsed(f"{make}(_m + {program.take(nbytes)})")
        # Every thread has its own, since they take turns.
        each = -(-max(nbytes, 1) // 16) * 16
        at = program.take(each * MOST_THREADS)
        lane = "(_tx + _wx * (_ty + _wy * _tz))"
        return parsed(f"{make}(_m + {at} + {each} * {lane})")

    def _atomic(self, node: ast.Call, function: Any) -> Any:
        if len(node.args) < 3 or node.keywords:
            raise UntranslatableError("an atomic operation with keywords", node)
        text = ast.unparse(node.args[0])
        array, index, *values = (self.visit(a) for a in node.args)
        array = self._held(array)
        site = self._program.site(self._function, node, text)
        at = _called("_check", array, index, None, site)
        return self._call(function, [array, at, *values])

    def _compare_and_swap(self, node: ast.Call) -> Any:
        text = ast.unparse(node.args[0])
        array, *values = (self.visit(a) for a in node.args)
        array = self._held(array)
        site = self._program.site(self._function, node, text)
        at = _called("_check", array, ast.Constant(0), None, site)
        return self._call(native.atomic_cas, [array, at, *values])

    def _held(self, value: ast.expr) -> Any:
        """A name for it: it is used twice."""
        if isinstance(value, ast.Name):
            return value
        name = f"_h{self._translation.number()}"
        self._before.append(ast.Assign([ast.Name(name, ast.Store())], value))
        return ast.Name(name, ast.Load())

    # --- calls in which threads meet ---

    def _meeting(self, node: ast.Call, name: str, whole_block: bool) -> Any:
        if not self._in_kernel:
            raise UntranslatableError("a meeting in a function that is compiled by itself", node)
        arguments = [self.visit(a) for a in node.args]
        if node.keywords:
            raise UntranslatableError("keywords of a function of cuda", node)
        what = next(k for k, v in MEETINGS.items() if v[0] == name).__name__
        site = self._program.site(self._function, node, f"cuda.{what}")
        return self._hoisted(
            ast.Call(ast.Name(name, ast.Load()), [ast.Constant(site), *arguments], [])
        )

    def _hoisted(self, call: ast.expr) -> Any:
        result = f"_r{self._translation.number()}"
        self._before.append(ast.Assign([ast.Name(result, ast.Store())], call))
        return ast.Name(result, ast.Load())

    def _device(self, node: ast.Call, function: types.FunctionType) -> Any:
        if not self._translation.meets(function):
            name = self._translation.device(function)
            arguments = self._in_order(node.args)
            if node.keywords:
                raise UntranslatableError(f"keywords in a call of {function.__name__}", node)
            first = parsed(f"({ALL})") if self._in_kernel else ast.Name("_c", ast.Load())
            return ast.Call(ast.Name(name, ast.Load()), [first, *arguments], [])
        if not self._in_kernel:
            raise UntranslatableError("a meeting in a function that is compiled by itself", node)
        return self._written_out(node, function)

    def _written_out(self, node: ast.Call, function: types.FunctionType) -> Any:
        inner = _Function(self._translation, function, in_kernel=True)
        body = list(inner.node.body)
        for each in body[:-1] + ([] if isinstance(body[-1], ast.Return) else body[-1:]):
            for part in ast.walk(each):
                if isinstance(part, ast.Return):
                    raise UntranslatableError(
                        f"a return before the end of {function.__name__}, in which threads meet",
                        part,
                    )
        arguments = {p: self.visit(a) for p, a in zip(inner._arguments, node.args, strict=False)}
        arguments |= {k.arg: self.visit(k.value) for k in node.keywords if k.arg is not None}
        names = inner._arguments
        for name, value in zip(names[::-1], (function.__defaults__ or ())[::-1], strict=False):
            if name not in arguments:
                arguments[name] = ast.Name(self._program.bind(value, "default"), ast.Load())
        if set(arguments) != set(names):
            raise UntranslatableError(f"a call of {function.__name__} with other arguments", node)
        for name, value in arguments.items():
            target = ast.Name(inner._own(name), ast.Store())
            self._before.append(ast.Assign([target], value))
        inner._result = f"_r{self._translation.number()}"
        self._before += inner.block(body)
        if not isinstance(body[-1], ast.Return) or body[-1].value is None:
            return ast.Constant(None)
        return ast.Name(inner._result, ast.Load())

    # --- what there is no place for ---

    def generic_visit(self, node: ast.AST) -> Any:
        if isinstance(node, _REFUSED):
            raise UntranslatableError(f"a {type(node).__name__}", node)
        if isinstance(node, ast.BinOp):
            return self._binary(node)
        if isinstance(node, ast.Compare):
            node.left, *node.comparators = self._in_order([node.left, *node.comparators])
            return node
        if isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load):
            node.elts = self._in_order(node.elts)
            return node
        if isinstance(node, ast.BoolOp | ast.IfExp):
            before = len(self._before)
            made = super().generic_visit(node)
            if len(self._before) > before and any(_meets(s) for s in self._before[before:]):
                raise UntranslatableError(
                    "a meeting in a part of an expression that may be left out", node
                )
            return made
        return super().generic_visit(node)

    def _binary(self, node: ast.BinOp) -> Any:
        node.left, node.right = self._in_order([node.left, node.right])
        return node

    def _in_order(self, parts: list[ast.expr]) -> list[ast.expr]:
        """Parts of an expression: what stands before a meeting is computed before it."""
        done: list[ast.expr] = []
        for part in parts:
            at = len(self._before)
            new = self.visit(part)
            if any(_meets(s) for s in self._before[at:]):
                for i, earlier in enumerate(done):
                    if not isinstance(earlier, ast.Name | ast.Constant):
                        name = f"_h{self._translation.number()}"
                        kept = ast.Assign([ast.Name(name, ast.Store())], earlier)
                        self._before.insert(at, kept)
                        at += 1
                        done[i] = ast.Name(name, ast.Load())
            done.append(new)
        return done


def _meets(statement: ast.stmt) -> bool:
    return any(
        isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id.startswith("@")
        for n in ast.walk(statement)
    )


def _is_type(value: Any) -> bool:
    return isinstance(value, numba_types.Type) or type(value) in (int, float, bool, complex)


def _is_open(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value in (None, ...)


def _called(name: str, array: ast.expr, first: ast.expr, second: ast.expr | None, site: int) -> Any:
    arguments = [array, first, *([] if second is None else [second])]
    rest = [parsed("_m"), ast.Constant(site), parsed(PLACE)]
    return ast.Call(ast.Name(name, ast.Load()), [copy.deepcopy(a) for a in arguments] + rest, [])


def item_bytes(kind: Any) -> int:
    from numba.core.registry import cpu_target

    context: Any = cpu_target.target_context
    return int(context.get_abi_sizeof(context.get_data_type(kind)))
