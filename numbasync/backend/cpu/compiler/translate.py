"""A kernel's source as source of Numba's CPU compiler: one thread's part of the work.

The hidden variables of a thread are `_tx` to `_tz` (its index in the block), `_bx` to
`_bz`, `_wx` to `_wz` (threads of a block) and `_gx` to `_gz` (blocks), all 64-bit; `_m` is the
address of the block's memory, which begins with the record of `entry_points`, and `_d` the size of
the dynamic shared memory. Variables of the kernel get a number, so no name is taken.

A barrier is left as a call of a `@name`, which `barrier_regions` replaces. A device function with a
barrier is inlined at its call; others become functions of their
own, which take the variables above as their first argument.
"""

from __future__ import annotations

import ast
import copy
import types
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from numbasync.backend.cpu.compiler import checked_elements
from numbasync.backend.cpu.compiler.calls import Calls
from numbasync.backend.cpu.compiler.control_flow import assigned, before_breaks
from numbasync.backend.cpu.compiler.cuda_names import THIS_GRID, is_barrier
from numbasync.backend.cpu.compiler.names import (
    MISSING,
    Closure,
    InnerScope,
    Scope,
    Signatures,
    UntranslatableError,
    array_arguments,
    device_function,
    is_array_function,
    is_reassigned,
)
from numbasync.backend.cpu.compiler.program import (
    ALL,
    HIDDEN,
    PLACE,
    Call,
    GpuTypes,
    Program,
    parsed,
)
from numbasync.backend.cpu.compiler.vector_calls import is_vector_access
from numbasync.backend.cpu.library import entry_points
from numbasync.backend.cpu.library.entry_points import types as numba_types
from numbasync.backend.cpu.library.source import definition, of_lambda
from numbasync.backend.cpu.races import recorder
from numbasync.backend.kernel_source import why_no_source

_FILE = "file"  # of a statement: where it was written
_STATEMENTS = (
    ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.If, ast.While, ast.For, ast.Return,
    ast.Pass, ast.Break, ast.Continue, ast.Raise, ast.Assert, ast.FunctionDef, ast.Nonlocal,
)  # fmt: skip


def translate(
    kernel: types.FunctionType,
    argument_types: Sequence[Any] = (),
    checked: bool = False,
    array_shapes: GpuTypes | None = None,
) -> Program:
    """The kernel's program.

    Args:
        argument_types: Numba's types of its arguments, of which arrays that it makes may be.
        checked: see `Program.checked`.
        array_shapes: see `Program.array_shapes`.

    Raises:
        UntranslatableError: it has something that this engine does not know.
    """
    program = Program(kernel.__name__, checked=checked, array_shapes=array_shapes)
    program.names.update(
        _i32=np.int32, _check=entry_points.check, _axis=entry_points.check_axis,
        _get=entry_points.get,
        _at_literal=entry_points.at_literal, _sure=entry_points.sure,
        _stop=entry_points.stop, _note=entry_points.note, _natural=entry_points.natural,
    )  # fmt: skip
    program.names.update(recorder.NAMES if checked else checked_elements.NAMES)
    translation = _Translation(program)
    program.has_barriers = translation.has_barriers(kernel)
    node, _ = translation.source(kernel)
    bound = {
        name: numba_type.literal_value
        for name, numba_type in zip(kernel.__code__.co_varnames, argument_types, strict=False)
        if isinstance(numba_type, numba_types.Literal) and not is_reassigned(name, node)
    }
    function = _Function(translation, kernel, in_kernel=True, bound=bound)
    program.parameters = function.parameters
    function.know(argument_types)
    program.body = function.block(function.node.body)
    return program


