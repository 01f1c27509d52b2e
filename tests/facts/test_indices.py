"""Indices that are certainly not negative: which ones are found, and that none of them ever is."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda, float32

from numbasync.facts.indices import mark
from numbasync.facts.source import SOURCE_ATTR, find_definition

TILE = 16
BELOW = -3


def marked(function: Any) -> tuple[list[str], ast.FunctionDef]:
    """The indices that are wrapped, and the definition with them."""
    found = find_definition(function)
    assert found is not None
    tree, definition = found
    count = mark(tree, definition, function, "unsigned")
    calls = [n for n in ast.walk(definition) if isinstance(n, ast.Call)]
    texts = [ast.unparse(c.args[0]) for c in calls if ast.unparse(c.func) == "unsigned"]
    assert len(texts) == count
    return texts, definition


def positions(z: Any, x: Any, n: Any) -> None:
    i = cuda.grid(1)
    j, k = cuda.grid(2)
    t = cuda.threadIdx.x + cuda.blockIdx.x * cuda.blockDim.x
    z[i] = x[j, k] + x[t, cuda.laneid] + x[cuda.threadIdx.y * TILE, 0]
    z[n] = x[n - 1, i - 1] + x[BELOW, -1] + x[i][j]


def extents(z: Any, x: Any, n: Any) -> None:
    rows, columns = x.shape
    for row in range(rows):
        for column in range(cuda.threadIdx.x, columns, cuda.blockDim.x):
            z[row, column] = x[row % 7, column // 2]
    for k in range(len(z) - 1, -1, -1):
        z[k] = x[z.size >> 1]
    for k2 in range(4, -3, -1):
        z[k2] = 1
    for k3 in range(n):
        z[k3] = z[max(n, 0)] + z[min(n, 3)] + z[n & 15] + z[n % 8]


def assigned(z: Any, x: Any, n: Any) -> None:
    i = cuda.grid(1)
    i -= 1
    j = cuda.grid(1)
    j += 2
    k = 0 if n else 1
    low = x[0]
    seed = cuda.grid(1)
    for _ in range(3):
        seed = seed * 1664525 + 1013904223
    half = TILE
    while half > 0:
        z[half] = z[j + half]
        half //= 2
    z[i] = z[j] + z[k] + z[low] + z[seed] + z[seed % 4] + z[j * 2654435761]


def arrays(z: Any, x: Any, n: Any) -> None:
    i = cuda.grid(1)
    s = cuda.shared.array((TILE, TILE), float32)
    own = cuda.local.array(4, float32)
    view = x[i]
    s[i, i + 1] = own[i] + view[i]
    x = z
    z[i] = x[i] + (z, s)[i]


def unknown(z: Any, x: Any, n: Any) -> None:
    """Each operation on numbers of which one, or both, may be negative."""
    i = cuda.grid(1)
    low = x[0]
    z[n & low] = z[i % n] + z[n >> 1] + z[i + n] + z[i * n] + z[i // n] + z[i | n] + z[i ^ n]
    z[i - 1] = z[-i] + z[~i] + z[i << 1] + z[i**2] + z[max(n, -1)] + z[min(i, n)]
    z[i if n else n] = z[abs(low)] + z[int(n)] + z[x.strides[0]] + z[i / 2]
    grown = first = second = i
    while i < 9:  # products that may overflow
        grown = grown * 31 + 7
        first = second + 1
        second = first * 3
        z[grown] = z[first] + z[second]
    for k in range(n, 5):
        z[k] = 1
    for k2 in range(5, n, -1):
        z[k2] = 1


@pytest.mark.parametrize(
    ("function", "indices"),
    [
        (positions, ["i", "j", "k", "t", "cuda.laneid", "cuda.threadIdx.y * TILE", "i"]),
        (extents, ["row", "column", "row % 7", "column // 2", "z.size >> 1", "k3", "max(n, 0)",
                   "n & 15", "n % 8"]),
        (assigned, ["half", "j + half", "j", "k", "seed % 4"]),
        (arrays, ["i", "i", "i + 1", "i", "i", "i"]),
        (unknown, []),
    ],
)  # fmt: skip
def test_the_indices_that_are_found(function: Callable[..., None], indices: list[str]) -> None:
    assert sorted(marked(function)[0]) == sorted(indices)


def test_enclosing_variables() -> None:
    offset, below = 3, -1

    def kernel(z: Any) -> None:
        z[offset] = z[below] + z[later]

    assert marked(kernel)[0] == ["offset"]  # `later` is not assigned yet
    later = 2
    assert sorted(marked(kernel)[0]) == ["later", "offset"]


# --- none of them is ever negative ---

NAMES = ("a", "b", "c")
LEAVES = (
    "cuda.grid(1)", "cuda.threadIdx.x", "x.shape[0]", "len(z)", "n", "0", "3", "-2", "TILE",
    "BELOW", "x[0]", *NAMES,
)  # fmt: skip
OPERATORS = ("+", "-", "*", "//", "%", "&", "|", "^", ">>")


def _combined(parts: Any) -> Any:
    binary = st.tuples(parts, st.sampled_from(OPERATORS), parts).map(
        lambda p: f"({p[0]} {p[1]} ({p[2]} or 1))" if p[1] in ("//", "%") else
        f"({p[0]} >> ({p[2]} & 7))" if p[1] == ">>" else f"({p[0]} {p[1]} {p[2]})"
    )  # fmt: skip
    calls = st.tuples(st.sampled_from(("max", "min")), parts, parts).map(
        lambda p: f"{p[0]}({p[1]}, {p[2]})"
    )
    either = st.tuples(parts, parts, parts).map(lambda p: f"({p[0]} if {p[1]} > 1 else {p[2]})")
    return binary | calls | either


EXPRESSIONS = st.recursive(st.sampled_from(LEAVES), _combined, max_leaves=5)
STATEMENTS = st.one_of(
    st.tuples(st.sampled_from(NAMES), EXPRESSIONS).map(lambda p: f"{p[0]} = {p[1]}"),
    st.tuples(st.sampled_from(NAMES), st.sampled_from("+-*"), EXPRESSIONS).map(
        lambda p: f"{p[0]} {p[1]}= {p[2]}"
    ),
    EXPRESSIONS.map(lambda e: f"z[{e}] = 1"),
    st.tuples(EXPRESSIONS, EXPRESSIONS, st.sampled_from(("1", "2", "-1"))).map(
        lambda p: f"for c in range(({p[0]}) % 9, ({p[1]}) % 9, {p[2]}): z[c] = x[c + a]"
    ),
    st.tuples(st.sampled_from(("-1", "0", "-2")), EXPRESSIONS).map(
        lambda p: f"for b in range(5, {p[0]}, -1): a = {p[1]}; z[b] = z[a]"
    ),
)


class Numbers:
    """Stands for an array; every index is one of it."""

    shape = (5, 4)
    size = 20

    def __init__(self, number: int) -> None:
        self._number = number

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: Any) -> int:
        return self._number

    def __setitem__(self, index: Any, value: Any) -> None: ...


@settings(max_examples=300)
@given(st.lists(STATEMENTS, min_size=1, max_size=8), st.integers(-3, 3), st.integers(0, 6))
def test_no_wrapped_index_is_negative(statements: list[str], n: int, position: int) -> None:
    body = "\n".join(f"    {s}" for s in statements)
    # The loop lets what a turn assigns reach the next.
    looped = textwrap.indent(body, "    ")
    source = f"def kernel(z, x, n):\n    a = b = c = 0\n    for turn in range(3):\n{looped}\n"
    scope: dict[str, Any] = {"cuda": cuda, "TILE": TILE, "BELOW": BELOW}
    exec(source, scope)
    setattr(scope["kernel"], SOURCE_ATTR, source)
    _, definition = marked(scope["kernel"])
    negative: list[int] = []

    def unsigned(index: int) -> int:
        if index < 0:
            negative.append(index)
        return index

    place = SimpleNamespace(x=position)
    fake = SimpleNamespace(grid=lambda _: position + 7, threadIdx=place)
    run: dict[str, Any] = {**scope, "cuda": fake, "unsigned": unsigned}
    exec(ast.unparse(definition), run)
    run["kernel"](Numbers(-4), Numbers(-4), n)
    assert negative == [], source
