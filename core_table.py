"""The table of the slots that the compiled core reads, made from the classes when it is compiled.

The core reads an attribute of a class that is `@known` by the place of its slot. In its sources,
`get(op, Launch__form)` is `op._form` of a `Launch`: the names of the class and of the slot, joined
by "_". A class itself is meant by its name, as in `isa(op, Launch)`. The table has an enumerator
for each of these names, and `know` in `core/slots.pxi` finds what they stand for in this process.

So no slot is named twice: one that is renamed or taken away is an undeclared name to Cython. The
numbers of `CONSTANTS`, too, are written in Python only.

    python core_table.py  # shows the table
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import NamedTuple

NAME = "table.pxi"  # as `_core.pyx` includes it
CONSTANTS = {  # by the modules that say them
    "backend/array_attributes.py": ("MOST_QUICK_AXES",),
    "backend/executables.py": ("VECTOR_BYTES",),
    "device/foreign_streams.py": ("LEGACY",),
    "device/in_flight.py": ("LOOK_EVERY", "MAX_UNSIGNALLED"),
    "device/loop_turns.py": ("MOST_FINISHED",),
    "device/storage.py": ("GRANULE", "MANY_READERS"),
    "device/waits.py": ("BESIDE_S", "SLICE_S"),
    "tensors/quick_import.py": ("MOST_KINDS",),
}
LATER = ("cuda", "runtime", "kernel", "collective")  # folders that `import numbasync` may leave out


class Slots(NamedTuple):
    """A class: its own slots, the names of its bases, whether it is known, and when, and the
    folder of the package that has it.
    """

    own: tuple[str, ...]
    bases: tuple[str, ...]
    is_known: bool
    is_imported_later: bool
    room: str


def table(package: Path) -> str:
    """The table, as Cython, of the package in this folder."""
    classes = _classes(package)
    sources = "".join(path.read_text() for path in sorted(package.glob("core/*.pxi")))
    words = set(re.findall(r"\w+", sources))
    known = sorted(name for name, found in classes.items() if found.is_known)
    read = {name: _read(name, classes, words) for name in known}
    places = [f"{name}_{slot}" for name, slots in read.items() for slot in slots]
    later = {n for n in known if classes[n].is_imported_later}
    lines = ["# Made by core_table.py.", "cdef enum:"]
    lines += [f"    {name}" for name in [*known, "CLASSES"]]
    lines += ["cdef enum:", *(f"    {place}" for place in [*places, "PLACES"])]
    lines.append("cdef dict wanted = {  # slots, by class; both in the order of the enumerators")
    lines += [f"    {name!r}: {tuple(slots)!r}," for name, slots in read.items()]
    lines += ["}", f"IMPORTED_LATER = {set(later)!r}" if later else "IMPORTED_LATER = set()"]
    for path, names in CONSTANTS.items():
        body = ast.parse((package / path).read_text()).body
        for name in names:
            lines.append(_constant(name, body))
    return "\n".join(lines) + "\n"


def rooms(package: Path) -> dict[str, dict[str, int]]:
    """By the package's folder, the known classes in it, with how many slots the core reads."""
    classes = _classes(package)
    sources = "".join(path.read_text() for path in sorted(package.glob("core/*.pxi")))
    words = set(re.findall(r"\w+", sources))
    found: dict[str, dict[str, int]] = {}
    for name in sorted(classes):
        if classes[name].is_known:
            read = len(_read(name, classes, words))
            found.setdefault(classes[name].room, {})[name] = read
    return found


def _read(name: str, classes: dict[str, Slots], words: set[str]) -> list[str]:
    """The slots of a class that the core's sources name."""
    return [slot for slot in _slots(name, classes) if f"{name}_{slot}" in words]


def _classes(package: Path) -> dict[str, Slots]:
    """The classes of the package that have slots, by name."""
    found: dict[str, Slots] = {}
    for path in sorted(package.rglob("*.py")):
        text = path.read_text()
        if "__slots__" not in text and "slots=True" not in text and "@known" not in text:
            continue
        is_imported_later = path.parent.name in LATER
        room = path.relative_to(package).parts[0]
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                decorators = {ast.unparse(d) for d in node.decorator_list}
                bases = tuple(ast.unparse(b).partition("[")[0] for b in node.bases)
                is_known = "known" in decorators
                entry = Slots(_own(node), bases, is_known, is_imported_later, room)
                if entry.is_known or node.name not in found:
                    found[node.name] = entry
    return found


def _own(node: ast.ClassDef) -> tuple[str, ...]:
    """The slots that a class declares: `__slots__`, or the fields of a dataclass."""
    for statement in node.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__slots__":
            names = ast.literal_eval(statement.value)
            return (names,) if isinstance(names, str) else tuple(names)
    return tuple(ast.unparse(s.target) for s in node.body if isinstance(s, ast.AnnAssign))


def _slots(name: str, classes: dict[str, Slots]) -> list[str]:
    """The slots of a class and its bases."""
    if name not in classes:
        return []
    found = classes[name]
    inherited = [slot for base in found.bases for slot in _slots(base, classes)]
    return list(dict.fromkeys([*inherited, *found.own]))


def _constant(name: str, body: list[ast.stmt]) -> str:
    """The declaration of a constant of a module."""
    for statement in body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == name:
            value = eval(ast.unparse(statement.value), {})  # noqa: S307 - of numbers
            if isinstance(value, float):
                return f"cdef double {name} = {value!r}"
            return f"cdef enum:\n    {name} = {value}"
    raise KeyError(f"{name} is not in its module: see CONSTANTS in {__file__}")


if __name__ == "__main__":
    sys.stdout.write(table(Path(__file__).with_name("numbasync")))
