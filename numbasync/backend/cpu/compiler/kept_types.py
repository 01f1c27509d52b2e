"""Types of variables that are kept from one region to the next.

Numba gives each value of a name a type of its own, and one type to values that meet. A name is
kept in one place per thread, which has one type. That is right where all values that are read in
another region than they were written in have it, or are read there only where they become it
anyway, by meeting others. A name whose values differ there has no place.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

from numba.core import ir

from numbasync.backend.cpu.compiler.names import UntranslatableError, user_name
from numbasync.backend.cpu.library.entry_points import types

SEAM = "_seam"  # a variable that is assigned between two regions


@dataclass(frozen=True)
class Clash:
    """A name that has no one type.

    Attributes:
        kinds: its types, each with the line of the generated code that first gives it.
    """

    kinds: tuple[tuple[Any, int], ...]

    def refuse(self, name: str, why: str, origins: dict[int, ast.stmt]) -> NoReturn:
        """Raise an error that says where the name gets its types.

        Args:
            why: why it must have one.
            origins: the user's statements, by their lines in the generated code.
        """
        name = user_name(name)
        statements = [origins.get(line) for _, line in self.kinds]
        lines = [getattr(s, "lineno", 0) for s in statements]
        parts = [
            f"{numba_type}, line {line}" if line else str(numba_type)
            for (numba_type, _), line in zip(self.kinds, lines, strict=True)
        ]
        last = max(zip(lines, range(len(lines)), strict=True))[1]
        raise UntranslatableError(
            f"{name or 'a value'}, which is of several types ({'; '.join(parts)}) {why} (give each "
            f"value a name of its own, such as {name}_{len(parts)} for the {self.kinds[last][0]})",
            statements[last],
        )


@dataclass
class KeptTypes:
    """The types of the names of a function.

    Attributes:
        kinds: the type of each name, or a `Clash`.
        unsure: names of several types that have no value on some path, with these.
        origins: see `Clash.refuse`.
    """

    kinds: dict[str, Any]
    unsure: dict[str, Clash]
    origins: dict[int, ast.stmt] = field(default_factory=dict)

    def has_clashes(self) -> bool:
        return bool(self.unsure) or any(isinstance(k, Clash) for k in self.kinds.values())


def kept_types(
    code: Any, types_of_values: dict[str, Any], context: Any, are_widths_seen: bool
) -> KeptTypes:
    """The types of the names of a function.

    Args:
        code: Numba's code of it, in which each value has a name of its own.
        types_of_values: Numba's types of these.
        context: the typing context.
        are_widths_seen: whether it has functions for which an int32 is not the same as an int64;
            for arithmetic it is, and is kept as one, as in `i = cuda.threadIdx.x` and `i = i + 1`.
    """
    values: dict[str, dict[str, tuple[Any, int]]] = {}
    for block in code.blocks.values():
        for statement in block.find_insts(ir.Assign):
            target = statement.target
            if target.name in types_of_values:
                numba_type = types.unliteral(types_of_values[target.name])
                own = values.setdefault(target.name.partition(".")[0], {})
                own[target.name] = numba_type, statement.loc.line
    kept = KeptTypes({}, {})
    uses: _Uses | None = None
    for name, own in values.items():
        several = {t for t, _ in own.values()}
        if len(several) == 1:
            kept.kinds[name] = next(iter(several))
            continue
        if name.startswith("$"):
            continue
        if all(isinstance(t, types.Array) for t in several):  # whose layouts differ
            kept.kinds[name] = next(t for t, _ in own.values())
            continue
        uses = uses or _Uses(code)
        if types.int64 in several and not are_widths_seen:
            own = {v: (types.int64 if t == types.int32 else t, line)
                   for v, (t, line) in own.items()}  # fmt: skip
        kept.kinds[name] = _type_of_place(own, uses, context)
        if uses.may_be_undefined(own):
            kept.unsure[name] = _clash(own.values())
    return kept


def _clash(kinds: Iterable[tuple[Any, int]]) -> Clash:
    by_type: dict[Any, int] = {}
    for numba_type, line in sorted(kinds, key=lambda kind: kind[1]):
        by_type.setdefault(numba_type, line)
    return Clash(tuple(by_type.items()))


def _type_of_place(own: dict[str, tuple[Any, int]], uses: _Uses, context: Any) -> Any:
    crossing: list[tuple[Any, Any]] = []  # types of a value, and of what it is read as
    for value, (numba_type, _) in own.items():
        met = uses.behind_seams(value)
        crossing += [(numba_type, numba_type if phi is None else own[phi][0]) for phi in met]
    candidates = [t for pair in crossing for t in pair] or [t for t, _ in own.values()]
    for place in dict.fromkeys(candidates):
        # A value that nobody reads is put there, too.
        if all(place in pair for pair in crossing) and all(
            t == place or (_is_plain(t) and context.can_convert(t, place) is not None)
            for t, _ in own.values()
        ):
            return place
    return _clash(own.values())


def _is_plain(numba_type: Any) -> bool:
    return isinstance(numba_type, types.Number | types.Boolean | types.BaseTuple)


class _Uses:
    """Where the values of a function are read."""

    def __init__(self, code: Any) -> None:
        self._blocks = code.blocks
        self._before: dict[int, list[int]] = {}
        # Of each value: the block and the number of statements in it before the reading one, and
        # the value that it becomes, if others meet it there.
        self._of: dict[str, list[tuple[int, int, str | None]]] = {}
        self._undefined: set[str] = set()
        for label, block in code.blocks.items():
            for target in block.terminator.get_targets():
                self._before.setdefault(target, []).append(label)
            for at, statement in enumerate(block.body):
                self._see(label, at, statement)

    def _see(self, label: int, at: int, statement: Any) -> None:
        value: Any = getattr(statement, "value", None)
        if not (isinstance(value, ir.Expr) and value.op == "phi"):
            stored = statement.target.name if isinstance(statement, ir.Assign) else ""
            for used in statement.list_vars():
                if used.name != stored:
                    self._of.setdefault(used.name, []).append((label, at, None))
            if value is ir.UNDEFINED:
                self._undefined.add(stored)
            return
        target = statement.target.name
        for incoming, origin in zip(value.incoming_values, value.incoming_blocks, strict=True):
            if incoming is ir.UNDEFINED:
                self._undefined.add(target)
            else:
                end = len(self._blocks[origin].body)
                self._of.setdefault(incoming.name, []).append((origin, end, target))

    def may_be_undefined(self, values: Iterable[str]) -> bool:
        """Whether a thread may come to a place where these values meet without one of them."""
        return not self._undefined.isdisjoint(values)

    def behind_seams(self, value: str) -> Iterator[str | None]:
        """The reading of a value in another region than it was given in: what it becomes there,
        and None if it is read as itself.
        """
        for label, at, phi in self._of.get(value, []):
            if self._is_behind_seam(value, label, at):
                yield phi

    def _is_behind_seam(self, value: str, label: int, at: int) -> bool:
        seen: set[int] = set()
        waiting = [(label, at)]
        while waiting:
            label, at = waiting.pop()
            for statement in reversed(self._blocks[label].body[:at]):
                if isinstance(statement, ir.Assign):
                    if statement.target.name == value:
                        break
                    if statement.target.name.partition(".")[0] == SEAM:
                        return True
            else:
                for before in self._before.get(label, []):
                    if before not in seen:
                        seen.add(before)
                        waiting.append((before, len(self._blocks[before].body)))
        return False
