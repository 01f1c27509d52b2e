"""Expressions of a kernel, translated for Numba's CPU compiler."""

from __future__ import annotations

import ast
import copy
import types
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda
from numba.core.errors import TypingError

from numbasync.backend.cpu.compiler import vector_calls
from numbasync.backend.cpu.compiler.cuda_names import (
    ATOMICS,
    AXES,
    BARRIERS,
    GRID_BARRIER,
    INSTEAD,
    NOTHING,
    THIS_GRID,
    function,
)
from numbasync.backend.cpu.compiler.evaluation_order import Parts
from numbasync.backend.cpu.compiler.extensions import Intrinsic, has_typing, intrinsic_of
from numbasync.backend.cpu.compiler.local_arrays import array_expression, layout_array
from numbasync.backend.cpu.compiler.names import (
    MISSING,
    Closure,
    Scope,
    Signatures,
    UntranslatableError,
    declared_types,
    device_function,
    element_type,
)
from numbasync.backend.cpu.compiler.overloads import is_inlined, is_overloaded
from numbasync.backend.cpu.compiler.program import PLACE, Program, parsed
from numbasync.backend.cpu.compiler.vector_calls import VECTORS
from numbasync.backend.cpu.library import arithmetic, atomics, vector_types
from numbasync.backend.cpu.library.entry_points import types as numba_types
from numbasync.backend.cpu.library.small_floats import SmallFloat
from numbasync.backend.shared_layout import SharedLayout
from numbasync.errors import KernelCompileError

_REFUSED = (
    ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Await, ast.Yield,
    ast.YieldFrom, ast.JoinedStr, ast.List, ast.Dict, ast.Set, ast.NamedExpr,
)  # fmt: skip


