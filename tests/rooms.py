"""The subpackages in numbers: files, lines, code, comments, docstrings, tests, modules of others
that import them, and names of others that they use and that are not public.

`python -m tests.rooms` prints them; `python -m tests.rooms REVISION` also the differences to a
revision of git, as CI does for a change.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tarfile
import tokenize
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from functools import cache
from pathlib import Path

import numbasync as na
from numbasync import extending

PACKAGE = Path(str(na.__file__)).parent
ROOT = PACKAGE.parent
# The ground that every subpackage stands on.
GROUND = frozenset({
    "arguments", "block", "cache_folder", "driver_results", "dtypes", "errors", "extending", "fork",
    "intrinsics", "kernel_names", "layout", "memo", "native", "notebook", "public", "tensor_cores",
    "threads", "vectors", "warp",
})  # fmt: skip
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class Room:
    """A subpackage in numbers; `root` is the files beside them."""

    files: int = 0
    lines: int = 0
    code: int = 0
    comments: int = 0
    docstrings: int = 0
    tests: int = 0
    importers: int = 0
    private: int = 0


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """The statements within a node, in any depth. Expressions, most of a tree, are not walked."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield child
            yield from statements(child)


def imports(tree: ast.Module, exported: bool = False) -> Iterator[tuple[str, str]]:
    """The modules of this package that a source imports from, and the names.

    Args:
        exported: only names that the source has for others: `from m import name as name`.
    """
    for node in statements(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "numbasync":
            for alias in node.names:
                if not exported or alias.asname == alias.name:
                    yield str(node.module), alias.name


def offered(tree: ast.Module) -> set[str]:
    """The names in a source's `__all__`: what a module of a lower subpackage has for upper ones."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


def public() -> set[tuple[str, str]]:
    """What `numbasync` and `numbasync.extending` have, by the modules that it comes from; and what
    modules of subpackages name in `__all__`.
    """
    files = PACKAGE / "__init__.py", Path(str(extending.__file__))
    known = {
        found for file in files for found in imports(ast.parse(file.read_text()), exported=True)
    }
    for file in PACKAGE.rglob("*.py"):
        text = file.read_text()
        if "__all__" in text:
            module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
            module = module.removesuffix(".__init__")
            known |= {(module, name) for name in offered(ast.parse(text))}
    return known


def is_private(room: str, module: str, name: str, known: set[tuple[str, str]]) -> bool:
    """Whether a name that a subpackage imports is neither its own, nor the ground's, nor public."""
    if module == "numbasync":
        return name.split(".")[0] not in {*GROUND, *dir(na), room}
    top = module.split(".")[1]
    if top in {*GROUND, room} or (module, name) in known:
        return False
    return module != f"numbasync.{top}" or top not in dir(na)


def room_of(module: str, name: str) -> str:
    """The subpackage that a name is imported from."""
    top = (*module.split(".")[1:], name)[0]
    return top if (PACKAGE / top).is_dir() else "root"


def count(sources: dict[str, str]) -> dict[str, Room]:
    """The numbers of each subpackage, from sources by their paths below the root of the project."""
    rooms: dict[str, Room] = {}
    importers: dict[str, set[str]] = {}
    for path, text in sources.items():
        top, *rest = path.split("/")
        name = rest[0] if len(rest) > 1 else "root"
        if top == "tests":
            if name in rooms or (PACKAGE / name).is_dir():
                rooms.setdefault(name, Room()).tests += text.count("\n")
            continue
        room = rooms.setdefault(name, Room())
        comments, docstrings, blank = parts(text)
        lines = text.count("\n")
        room.files += 1
        room.lines += lines
        room.comments += comments
        room.docstrings += docstrings
        room.code += lines - docstrings - blank
        for of in {room_of(*found) for found in imported(text)} - {name}:
            importers.setdefault(of, set()).add(path)
    for name, number in private(sources).items():
        rooms[name].private = number
        rooms[name].importers = len(importers.get(name, ()))
    return dict(sorted(rooms.items()))


def private(sources: dict[str, str]) -> dict[str, int]:
    """How many names that are not public each subpackage uses of others."""
    used: dict[str, set[tuple[str, str]]] = {}
    known = public()
    for path, text in sources.items():
        top, *rest = path.split("/")
        if top != "tests":
            room = rest[0] if len(rest) > 1 else "root"
            found = {one for one in imported(text) if is_private(room, *one, known)}
            used.setdefault(room, set()).update(found)
    return {room: len(names) for room, names in used.items()}


@cache
def imported(text: str) -> frozenset[tuple[str, str]]:
    """What `imports` finds in a source. Most sources are the same in two revisions."""
    return frozenset(imports(ast.parse(text)))


@cache
def parts(text: str) -> tuple[int, int, int]:
    """Comments; lines of docstrings; lines that are blank or a comment alone, outside of these."""
    inside = set[int]()
    tree = ast.parse(text)
    for node in (tree, *statements(tree)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            inside.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = sum(token.type == tokenize.COMMENT for token in tokens)
    rest = [line.strip() for i, line in enumerate(text.splitlines(), 1) if i not in inside]
    return comments, len(inside), sum(not line or line.startswith("#") for line in rest)


def now() -> dict[str, str]:
    """The sources of package and tests as they are."""
    files = (*PACKAGE.rglob("*.py"), *(ROOT / "tests").rglob("*.py"))
    return {file.relative_to(ROOT).as_posix(): file.read_text() for file in sorted(files)}


def at(revision: str) -> dict[str, str]:
    """Those of a revision."""
    command = ["git", "-C", str(ROOT), "archive", revision, "numbasync", "tests"]
    packed = subprocess.run(command, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        files = [file for file in archive if file.name.endswith(".py")]
        return {file.name: archive.extractfile(file).read().decode() for file in files}  # type: ignore[union-attr]


def table(rooms: dict[str, Room], before: dict[str, Room] | None = None) -> str:
    """The numbers as text; with the differences to other ones, where there are some."""
    names = [field.name for field in fields(Room)]
    rows = [["", *names]]
    whole = {**rooms, "together": together(rooms)}
    whole_before = None if before is None else {**before, "together": together(before)}
    for name in (*sorted({*rooms, *(before or {})}), "together"):
        room = whole.get(name, Room())
        old = room if whole_before is None else whole_before.get(name, Room())
        pairs = zip(astuple(room), astuple(old), strict=True)
        rows.append([name, *(f"{n:,}" + (f" ({n - m:+,})" if n != m else "") for n, m in pairs)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = [(row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])) for row in rows]
    return "\n".join("  ".join(row).rstrip() for row in cells)


def together(rooms: dict[str, Room]) -> Room:
    """The sums."""
    return Room(*(sum(column) for column in zip(*map(astuple, rooms.values()), strict=True)))


if __name__ == "__main__":
    then = count(at(sys.argv[1])) if len(sys.argv) > 1 else None
    print(table(count(now()), then))  # noqa: T201 - a program
