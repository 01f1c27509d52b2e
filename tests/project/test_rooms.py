"""What the upper subpackages import of those below that is not public: names that a change below
may break. There are to be fewer of them, and never more.
"""

from __future__ import annotations

import ast

import pytest

from tests import rooms

# How many there are now. Whoever needs fewer writes the new number.
MOST = {
    "batch": 30, "tuning": 10, "testing": 28, "collective": 17, "dask": 3, "tools": 7, "graphs": 35,
    "algorithms": 5, "timeline": 7, "ray": 1, "serve": 1,
}  # fmt: skip
TEXT = '''"""Two lines

of a docstring."""

# a comment
from numbasync.device.access import record_read  # another one


def f():
    """One line."""
    return 1
'''


@pytest.fixture(scope="module")
def counted() -> dict[str, rooms.Room]:
    return rooms.count(rooms.now())


@pytest.mark.parametrize("room", MOST)
def test_a_room_has_no_more_private_names(counted: dict[str, rooms.Room], room: str) -> None:
    found = counted[room].private
    assert found <= MOST[room]
    assert found == MOST[room], f"fewer: write {room!r}: {found}"


def test_a_private_name_is_found() -> None:
    known = rooms.public()
    assert rooms.is_private("batch", "numbasync.device.access", "record_read", known)
    assert not rooms.is_private("batch", "numbasync.ops.op", "DeviceOp", known)
    assert not rooms.is_private("batch", "numbasync.batch.run", "state", known)
    assert rooms.is_private("batch", "numbasync", "device", known)


def test_a_source_is_counted() -> None:
    assert rooms.parts(TEXT, ast.parse(TEXT)) == (2, 4, 4)
    sources = {"numbasync/batch/x.py": TEXT, "tests/batch/test_x.py": "1\n2\n", "tests/y.py": "1\n"}
    ((name, room),) = rooms.count(sources).items()
    assert (name, room) == ("batch", rooms.Room(1, 11, 3, 2, 4, 2, 1))
    grown = {"batch": rooms.Room(2, 15, 3, 2, 4, 2, 0)}
    first, second, last = rooms.table(grown, {name: room}).split("\n")
    assert first.split() == ["files", "lines", "code", "comments", "docstrings", "tests", "private"]
    assert second.split()[:5] == ["batch", "2", "(+1)", "15", "(+4)"]
    assert last.split()[-2:] == ["0", "(-1)"] and last.startswith("together")