class Expressions(Parts):
    """Translates the expressions of one function."""

    def __init__(
        self, program: Program, function: types.FunctionType, scope: Scope, number: int,
        in_kernel: bool,
    ) -> None:  # fmt: skip
        super().__init__(program)
        self._function = function
        self._scope = scope
        self._number = number
        self._in_kernel = in_kernel
        scope.owner = self

    def _own(self, name: str) -> str:
        """The name of a variable in generated code; the enclosing function names its own."""
        outer = self._scope.outer
        if outer is not None and name not in self._scope.own:
            name_there: str = outer.owner._own(name)
            return name_there
        return f"{name}_{self._number}"

    def _device(
        self, node: ast.Call, function: types.FunctionType, signatures: Signatures = ()
    ) -> Any:
        """A call of a device function."""
        raise NotImplementedError

    def _inner(self, node: ast.Call, closure: Closure) -> Any:
        """A call of a function that is defined in another one."""
        raise NotImplementedError

    # --- names ---

    def visit_Name(self, node: ast.Name) -> Any:
        if self._is_grid(node):
            raise UntranslatableError("a grid group as a value (call g.sync() itself)", node)
        if node.id in self._scope.locals:
            node.id = self._own(node.id)
            return node
        return self._global(node, self._scope.find(node.id), node.id)

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        owner = self._scope.resolve(node.value)
        if isinstance(owner, type) and owner in AXES and node.attr in "xyz":
            return parsed(f"_i32({AXES[owner]}{node.attr})")
        if isinstance(owner, SharedLayout):
            return layout_array(self._program, owner, node)
        value = self._scope.resolve(node)
        if value is not MISSING:
            return self._global(node, value, node.attr)
        node.value = self.visit(node.value)
        return node

    def _global(self, node: ast.expr, value: Any, name: str) -> Any:
        if value is cuda.laneid:
            return parsed("_i32((_tx + _wx * (_ty + _wy * _tz)) & 31)")
        if value is cuda.warpsize:
            return parsed("_i32(32)")
        if value is MISSING:
            raise UntranslatableError(f"the name {name}", node)
        if isinstance(value, types.MethodDescriptorType):  # such as `float.hex`, and no value's
            what = f"Unknown attribute '{name}' of type class({value.__objclass__.__name__})"
            raise KernelCompileError(
                f"kernel {self._program.name} cannot be compiled: {what}, line {node.lineno}"
            ) from TypingError(what)
        if (
            isinstance(value, types.ModuleType | Closure | SharedLayout)
            or device_function(value) is not None
        ):
            raise UntranslatableError(f"{name} as a value", node)
        module = getattr(value, "__module__", None) or ""
        if isinstance(module, str) and module.startswith("numba.cuda") and not _is_type(value):
            raise UntranslatableError(f"cuda.{name}{INSTEAD.get(name, '')}", node)
        if isinstance(value, Intrinsic):
            value = intrinsic_of(value)
        is_of_users = not module.startswith(("numpy", "numba", "builtins"))
        if isinstance(value, types.FunctionType | type) and is_of_users and not has_typing(value):
            if isinstance(value, types.FunctionType) and not is_overloaded(value):
                raise UntranslatableError(f"{name}, which is no device function", node)
            self._program.has_inlined |= is_inlined(value)
        if isinstance(value, np.ndarray):
            value = self._program.frozen(value)
        small = element_type(value.dtype) if isinstance(value, np.ndarray | np.generic) else None
        if isinstance(small, SmallFloat):
            return self._small_float(value, small)
        return ast.copy_location(ast.Name(self._program.bind(value, name), ast.Load()), node)

    def _small_float(self, value: Any, small: SmallFloat) -> Any:
        """A constant of float16 or bfloat16, which Numba does not have."""
        is_number = isinstance(value, np.generic)
        same = np.float32(value) if is_number else self._program.as_bits(value)
        name = ast.Name(self._program.bind(same, "half"), ast.Load())
        call = self._call(small.of if is_number else small.of_bits, [name])
        self._program.pure.add(call.func.id)
        return call

    # --- elements ---

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        base, index = node.value, node.slice
        text = ast.unparse(base)
        created_here = self._is_array(base)
        new = self.visit(base)
        if isinstance(index, ast.Constant) and not created_here:
            is_number = isinstance(index.value, int)
            if is_number and isinstance(node.ctx, ast.Load) and not is_extents(base):
                # The type of a tuple's item depends on its index.
                site = self._program.site(self._function, node, text)
                node.value = called("_at_literal", new, index, None, site)
                return node
            if not is_number or isinstance(node.ctx, ast.Load):
                node.value = new
                return node
        has_name = isinstance(new, ast.Name)
        if not has_name and isinstance(node.ctx, ast.Store):
            held = f"_h{self._program.number()}"
            self._before.append(ast.Assign([ast.Name(held, ast.Store())], new))
            new, has_name = ast.Name(held, ast.Load()), True
        site = self._program.site(self._function, node, text)
        if isinstance(index, ast.Tuple):
            parts = [self.visit(e) for e in index.elts]
            plain = not any(is_open(e) for e in index.elts)
            if has_name:
                for axis, part in enumerate(parts):
                    if isinstance(part, ast.Slice):
                        continue
                    if is_open(part):
                        break  # the axes of later indices depend on the array
                    parts[axis] = called("_axis", new, ast.Constant(axis), part, site)
                node.value, node.slice = new, ast.Tuple(parts, ast.Load())
                return node
            if plain and not any(isinstance(e, ast.Slice) for e in parts):
                return called("_get", new, ast.Tuple(parts, ast.Load()), None, site)
            node.value, node.slice = new, ast.Tuple(parts, ast.Load())
            return node
        if isinstance(index, ast.Slice):
            node.value, node.slice = new, self.visit(index)
            return node
        at = self.visit(index)
        if has_name:
            node.value, node.slice = new, called("_check", new, at, None, site)
            return node
        return called("_get", new, at, None, site)

    def _is_array(self, base: ast.expr) -> bool:
        """Whether a name is certainly an array, and no tuple: one that the function creates."""
        if not isinstance(base, ast.Name):
            return False
        creation = self._scope._constants.get(base.id)
        called = creation.func if isinstance(creation, ast.Call) else None
        return called is not None and self._scope.resolve(called) in (
            cuda.shared.array,
            cuda.local.array,
        )

    # --- calls ---

    def visit_Call(self, node: ast.Call) -> Any:
        callee = self._scope.resolve(node.func)
        if callee is MISSING:
            return self._method(node)
        if isinstance(callee, Closure):
            return self._inner(node, callee)
        handler = self._special(callee)
        if handler is not None:
            if any(isinstance(a, ast.Starred) for a in node.args):
                raise UntranslatableError(
                    "a star in a call of a function of cuda or math (write each argument)", node
                )
            return handler(node)
        inner = device_function(callee)
        if inner is not None:
            return self._device(node, inner, declared_types(callee))
        function = self._global(node.func, callee, getattr(callee, "__name__", "f"))
        keywords = [ast.keyword(k.arg, self.visit(k.value)) for k in node.keywords]
        return ast.Call(function, self._in_order(node.args), keywords)

    def _special(self, callee: Any) -> Callable[[ast.Call], Any] | None:
        try:
            hash(callee)
        except TypeError:
            return None
        if callee in BARRIERS:
            return lambda node: self._barrier(node, *BARRIERS[callee])
        if callee is cuda.grid or callee is cuda.gridsize:
            return lambda node: self._grid(node, callee is cuda.grid)
        if callee in (cuda.shared.array, cuda.local.array):
            shared = callee is cuda.shared.array
            per_thread = not shared and self._in_kernel and self._program.has_barriers
            return lambda node: array_expression(
                self._program, self._scope, node, shared, per_thread
            )
        if callee is cuda.const.array_like:
            return lambda node: self.visit([*node.args, *(k.value for k in node.keywords)][0])
        if callee in NOTHING:
            return lambda node: ast.copy_location(ast.Constant(None), node)
        if callee is cuda.lanemask_lt:
            name = self._program.bind(np.uint32, "u32")
            lane = "((_tx + _wx * (_ty + _wy * _tz)) & 31)"
            return lambda node: parsed(f"{name}((1 << {lane}) - 1)")
        if callee in ATOMICS:
            return lambda node: self._atomic(node, ATOMICS[callee])
        if callee is cuda.atomic.cas:
            return lambda node: self._atomic(node, atomics.atomic_cas)
        if callee is cuda.atomic.compare_and_swap:
            return self._compare_and_swap
        if callee is round:
            return self._round
        if callee in VECTORS:
            return lambda node: self._vector_access(node, *VECTORS[callee])
        if callee in vector_types.CONSTRUCTORS:
            return lambda node: self._vector(node, vector_types.CONSTRUCTORS[callee])
        replacement = function(callee)
        if replacement is not None:
            return lambda node: self._renamed(node, callee, replacement)
        return None

    def _vector(self, node: ast.Call, construct: Any) -> Any:
        return self._call(construct, [ast.Tuple(self._in_order(node.args), ast.Load())])

    def _vector_access(self, node: ast.Call, name: str, parameters: tuple[str, str, str]) -> Any:
        array, *rest = vector_calls.arguments(self._program, self._scope, node, parameters)
        site = self._program.site(self._function, node, ast.unparse(array))
        array, index, last = self._in_order([array, *rest])
        return vector_calls.of_any_site(called(name, array, index, last, site))

    def _round(self, node: ast.Call) -> Any:
        arguments = self._in_order([*node.args, *(k.value for k in node.keywords)])
        return self._call(round if len(arguments) == 1 else arithmetic.rounded_to, arguments)

    def _renamed(self, node: ast.Call, callee: Any, function: Any) -> Any:
        arguments = self._in_order(node.args)
        if node.keywords:
            raise UntranslatableError("keywords of a function of cuda or math", node)
        if callee in (min, max) and len(arguments) != 2:
            # A GPU has an instruction for two floats; the items of a tuple, and more than two, are
            # compared one after the other, as Numba does everywhere.
            return self._call(callee, arguments)
        return self._call(function, arguments)

    def _call(self, function: Any, arguments: list[ast.expr]) -> Any:
        name = self._program.bind(function, getattr(function, "__name__", "f"))
        return ast.Call(ast.Name(name, ast.Load()), arguments, [])

    def _method(self, node: ast.Call) -> Any:
        """A call of a method, such as `array.sum`; Numba decides which methods exist."""
        if isinstance(node.func, ast.Attribute) and self._is_grid(node.func.value):
            if node.func.attr != "sync":
                raise UntranslatableError(f"the method {node.func.attr} of a grid", node)
            return self._append_barrier(node, GRID_BARRIER, "sync of the grid")
        if not isinstance(node.func, ast.Attribute):
            raise UntranslatableError(
                "a call of a function that is computed (call it by its name)", node
            )
        if node.func.attr == "bit_count" and not node.args:
            return self._call(arithmetic.popc, [self.visit(node.func.value)])
        return self.generic_visit(node)

    def _grid(self, node: ast.Call, position: bool) -> Any:
        count = self._scope.constant(node.args[0]) if len(node.args) == 1 else MISSING
        if count not in (1, 2, 3):
            raise UntranslatableError("cuda.grid of something else than 1, 2 or 3", node)
        form = "(_natural(_b{0} * _w{0}) + _t{0})" if position else "(_g{0} * _w{0})"
        axes = [form.format(a) for a in "xyz"[:count]]
        return parsed(axes[0] if count == 1 else f"({', '.join(axes)})")

    def _atomic(self, node: ast.Call, function: Any) -> Any:
        if len(node.args) < 3 or node.keywords:
            raise UntranslatableError("an atomic operation with keywords", node)
        site = self._program.site(self._function, node, ast.unparse(node.args[0]))
        array, index, *values = (self.visit(a) for a in node.args)
        return self._atomic_at(self._held(array), index, values, function, site)

    def _compare_and_swap(self, node: ast.Call) -> Any:
        site = self._program.site(self._function, node, ast.unparse(node.args[0]))
        array, *values = (self.visit(a) for a in node.args)
        cas = atomics.atomic_cas
        return self._atomic_at(self._held(array), ast.Constant(0), values, cas, site)

    def _atomic_at(
        self, array: ast.expr, index: ast.expr, values: list[Any], function: Any, site: int
    ) -> Any:
        return self._call(function, [array, called("_check", array, index, None, site), *values])

    def _held(self, value: ast.expr) -> Any:
        """A variable with the value, which is used twice."""
        if isinstance(value, ast.Name):
            return value
        name = f"_h{self._program.number()}"
        self._before.append(ast.Assign([ast.Name(name, ast.Store())], value))
        return ast.Name(name, ast.Load())

    # --- barriers ---

    def _is_grid(self, node: ast.expr) -> bool:
        """Whether an expression is a grid of `cuda.cg.this_grid()`, or its name."""
        creation = self._scope._constants.get(node.id) if isinstance(node, ast.Name) else node
        return isinstance(creation, ast.Call) and self._scope.resolve(creation.func) is THIS_GRID

    def _barrier(self, node: ast.Call, name: str, whole_block: bool) -> Any:
        what = next(k for k, v in BARRIERS.items() if v[0] == name).__name__
        return self._append_barrier(node, name, f"cuda.{what}")

    def _append_barrier(self, node: ast.Call, name: str, what: str) -> Any:
        if not self._in_kernel:
            raise UntranslatableError("a barrier in a function that is compiled by itself", node)
        arguments = [self.visit(a) for a in node.args]
        if node.keywords:
            raise UntranslatableError("keywords of a function of cuda", node)
        site = self._program.site(self._function, node, what)
        return self._hoisted(
            ast.Call(ast.Name(name, ast.Load()), [ast.Constant(site), *arguments], [])
        )

    def _hoisted(self, call: ast.expr) -> Any:
        result = f"_r{self._program.number()}"
        self._before.append(ast.Assign([ast.Name(result, ast.Store())], call))
        return ast.Name(result, ast.Load())

    # --- what is refused ---

    def generic_visit(self, node: ast.AST) -> Any:
        if isinstance(node, _REFUSED):
            raise UntranslatableError(f"a {type(node).__name__}", node)
        return super().generic_visit(node)


def _is_type(value: Any) -> bool:
    return isinstance(value, numba_types.Type) or type(value) in (int, float, bool, complex)


def is_extents(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in ("shape", "strides")


def is_open(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value in (None, ...)


def called(
    name: str, array: ast.expr, first: ast.expr | None, second: ast.expr | None, site: int
) -> Any:
    """A call that also says where it is."""
    arguments = [copy.deepcopy(a) for a in (array, first, second) if a is not None]
    rest = [parsed("_m"), ast.Constant(site), parsed(PLACE)]
    return ast.Call(ast.Name(name, ast.Load()), arguments + rest, [])
