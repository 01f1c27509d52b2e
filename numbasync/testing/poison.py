"""Outputs that hold what no result has, until the kernel writes them.

A kernel that leaves an element out gives the right result wherever that was there before: zeros
of a fresh array, or the last run's. Only what a kernel stores to and never reads is filled, as far
as its source says so: what it reads is part of its arguments.
"""

from __future__ import annotations

import ast
from types import FunctionType

import numpy as np

from numbasync.testing.closeness import Array
from numbasync.testing.usage import definition_of

# What of an array may be asked without reading its elements.
_OF_THE_ARRAY = frozenset({"shape", "size", "ndim", "dtype", "strides", "itemsize", "nbytes"})


def only_stored_to(function: FunctionType) -> frozenset[str]:
    """The parameters whose elements `function` stores to and certainly never reads."""
    tree = definition_of(function)
    if tree is None:
        return frozenset()
    found = {a.arg for a in tree.args.posonlyargs + tree.args.args}
    stored: set[str] = set()
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in found:
            if _is_store(node, parents):
                stored.add(node.id)
            elif not _is_harmless(node, parents):
                found.discard(node.id)
    return frozenset(found & stored)


def _is_store(name: ast.Name, parents: dict[ast.AST, ast.AST]) -> bool:
    subscript = parents[name]
    return (
        isinstance(subscript, ast.Subscript)
        and subscript.value is name
        and isinstance(subscript.ctx, ast.Store)
        and not isinstance(parents[subscript], ast.AugAssign)
    )


def _is_harmless(name: ast.Name, parents: dict[ast.AST, ast.AST]) -> bool:
    parent = parents[name]
    if isinstance(parent, ast.Attribute):
        return parent.attr in _OF_THE_ARRAY
    return (
        isinstance(parent, ast.Call)
        and isinstance(parent.func, ast.Name)
        and parent.func.id == "len"
    )


def poisoned(array: Array, generator: np.random.Generator) -> Array:
    """As `array`, filled: floats with NaN, all else with bytes that `generator` draws."""
    if array.dtype.kind in "fc":
        return np.full_like(array, np.nan)
    if array.dtype.kind == "b":
        return ~array  # one of the two is what was there
    drawn = generator.integers(0, 256, array.nbytes, dtype=np.uint8)
    return drawn.view(array.dtype).reshape(array.shape)
