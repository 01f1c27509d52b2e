"""Privatised variables: one element per thread in the block's memory, from region to region."""

from __future__ import annotations

import ast
import copy
import functools
from collections import Counter
from typing import Any

from numbasync.backend.cpu.compiler.control_flow import assigned, expression
from numbasync.backend.cpu.compiler.kept_types import Clash, KeptTypes
from numbasync.backend.cpu.compiler.names import UntranslatableError, user_name
from numbasync.backend.cpu.compiler.program import MOST_THREADS, Program, item_bytes
from numbasync.backend.cpu.compiler.uniformity import Uniform, is_extent, names
from numbasync.backend.cpu.library import entry_points
from numbasync.backend.cpu.library.entry_points import types


class PerThreadVariables:
    """Places of privatised variables and of masks in the block's memory.

    Args:
        kept: Numba's types of the variables.
    """

    def __init__(self, program: Program, uniform: Uniform, kept: KeptTypes) -> None:
        self._program = program
        self._uniform = uniform
        self._variable_types = kept.kinds
        self._origins = kept.origins
        self._masks = 0
        self._places: dict[str, str] = {}
        self._accesses: dict[Any, tuple[str, str]] = {}
        self._own_arrays: dict[str, ast.Assign | UntranslatableError] = {}

    def _place_of(self, name: str) -> str:
        """The address of a variable's values."""
        if name not in self._places:
            self._places[name] = self._reserve(self._type_of(name))
        return self._places[name]

    def _reserve(self, numba_type: Any) -> str:
        return f"_m + {self._program.take(item_bytes(numba_type) * MOST_THREADS)}"

    def _access(self, numba_type: Any) -> tuple[str, str]:
        """The names of the functions that load and store such a value."""
        if numba_type not in self._accesses:
            load, store = entry_points.element_of(numba_type)
            self._accesses[numba_type] = (
                self._program.bind(load, "load"), self._program.bind(store, "store")
            )  # fmt: skip
        return self._accesses[numba_type]

    def _load(self, name: str) -> ast.stmt:
        load, _ = self._access(self._type_of(name))
        return assigned(name, f"{load}({self._place_of(name)}, _t)")

    def _save(self, name: str, value: str = "") -> ast.stmt:
        _, store = self._access(self._type_of(name))
        return expression(f"{store}({self._place_of(name)}, _t, {value or name})")

    def _array(self, name: str) -> str:
        """A variable's values as an array."""
        make = self._program.bind(
            entry_points.array_at((MOST_THREADS,), self._type_of(name)), "array"
        )
        return f"{make}({self._place_of(name)})"

    # --- masks ---

    def _new_mask(self) -> str:
        self._masks += 1
        name = f"_a{self._masks}"
        self._variable_types[name] = types.boolean
        return name

    def _is_in(self, mask: str) -> str:
        load, _ = self._access(types.boolean)
        return f"{load}({self._place_of(mask)}, _t)"

    def _type_of(self, name: str) -> Any:
        numba_type: Any = self._variable_types.get(name)
        if isinstance(numba_type, Clash):
            why = "and kept across a barrier, where a variable has one"
            numba_type.refuse(name, why, self._origins)
        parts = list(numba_type) if isinstance(numba_type, types.BaseTuple) else [numba_type]
        if all(isinstance(p, types.Number | types.Boolean) for p in parts):
            return numba_type
        raise UntranslatableError(
            f"{user_name(name)}, a {numba_type} that is used across a barrier (keep its "
            "numbers in variables of their own)",
            self._first(name),
        )

    def _is_local_array(self, name: str) -> bool:
        return isinstance(self._variable_types.get(name), types.Array)

    # --- arrays ---

    def _array_definitions(self, arrays: set[str]) -> list[ast.Assign]:
        """The statements that create threads' own arrays and views, in the order of their needs."""
        definitions: dict[str, ast.Assign] = {}

        def add(name: str) -> None:
            if name not in definitions:
                statement = self._own_array(name)
                for other in sorted(names(statement.value, ast.Load)):
                    if self._is_local_array(other) and other in self._uniform.varying:
                        add(other)
                definitions[name] = statement

        for name in sorted(arrays):
            add(name)
        return list(definitions.values())

    @staticmethod
    def _arrays_of(definitions: list[ast.Assign]) -> set[str]:
        return {n for s in definitions for n in names(s.targets, ast.Store)}

    def _needed_for(self, variables: set[str]) -> set[str]:
        """The variables that create threads' arrays among these, if the arrays are used again."""
        arrays = {n for n in variables & self._uniform.varying if self._is_local_array(n)}
        try:
            definitions = self._array_definitions(arrays)
        except UntranslatableError:  # which does not matter unless they are privatised
            return set()
        return {n for s in definitions for n in names(s.value, ast.Load)}

    def _own_array(self, name: str) -> ast.Assign:
        """The statement that creates a thread's own array; run again, it gives the same array."""
        if name not in self._own_arrays:
            try:
                self._own_arrays[name] = self._that_makes(name)
            except UntranslatableError as error:
                self._own_arrays[name] = error
        definition = self._own_arrays[name]
        if isinstance(definition, UntranslatableError):
            raise definition
        return copy.deepcopy(definition)

    def _that_makes(self, name: str) -> ast.Assign:
        made = [
            s
            for each in self._program.body
            for s in ast.walk(each)
            if isinstance(s, ast.Assign) and name in names(s.targets, ast.Store)
        ]
        if len(made) == 1:  # none, if it is what a loop goes through
            value = made[0].value
            is_own = isinstance(value, ast.Call) and self._uniform.is_pure(value.func)
            if is_own or self._is_steady_view(made[0], name):
                return made[0]
        raise UntranslatableError(
            f"{user_name(name)}, a view that is used across a barrier (create it again after the "
            "barrier, under a name of its own)",
            made[-1] if made else self._first(name),
        )

    def _first(self, name: str) -> ast.AST | None:
        """The first statement that assigns to a variable."""
        nodes = (n for s in self._program.body for n in ast.walk(s))
        stores = ast.Assign | ast.AugAssign | ast.For
        return next(
            (n for n in nodes if isinstance(n, stores)
             and name in names(getattr(n, "targets", [getattr(n, "target", n)]), ast.Store)),
            None,
        )  # fmt: skip

    def _is_steady_view(self, statement: ast.Assign, name: str) -> bool:
        """Whether it is a part of an array, by indices that do not change, which is used only
        where its statement has been run.
        """
        value = statement.value
        calls = {ast.unparse(n.func) for n in ast.walk(value) if isinstance(n, ast.Call)}
        subscripts = [
            n for n in ast.walk(value) if isinstance(n, ast.Subscript) and not is_extent(n)
        ]
        is_part = isinstance(value, ast.Name) or subscripts == [value]
        is_view = is_part and calls <= {"_axis", "_check", "_seen", "_at_literal", "_i32"}
        body = self._program.body
        home = _home_of(statement, body)
        everywhere = _uses(name, body)
        return (
            is_view and home is not None and _uses(name, home) == everywhere
            and all(self._is_steady(n) for n in names(value, ast.Load))
        )  # fmt: skip

    def _is_steady(self, name: str) -> bool:
        """Whether a variable is assigned once at most, and in no loop."""
        return name not in self._unsteady

    @functools.cached_property
    def _unsteady(self) -> set[str]:
        nodes = [n for s in self._program.body for n in ast.walk(s)]
        loops = [n for n in nodes if isinstance(n, ast.For | ast.While)]
        stores = Counter(
            n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        )
        return {n for n in stores if stores[n] > 1} | names(loops, ast.Store)


def _home_of(wanted: ast.stmt, statements: list[ast.stmt]) -> list[ast.stmt] | None:
    """The list that a statement is in, if that is in no loop."""
    for statement in statements:
        if statement is wanted:
            return statements
        if isinstance(statement, ast.If):
            block = _home_of(wanted, statement.body) or _home_of(wanted, statement.orelse)
            if block is not None:
                return block
    return None


def _uses(name: str, statements: list[ast.stmt]) -> int:
    return sum(isinstance(n, ast.Name) and n.id == name for s in statements for n in ast.walk(s))
