"""The table of element types, and that nothing else says what it says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import numbasync as na
from numbasync import dtypes
from numbasync.backend import array_protocols

PACKAGE = Path(str(na.__file__)).parent
KERNELS = PACKAGE.parent / "kernels"
NAMED = re.compile("bfloat|bf16", re.I)
# What computes with a type, or has it as a name of LLVM, PTX or Numba. A new type needs about as
# many files.
BY_NAME = {
    "numbasync/dtypes.py",
    "numbasync/backend/bfloat16_type.py",
    "numbasync/backend/cpu/regions/llvm_types.py",
    "numbasync/backend/cpu/target/fp8_calls.py",
    "numbasync/backend/cpu/target/small_float_calls.py",
    "numbasync/backend/cuda/ptx_flops.py",
    "numbasync/cpu_cuda/host.py",
    "kernels/numbasync_kernels/fits.py",
    "kernels/numbasync_kernels/nn/gemm.py",
}


def words(tree: ast.AST) -> Iterator[str]:
    """Names and texts of code, without docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    of_readers = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Constant) and id(node) not in of_readers:
            yield str(node.value)


def test_few_files_have_a_case_for_one_type() -> None:
    texts = {path: path.read_text() for room in (PACKAGE, KERNELS) for path in room.rglob("*.py")}
    found = {
        path.relative_to(PACKAGE.parent).as_posix()
        for path, text in texts.items()
        if NAMED.search(text)  # most have it nowhere, and are not parsed
        and any(NAMED.search(word) for word in words(ast.parse(text)))
    }
    assert found == BY_NAME


@pytest.mark.parametrize("name", dtypes.TABLE)
def test_a_row_is_that_of_its_type(name: str) -> None:
    dtype, row = dtypes.of_name(name), dtypes.TABLE[name]
    assert dtypes.row_of(dtype) is row and dtypes.check_dtype(name) == dtype
    assert dtype.itemsize == row.nbytes and dtypes.is_element(dtype)
    assert dtypes.of_dlpack(row.dlpack, 8 * row.nbytes) == dtype
    assert dtypes.has_nan(dtype) == (row.rtol > 0) == (row.rtol_reordered > row.rtol)
    assert dtypes.numpy_dtype(dtypes.numba_type(dtype)) == dtype
    assert dtypes.is_small(dtype) == (name in dtypes.SMALL)
    assert dtypes.bits_of(dtype) == (np.uint16 if name in dtypes.EXTENSIONS else dtype)


def test_other_orders_of_bytes_have_the_same_row() -> None:
    swapped = np.dtype(np.float32).newbyteorder()
    assert dtypes.row_of(swapped).name == "float32" and not dtypes.is_element(swapped)


def test_a_capsule_of_bits_names_its_type() -> None:
    array = np.asarray([1.5, -2], ml_dtypes.bfloat16)

    class Lent:
        """Bits in a capsule that says of which type they are."""

        def __dlpack__(self, **how: object) -> object:
            return array_protocols.retype(array.view(np.uint16).__dlpack__(), array.dtype)

    assert array_protocols.read_dlpack(Lent()).dtype == array.dtype
    capsule = np.zeros(2).__dlpack__()
    assert array_protocols.retype(capsule, np.dtype(float)) is capsule


def test_names_in_a_sentence() -> None:
    assert dtypes.in_words(["a"]) == "a" and dtypes.in_words("abc") == "a, b or c"
