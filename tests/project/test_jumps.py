"""Jumps back inside of `with` statements of locks, which CPython 3.12 and later leaves uncovered.

A loop that ends with a condition, `while condition:` or `for ...: if condition: ...`, ends with a
jump for which its exception table names no handler. CPython looks for signals there: ^C would
leave the lock taken. `while True: if not condition: break`, and `if not condition: continue`, are
covered.
"""

from __future__ import annotations

import ast
import dis
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

import numbasync

PACKAGE = Path(str(numbasync.__file__)).parent
LOCKS = re.compile(r"lock|door|state|changed|_starting|_freeing|condition", re.I)


def functions(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from functions(constant)


def uncovered(code: CodeType) -> Iterator[int]:
    """The lines of jumps back to what a `with` statement covers, which it does not cover."""
    steps = {step.offset: step for step in dis.get_instructions(code)}
    bytecode: Any = dis.Bytecode(code)
    entries: list[Any] = bytecode.exception_entries
    after = dict(zip(steps, list(steps)[1:], strict=False))

    def covering(offset: int) -> set[int]:
        found: set[int] = {e.target for e in entries if e.start <= offset < e.end}
        return {t for t in found if steps[after.get(t, t)].opname == "WITH_EXCEPT_START"}

    for step in steps.values():
        if step.opname == "JUMP_BACKWARD" and covering(step.argval) - covering(step.offset):
            yield (step.positions and step.positions.lineno) or code.co_firstlineno


def left_taken(text: str) -> list[int]:
    """The lines of a module's text that may leave a lock taken."""
    tree = ast.parse(text)
    withs = [node for node in ast.walk(tree) if isinstance(node, ast.With)]
    locks = [n for n in withs if LOCKS.search(" ".join(ast.unparse(i) for i in n.items))]
    lines = [line for code in functions(compile(tree, "", "exec")) for line in uncovered(code)]
    return [x for x in lines if any(n.body[0].lineno <= x <= (n.end_lineno or 0) for n in locks)]


pytestmark = pytest.mark.skipif(sys.version_info < (3, 12), reason="CPython 3.11 covers every jump")


def test_a_condition_ending_a_loop_is_found() -> None:
    loop = "def f(lock, x):\n    with lock:\n        while {}:\n            {}x()"
    assert left_taken(loop.format("x", "")) == [3]
    assert left_taken(loop.format("True", "if not x: break\n            ")) == []


def test_no_locked_loop_ends_with_a_condition() -> None:
    found = {
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in PACKAGE.rglob("*.py")
        for line in left_taken(path.read_text())
    }
    assert not found, "write `while True: if not ...: break`, or `if not ...: continue`"
