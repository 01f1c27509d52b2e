"""Calls of a program's own functions: of device functions, and of those defined in a function.

A function is inlined where it is called if it has a barrier, if it is passed functions, or if it is
defined in another function, whose variables it then reads and writes as they are at that moment.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Sequence
from typing import Any

import numpy as np

from numbasync.backend.cpu.compiler.array_rules import array_function, surely_compiles
from numbasync.backend.cpu.compiler.control_flow import single_exit
from numbasync.backend.cpu.compiler.evaluation_order import written_out
from numbasync.backend.cpu.compiler.instrument import Instrumented
from numbasync.backend.cpu.compiler.names import (
    MISSING,
    Closure,
    Signatures,
    UntranslatableError,
    is_reassigned,
)
from numbasync.backend.cpu.compiler.program import ALL, Call, parsed
from numbasync.backend.cpu.library.entry_points import types as numba_types
from numbasync.backend.cpu.library.small_floats import known


class Calls(Instrumented):
    """Expressions, with calls of functions.

    Attributes:
        node: the function's definition.
    """

    node: ast.FunctionDef
    _translation: Any
    _result: str | None
    _tuples: dict[str, int]  # lengths of parameters with a star

    def _within(
        self, function: types.FunctionType, bound: dict[str, Any], closure: Closure | None
    ) -> Calls:
        """The writer of a function that is inlined into this one."""
        raise NotImplementedError

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        """A function's statements."""
        raise NotImplementedError

    def _device(
        self, node: ast.Call, function: types.FunctionType, signatures: Signatures = ()
    ) -> Any:
        definition, _ = self._translation.source(function)
        passes_functions = any(_is_function(self._scope.resolve(a)) for a in node.args)
        has_barriers = self._translation.has_barriers(function)
        is_apart = not (has_barriers or passes_functions or self._translation.needs_types(function))
        if is_apart and definition.args.vararg is None:
            name = self._translation.device(function, signatures)
            arguments = self._in_order(node.args)
            if node.keywords:
                raise UntranslatableError(
                    f"keywords in a call of {function.__name__} (pass them by position)", node
                )
            first = parsed(f"({ALL})") if self._in_kernel else ast.Name("_c", ast.Load())
            return ast.Call(ast.Name(name, ast.Load()), [first, *arguments], [])
        if not self._in_kernel and has_barriers:
            raise UntranslatableError("a barrier in a function that is compiled by itself", node)
        defaults = (function.__defaults__ or ())[::-1]
        names = [a.arg for a in [*definition.args.posonlyargs, *definition.args.args]][::-1]
        return self._written_out(
            node, definition, function, dict(zip(names, defaults, strict=False)), signatures
        )

    def _inner(self, node: ast.Call, closure: Closure) -> Any:
        definition = closure.node
        names = [a.arg for a in [*definition.args.posonlyargs, *definition.args.args]][::-1]
        defaults = {
            name: _written(value, closure)
            for name, value in zip(names, definition.args.defaults[::-1], strict=False)
        }
        if MISSING in defaults.values():
            raise UntranslatableError("a default that is computed", definition)
        return self._written_out(
            node, definition, closure.scope.function, defaults, closure=closure
        )

    def _written_out(
        self, node: ast.Call, definition: ast.FunctionDef, function: types.FunctionType,
        defaults: dict[str, Any], signatures: Signatures = (), closure: Closure | None = None,
    ) -> Any:  # fmt: skip
        """The function's statements in front, with its parameters as variables; of those that
        are passed constants or functions, these.
        """
        written = function, definition.lineno  # its source is read anew each time
        if written in self._translation.writing:
            raise UntranslatableError(f"{definition.name}, which calls itself", node)
        names, rest = self._parameters(definition, node)
        passed_by_name = dict(zip(names, node.args, strict=False))
        passed_by_name |= {k.arg: k.value for k in node.keywords if k.arg is not None}
        known = {name: self._scope.constant(value) for name, value in passed_by_name.items()}
        bound = {
            name: value
            for name, value in known.items()
            if value is not MISSING and not is_reassigned(name, definition)
        }
        passed = [name for name in passed_by_name if name not in bound]
        types_of_passed = {name: self._scope.type_of(passed_by_name[name]) for name in passed}
        values = self._in_order([passed_by_name[name] for name in passed] + rest)
        arguments = dict(zip(passed, values, strict=False))
        for name, value in defaults.items():
            if name not in passed_by_name:
                arguments[name] = ast.Name(self._program.bind(value, "default"), ast.Load())
        if set(arguments) | set(bound) != set(names):
            raise UntranslatableError(f"a call of {definition.name} with other arguments", node)
        if len(signatures) > 1:
            raise UntranslatableError("a barrier in a function of several signatures", node)
        declared, result = signatures[0] if signatures else ((), None)
        for name, numba_type in zip(names, declared, strict=bool(signatures)):
            if name in arguments:
                arguments[name] = self._cast(arguments[name], numba_type)
        inner = self._within(function, bound, closure)
        inner._scope.parameter_types = types_of_passed
        if closure is None and self._translation.has_barriers(function):
            inner._scope.call = Call(self._function, node.lineno)
        star = definition.args.vararg
        if star is not None:
            arguments[star.arg] = ast.Tuple(values[len(passed) :], ast.Load())
            inner._tuples[star.arg] = len(rest)
        for name, value in arguments.items():
            target = ast.Name(inner._own(name), ast.Store())
            self._before.append(ast.Assign([target], value))
        number = self._program.number()
        inner._result = f"_r{number}"
        self._translation.writing.append(written)
        try:
            body = inner.block(definition.body)
        finally:
            self._translation.writing.pop()
        outside = any(isinstance(n, ast.Nonlocal) for n in ast.walk(definition))
        body = single_exit(body, f"_left_{number}")
        self._before += written_out(self._program, body, outside)
        returns = [n for n in ast.walk(definition) if isinstance(n, ast.Return)]
        if not any(n.value is not None for n in returns):
            return ast.Constant(None)
        return self._cast(ast.Name(inner._result, ast.Load()), result)

    @staticmethod
    def _parameters(
        definition: ast.FunctionDef, node: ast.Call
    ) -> tuple[list[str], list[ast.expr]]:
        """Names of parameters, and what is passed to the one with a star."""
        arguments = definition.args
        names = [a.arg for a in [*arguments.posonlyargs, *arguments.args]]
        rest = node.args[len(names) :]
        if (
            arguments.kwarg
            or arguments.kwonlyargs
            or (rest and arguments.vararg is None)
            or any(isinstance(a, ast.Starred) for a in node.args)
        ):
            raise UntranslatableError(f"a call of {definition.name} with other arguments", node)
        return names, rest

    def _cast(self, value: ast.expr, numba_type: Any) -> Any:
        """`value` as a declared type of number."""
        if not isinstance(numba_type, numba_types.Number | numba_types.Boolean):
            return value
        own = known(numba_type)
        return self._call(getattr(own, "of", own), [value])

    # --- as values ---

    def _global(self, node: ast.expr, value: Any, name: str) -> Any:
        if isinstance(value, Closure):
            return ast.Name(self._translation.by_itself(value, self._program), ast.Load())
        return super()._global(node, value, name)

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        return self._global(node, self._scope.resolve(node), "a lambda")

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        star = self.node.args.vararg
        if (
            star is not None
            and star.arg in self._scope.own
            and isinstance(node.value, ast.Name)
            and node.value.id == star.arg
            and isinstance(node.slice, ast.Constant)
        ):
            node.value = self.visit(node.value)
            return node  # of a tuple, which is looked at when it is compiled
        return super().visit_Subscript(node)

    # --- stars ---

    def visit_Call(self, node: ast.Call) -> Any:
        node.args = [part for a in node.args for part in self._unpacked(a)]
        callee = self._scope.resolve(node.func)
        is_array = array_function(callee) is not None
        # Processors compare numbers of more types; of two see `arithmetic.larger`.
        is_order = (callee is min or callee is max) and len(node.args) != 2
        if is_order or (is_array and not surely_compiles(node, self._scope)):
            self._program.doubtful.append(self._text_with_types(node))
        return super().visit_Call(node)

    def _text_with_types(self, call: ast.Call) -> str:
        """The definition of the function around a call, and the types of names in the call."""
        names = sorted({n.id for n in ast.walk(call) if isinstance(n, ast.Name)})
        types_of_names = [f"{name}: {type(self._scope.find(name))}" for name in names]
        definition, _ = self._translation.source(self._function)
        return "\n".join([ast.unparse(definition), *types_of_names])

    def _unpacked(self, node: ast.expr) -> Sequence[ast.expr]:
        """What a `*name` stands for, if it is known how many those are."""
        if not isinstance(node, ast.Starred) or not isinstance(node.value, ast.Name):
            return [node]
        count = self._length(node.value.id)
        if count is None:
            return [node]
        return [
            ast.copy_location(
                ast.Subscript(ast.Name(node.value.id, ast.Load()), ast.Constant(i), ast.Load()),
                node,
            )
            for i in range(count)
        ]

    def _length(self, name: str) -> int | None:
        outer = self._scope.outer
        if outer is not None and name not in self._scope.own:
            length: int | None = outer.owner._length(name)
            return length
        return None if is_reassigned(name, self.node) else self._tuples.get(name)


def _written(default: ast.expr, closure: Closure) -> Any:
    """The value of a default; MISSING if it is computed."""
    try:
        return ast.literal_eval(default)
    except ValueError:
        return closure.scope.constant(default)


def _is_function(value: Any) -> bool:
    """Whether Numba could not pass it as a value."""
    if value is MISSING or isinstance(value, (int, float, complex, str, bytes, np.generic)):
        return False
    is_number_type = isinstance(value, type) and issubclass(value, np.generic)
    return isinstance(value, Closure) or (callable(value) and not is_number_type)
