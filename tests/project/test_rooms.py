"""What the upper subpackages import of those below that is not public: names that another change
below may break. There are to be fewer of them, and never more.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import numbasync as na
from numbasync import extending

PACKAGE = Path(str(na.__file__)).parent
# How many there are now. Whoever needs fewer writes the new number.
MOST = {
    "batch": 30, "tuning": 10, "testing": 26, "collective": 17, "dask": 3, "tools": 6, "graphs": 35,
    "algorithms": 5, "timeline": 7, "ray": 1, "serve": 1,
}  # fmt: skip
# The ground that every subpackage stands on.
GROUND = frozenset({
    "arguments", "block", "cache_folder", "driver_results", "dtypes", "errors", "extending", "fork",
    "layout", "memo", "native", "notebook", "public", "tensor_cores", "threads", "vectors", "warp",
})  # fmt: skip


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """The modules of this package that a file imports from, and the names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("numbasync."):
            for alias in node.names:
                yield str(node.module), alias.name
        elif isinstance(node, ast.ImportFrom) and node.module == "numbasync":
            for alias in node.names:
                yield "numbasync", alias.name


def public() -> set[tuple[str, str]]:
    """What `numbasync` and `numbasync.extending` have, by the modules that it comes from."""
    return {*imports(PACKAGE / "__init__.py"), *imports(Path(str(extending.__file__)))}


def is_private(room: str, module: str, name: str, known: set[tuple[str, str]]) -> bool:
    if module == "numbasync":
        return name.split(".")[0] not in {*GROUND, *dir(na), room}
    top = module.split(".")[1]
    if top in {*GROUND, room} or (module, name) in known:
        return False
    return module != f"numbasync.{top}" or top not in dir(na)


def private(room: str) -> set[tuple[str, str]]:
    """The names of other subpackages that one imports and that are not public."""
    known = public()
    return {
        (module, name)
        for path in (PACKAGE / room).rglob("*.py")
        for module, name in imports(path)
        if is_private(room, module, name, known)
    }


@pytest.mark.parametrize("room", MOST)
def test_a_room_has_no_more_private_names(room: str) -> None:
    found = private(room)
    assert len(found) <= MOST[room], sorted(found)
    assert len(found) == MOST[room], f"fewer: write {room!r}: {len(found)}"


def test_a_private_name_is_found() -> None:
    known = public()
    assert is_private("batch", "numbasync.device.access", "record_read", known)
    assert not is_private("batch", "numbasync.ops.op", "DeviceOp", known)
    assert not is_private("batch", "numbasync.batch.run", "state", known)
    assert is_private("batch", "numbasync", "device", known)