class _Translation:
    """State that the functions of one program share."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._barrier_functions: dict[types.FunctionType, bool] = {}
        self._needs_types: dict[types.FunctionType, bool] = {}
        self._made: dict[Hashable, str] = {}
        self._sources: dict[types.FunctionType, tuple[ast.FunctionDef, Scope]] = {}
        self.writing: list[Hashable] = []  # the functions that are being inlined

    def has_barriers(self, function: types.FunctionType) -> bool:
        """Whether a function, or one that it calls, has a barrier."""
        known = self._barrier_functions.get(function)
        if known is not None:
            return known
        self._barrier_functions[function] = False
        node, scope = self.source(function)
        for each in ast.walk(node):
            if not isinstance(each, ast.Call):
                continue
            callee = scope.resolve(each.func)
            inner = device_function(callee)
            self.program.has_vectors |= is_vector_access(callee)
            if callee is THIS_GRID:
                self.program.cooperative = self._barrier_functions[function] = True
            if is_barrier(callee) or (inner is not None and self.has_barriers(inner)):
                self._barrier_functions[function] = True
        return self._barrier_functions[function]

    def needs_types(self, function: types.FunctionType) -> bool:
        """Whether a device function, or one that it calls, makes arrays whose elements are of the
        type of its arguments'.
        """
        known = self._needs_types.get(function)
        if known is None:
            self._needs_types[function] = False
            node, scope = self.source(function)
            calls = [n for n in ast.walk(node) if isinstance(n, ast.Call)]
            known = self._needs_types[function] = any(self._asks(scope, call) for call in calls)
        return known

    def _asks(self, scope: Scope, call: ast.Call) -> bool:
        callee = scope.resolve(call.func)
        inner = device_function(callee)
        if inner is not None:
            return self.needs_types(inner)
        return (
            is_array_function(callee)
            and scope.constant(array_arguments(call).get("dtype")) is MISSING
        )

    def source(self, function: types.FunctionType) -> tuple[ast.FunctionDef, Scope]:
        """Its definition and its names, to be read and not to be changed."""
        if function not in self._sources:
            self._sources[function] = self._read(function)
        return self._sources[function]

    @staticmethod
    def _read(function: types.FunctionType) -> tuple[ast.FunctionDef, Scope]:
        if function.__code__.co_name == "<lambda>":
            node = of_lambda(function)
        else:
            source = definition(function)
            node = None if source is None else source[1]
        if node is None:
            raise UntranslatableError(why_no_source(function))
        if node.args.kwonlyargs and not function.__code__.co_kwonlyargcount:
            # Of a kernel, which has been given them as positional ones.
            node = copy.copy(node)
            node.args = copy.copy(node.args)
            node.args.args = node.args.args + node.args.kwonlyargs
            node.args.kwonlyargs, node.args.kw_defaults = [], []
        return node, Scope(function, node)

    def device(self, function: types.FunctionType, signatures: Signatures = ()) -> str:
        """The name of a device function, which is made when it is first called."""
        name = self._made.get((function, signatures))
        if name is None:
            name = f"_{function.__name__.strip('<>')}_{self.program.number()}f"
            self._made[function, signatures] = name
            if signatures:
                self.program.declared[name] = signatures
            writer = _Function(self, function, in_kernel=False)
            writer._scope.call = Call(None, 0)
            body = writer.block(writer.node.body)
            head = ast.parse(f"{ALL} = _c").body
            if not self.program.checked:
                body = checked_elements.shortened(body)
                head += checked_elements.where(body)
            tree = ast.FunctionDef(
                name, ast.arguments([], [ast.arg("_c"), *map(ast.arg, writer.parameters)], None, [],
                                    [], None, writer.defaults()),
                [*head, *body], [], None, None,
            )  # fmt: skip
            self.program.functions.append(ast.unparse(ast.fix_missing_locations(tree)))
        return name

    def by_itself(self, closure: Closure, program: Program) -> str:
        """The name of a function that another one defines and passes on as a value: one of its
        arguments and of constants alone, as Numba has them.
        """
        node, outer = closure.node, closure.scope
        if node.args.defaults or any(isinstance(n, ast.Nonlocal) for n in ast.walk(node)):
            raise UntranslatableError(f"{node.name} as a value", node)
        used = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        free = (used & outer.locals) - InnerScope(closure, {}).own
        bound = {n: outer.constant(ast.Name(n, ast.Load())) for n in free}
        writer = _Function(self, outer.function, False, bound, closure, True)
        body = writer.block(node.body)
        star = node.args.vararg
        tree = ast.FunctionDef(
            f"_inner_{program.number()}f",
            ast.arguments([], [*map(ast.arg, writer.parameters)],
                          star and ast.arg(writer._own(star.arg)), [], [], None, []),
            body, [], None, None,
        )  # fmt: skip
        hidden = {n.id for s in body for n in ast.walk(s) if isinstance(n, ast.Name)}
        if MISSING in bound.values() or hidden & {*HIDDEN, "_c"}:
            raise UntranslatableError(f"{node.name} as a value", node)
        program.functions.append(ast.unparse(ast.fix_missing_locations(tree)))
        return tree.name


class _Function(Calls):
    """One function's statements; what an expression needs done before it is put in front."""

    def __init__(
        self,
        translation: _Translation,
        function: types.FunctionType,
        in_kernel: bool,
        bound: dict[str, Any] | None = None,
        closure: Closure | None = None,
        is_written_out: bool = False,
    ) -> None:
        self._translation = translation
        scope: Scope
        if closure is None:
            self.node = copy.deepcopy(translation.source(function)[0])
            scope = Scope(function, self.node, bound)
        else:
            self.node = closure.node
            scope = InnerScope(closure, bound or {})
        number = translation.program.number()
        super().__init__(translation.program, function, scope, number, in_kernel)
        arguments = self.node.args
        is_open = arguments.vararg and not is_written_out
        if is_open or arguments.kwarg or arguments.kwonlyargs:
            raise UntranslatableError("parameters with a star", self.node)
        self._arguments = [a.arg for a in [*arguments.posonlyargs, *arguments.args]]
        self.parameters = [self._own(a) for a in self._arguments]
        self._result: str | None = None
        self._tuples: dict[str, int] = {}

    def know(self, argument_types: Sequence[Any]) -> None:
        """Take Numba's types of its arguments."""
        self._scope.parameter_types = dict(zip(self._arguments, argument_types, strict=False))

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
            name = type(statement).__name__.lower()
            hint = " (write if and elif)" if isinstance(statement, ast.Match) else ""
            raise UntranslatableError(f"a `{name}` statement{hint}", statement)
        outer, self._before = self._before, []
        file = self._function.__code__.co_filename
        setattr(statement, _FILE, file)
        try:
            statements = self._lowered(statement)
            return [*self._before, *statements]
        except UntranslatableError as error:
            error.file = error.file or file
            raise
        finally:
            self._before = outer

    def _lowered(self, statement: ast.stmt) -> list[ast.stmt]:
        match statement:
            case ast.If() if isinstance(holds := self._scope.constant(statement.test), int):
                # As for a GPU: what a constant leaves out need not fit the types.
                return self.block(statement.body if holds else statement.orelse)
            case ast.If():
                statement.test = self.visit(statement.test)
                statement.body = self.block(statement.body)
                statement.orelse = self.block(statement.orelse) if statement.orelse else []
            case ast.While():
                before, self._before = self._before, []
                statement.test = self.visit(statement.test)
                first, self._before = self._before, before
                if first:
                    end = ast.UnaryOp(ast.Not(), statement.test)
                    first.append(ast.If(end, [ast.Break()], []))
                    statement.test = ast.Constant(True)
                return self._loop(statement, first)
            case ast.For():
                statement.iter = self.visit(statement.iter)
                statement.target = self.visit(statement.target)
                return self._loop(statement, [])
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
            case ast.AnnAssign(target=ast.Name(), value=None):
                return []
            case ast.AnnAssign():
                if statement.value is None or not isinstance(statement.target, ast.Name):
                    raise UntranslatableError("an annotation without a value", statement)
                plain = ast.Assign([statement.target], statement.value)
                return self._lowered(ast.copy_location(plain, statement))
            case ast.FunctionDef(decorator_list=[_, *_]):
                raise UntranslatableError("a decorator in a kernel", statement)
            case ast.FunctionDef() | ast.Nonlocal() | ast.Assign(value=ast.Lambda()):
                return []  # it is inlined where it is called
            case ast.Assign() if self._is_grid(statement.value):
                return []  # it stands for nothing that there is
            case ast.Assign() if self._program.checked:
                return self._assigned(statement)
            case ast.AugAssign() if self._program.checked:
                return self._added(statement)
            case _:
                return [self.generic_visit(statement)]
        return [statement]

    def _loop(self, loop: ast.For | ast.While, first: list[ast.stmt]) -> list[ast.stmt]:
        """A loop, each round of which begins with `first`. An `else` becomes a condition."""
        body = self.block(loop.body)
        if not loop.orelse:
            loop.body = [*first, *body]
            return [loop]
        flag = f"_h{self._program.number()}"
        otherwise = ast.If(ast.Name(flag, ast.Load()), self.block(loop.orelse), [])
        loop.body, loop.orelse = [*first, *before_breaks(body, assigned(flag, "False"))], []
        return [assigned(flag, "True"), loop, otherwise]

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
        # An inlined function only assigns its result.
        if value is None:
            return [ast.Return()]
        return [ast.Assign([ast.Name(self._result, ast.Store())], value), ast.Return()]

    def _within(
        self, function: types.FunctionType, bound: dict[str, Any], closure: Closure | None
    ) -> Calls:
        return _Function(self._translation, function, self._in_kernel, bound, closure, True)
