"""What a GPU gets of the eight kernels of decision 25: which of their indices are unsigned."""

from __future__ import annotations

import ast
from types import FunctionType
from typing import Any

import pytest

from numbasync.facts.indices import mark
from numbasync.facts.source import find_definition
from tests.facts import eight_kernels as kernels

# Outermost first. All else of the source is as written.
UNSIGNED: dict[Any, str] = {
    kernels.naive_product: "row; column; row; k; k; column",
    kernels.tiled_product:
        "row; column; i; j; row; start + j; i; j; start + i; column; i; k; k; j",
    kernels.product_of_registers:
        "r; c; j; i + r * TILE; top + i + r * TILE; start + j; i; j + r * TILE; start + i; "
        "left + j + r * TILE; top + i + r * TILE; left + j + c * TILE; r; c; r; c; k; "
        "i + r * TILE; k; j + c * TILE",
    kernels.transpose: "i; j; top + i; left + j; left + i; top + j; j; i",
    kernels.softmax: "t; t; t; t; t + half; row; k; row; k; t; t + half; row; k; row; k",
    kernels.loop_over_the_grid: "i; i",
    kernels.sums_of_columns: "column; row; column",
    kernels.convolution: "row; column; i; j",
}  # fmt: skip


class _AsWritten(ast.NodeTransformer):
    """Puts the indices in place of the calls."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        return node.args[0] if ast.unparse(node.func) == "unsigned" else node


@pytest.mark.parametrize("kernel", UNSIGNED, ids=lambda kernel: kernel.__name__)
def test_unsigned_indices_are_those_measured(kernel: FunctionType) -> None:
    found, written = find_definition(kernel), find_definition(kernel)
    assert found is not None
    assert written is not None
    count = mark(*found, kernel, "unsigned")
    walked = [ast.unparse(n.args[0]) for n in ast.walk(found[1])
              if isinstance(n, ast.Call) and ast.unparse(n.func) == "unsigned"]  # fmt: skip
    assert (count, "; ".join(walked)) == (len(walked), UNSIGNED[kernel])
    assert ast.unparse(_AsWritten().visit(found[1])) == ast.unparse(written[1])
