"""What `dir()` shows: what a user may use, and nothing of how it is made."""

from __future__ import annotations

import ast
import inspect
from types import ModuleType
from typing import Any

import pytest

import numbasync as na
from numbasync import testing

LAZY = {"CommandBatch", "elementwise", "testing"}


def public(module: ModuleType) -> set[str]:
    """The names that a module's text makes public: `from x import y as y`, and its own."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom):
            found |= {a.name for a in node.names if a.asname == a.name}
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
    return {name for name in found if not name.startswith("_")}


@pytest.mark.parametrize("module", [na, testing])
def test_dir_shows_the_public_names(module: Any) -> None:
    shown = set(dir(module)) - {"__version__"}
    assert shown == public(module)
    for name in shown:
        assert getattr(module, name) is not None
        exec(f"from {module.__name__} import {name}", {})


def test_what_is_loaded_later_is_shown() -> None:
    assert set(dir(na)) >= LAZY | {"errors", "Stream", "__version__"}
    assert na.testing is testing
    with pytest.raises(AttributeError, match="no attribute 'tenser'"):
        _ = na.tenser
