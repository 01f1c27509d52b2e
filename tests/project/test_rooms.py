"""What the upper subpackages import of those below that is not public: names that a change below
may break. There are to be fewer of them, and never more.
"""

from __future__ import annotations

import ast
from dataclasses import fields

import pytest

from tests import rooms

# How many there are now. Whoever needs fewer writes the new number.
MOST = {
    "batch": 0, "tuning": 0, "testing": 0, "collective": 0, "dask": 0, "tools": 2, "graphs": 26,
    "algorithms": 7, "timeline": 6, "ray": 1, "serve": 0,
}  # fmt: skip
TEXT = '''"""Two lines

of a docstring."""

# a comment
from numbasync.device.access import is_busy  # another one


def f():
    """One line."""
    return 1
'''


@pytest.fixture(scope="module")
def private() -> dict[str, int]:
    return rooms.private(rooms.now())


@pytest.mark.parametrize("room", MOST)
def test_a_room_has_no_more_private_names(private: dict[str, int], room: str) -> None:
    found = private[room]
    assert found <= MOST[room]
    assert found == MOST[room], f"fewer: write {room!r}: {found}"


def test_a_private_name_is_found() -> None:
    known = rooms.public()
    assert rooms.is_private("batch", "numbasync.device.access", "is_busy", known)
    assert rooms.is_private("batch", "numbasync.ops.elsewhere", "where_it_belongs", known)
    assert not rooms.is_private("batch", "numbasync.device.access", "record_read", known)
    assert not rooms.is_private("batch", "numbasync.facts.source", "captured", known)
    assert not rooms.is_private("batch", "numbasync.ops.op", "DeviceOp", known)
    assert not rooms.is_private("batch", "numbasync.batch.run", "state", known)
    assert rooms.is_private("batch", "numbasync", "device", known)


def test_a_source_is_counted() -> None:
    assert rooms.parts(TEXT) == (2, 4, 4)
    sources = {
        "numbasync/batch/x.py": TEXT, "tests/batch/test_x.py": "1\n2\n", "tests/y.py": "1\n",
        "numbasync/x.py": "from numbasync.batch import x\n",
    }  # fmt: skip
    found = rooms.count(sources)
    assert found["root"] == rooms.Room(1, 1, 1, private=1)
    room = found.pop("batch")
    assert room == rooms.Room(1, 11, 3, 2, 4, tests=2, importers=1, private=1)
    grown = {"batch": rooms.Room(2, 15, 3, 2, 4, 2, 1, 0)}
    first, second, last = rooms.table(grown, {"batch": room}).split("\n")
    assert first.split() == [field.name for field in fields(rooms.Room)]
    assert second.split()[:5] == ["batch", "2", "(+1)", "15", "(+4)"]
    assert last.split()[-2:] == ["0", "(-1)"] and last.startswith("together")


def test_what_a_module_offers_is_described() -> None:
    """Each name of an `__all__`: by its docstring, or, of a constant, by the comment above it."""
    missing, found = [], 0
    for path, text in rooms.now().items():
        if not path.startswith("numbasync/") or "__all__" not in text:
            continue
        tree, there, lines = ast.parse(text), set[str](), text.split("\n")
        names = rooms.offered(tree)
        for node in tree.body:
            if isinstance(node, ast.ImportFrom | ast.Try):  # described where it is imported from
                there |= {
                    a.asname or a.name for n in ast.walk(node) for a in getattr(n, "names", ())
                }
                continue
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                name, is_described = node.name, ast.get_docstring(node) is not None
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
                above, line = lines[node.lineno - 2 : node.lineno]
                name, is_described = ast.unparse(target), above.startswith("#") or "  # " in line
            else:
                continue
            found += name in names
            there |= {name} if name not in names or is_described else set()
        missing += [f"{path}: {name}" for name in sorted(names - there)]
    assert found > 40 and missing == []
