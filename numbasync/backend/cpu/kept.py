"""What the threads of a block keep between two pieces of their work: an element a thread."""

from __future__ import annotations

import ast
import copy
from typing import Any

from numbasync.backend.cpu import native
from numbasync.backend.cpu.control import assigned, expression
from numbasync.backend.cpu.names import UntranslatableError
from numbasync.backend.cpu.native import types
from numbasync.backend.cpu.program import MOST_THREADS, Program, item_bytes
from numbasync.backend.cpu.uniform import Uniform, names


class Memory:
    """Where variables are kept in the block's memory, and who is there.

    Args:
        kinds: Numba's types of the variables.
    """

    def __init__(self, program: Program, uniform: Uniform, kinds: dict[str, Any]) -> None:
        self._program = program
        self._uniform = uniform
        self._kinds = kinds
        self._masks = 0
        self._places: dict[str, str] = {}
        self._accesses: dict[Any, tuple[str, str]] = {}

    def _place_of(self, name: str) -> str:
        """The address of a variable's values."""
        if name not in self._places:
            self._places[name] = self._room(self._kind(name))
        return self._places[name]

    def _room(self, kind: Any) -> str:
        return f"_m + {self._program.take(item_bytes(kind) * MOST_THREADS)}"

    def _access(self, kind: Any) -> tuple[str, str]:
        """The names of the functions that load and store such a value."""
        if kind not in self._accesses:
            load, store = native.element_of(kind)
            self._accesses[kind] = (
                self._program.bind(load, "load"), self._program.bind(store, "store")
            )  # fmt: skip
        return self._accesses[kind]

    def _load(self, name: str) -> ast.stmt:
        load, _ = self._access(self._kind(name))
        return assigned(name, f"{load}({self._place_of(name)}, _t)")

    def _save(self, name: str, value: str = "") -> ast.stmt:
        _, store = self._access(self._kind(name))
        return expression(f"{store}({self._place_of(name)}, _t, {value or name})")

    def _array(self, name: str) -> str:
        """A variable's values as an array."""
        make = self._program.bind(native.array_at((MOST_THREADS,), self._kind(name)), "array")
        return f"{make}({self._place_of(name)})"

    # --- who is there ---

    def _new_mask(self) -> str:
        self._masks += 1
        name = f"_a{self._masks}"
        self._kinds[name] = types.boolean
        return name

    def _is_in(self, mask: str) -> str:
        load, _ = self._access(types.boolean)
        return f"{load}({self._place_of(mask)}, _t)"

    def _kind(self, name: str) -> Any:
        kind: Any = types.unliteral(self._kinds[name]) if name in self._kinds else None
        parts = list(kind) if isinstance(kind, types.BaseTuple) else [kind]
        if all(isinstance(p, types.Number | types.Boolean) for p in parts):
            return kind
        raise UntranslatableError(
            f"{name.rpartition('_')[0]}, a {kind}, which is kept over a meeting"
        )

    def _is_local_array(self, name: str) -> bool:
        return isinstance(self._kinds.get(name), types.Array)

    def _own_array(self, name: str) -> ast.Assign:
        """The statement that makes a thread's own array: done again, it gives the same one."""
        made = [
            s
            for each in self._program.body
            for s in ast.walk(each)
            if isinstance(s, ast.Assign) and name in names(s.targets, ast.Store)
        ]
        value = made[0].value
        is_own = isinstance(value, ast.Call) and self._uniform.is_pure(value.func)
        if len(made) != 1 or not is_own:
            raise UntranslatableError(f"{name.rpartition('_')[0]}, a view, kept over a meeting")
        return copy.deepcopy(made[0])
