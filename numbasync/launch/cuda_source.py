"""The parameters of a kernel in CUDA C++, read from its source."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from numbasync.dtypes import of_c
from numbasync.errors import LauncherError

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_QUALIFIER = re.compile(r"\b(const|volatile|__restrict__|__restrict|restrict|__grid_constant__)\b")


@dataclass(frozen=True, slots=True)
class CParameter:
    """A parameter of a kernel in CUDA C++.

    Attributes:
        name: in the source.
        is_array: it is a pointer.
        is_output: a pointer to what is not const: the kernel may write there.
        dtype: of the elements, or of the number; None for a pointer to void, which takes any.
    """

    name: str
    is_array: bool
    is_output: bool
    dtype: np.dtype[Any] | None


def parameters_of(source: str, name: str) -> tuple[list[CParameter], bool]:
    """The parameters of the kernel `name`, and whether its name is C's: `extern "C"`.

    Raises:
        LauncherError: the source has no such kernel, or a parameter that no array or number fits.
    """
    plain = _COMMENT.sub(" ", source)
    words = r"((?:\w+\s+|__launch_bounds__\s*\([^)]*\)\s*)*)"
    pattern = rf'(extern\s*"C"\s*)?{words}\b{re.escape(name)}\s*\(([^)]*)\)\s*\{{'
    for found in re.finditer(pattern, plain):
        if "__global__" in found[2]:
            block = re.search(r'extern\s*"C"\s*\{', plain[: found.start()])
            texts = [text.strip() for text in found[3].split(",")]
            kept = [text for text in texts if text not in ("", "void")]
            return [_parameter(text, name) for text in kept], bool(found[1] or block)
    raise LauncherError(
        f"raw_kernel {name}: the source has no `__global__ void {name}(...) {{`; name one of its "
        "kernels that is no template."
    )


def _parameter(text: str, kernel: str) -> CParameter:
    is_const = re.search(r"\bconst\b[^*]*\*", text) is not None
    words = _QUALIFIER.sub(" ", text)
    found = re.fullmatch(r"\s*((?:\w+\s+)*?\w+)\s*(\*?)\s*(\w+)\s*", words)
    if found is not None:
        kind = " ".join(found[1].split())
        dtype, is_array = of_c(kind), bool(found[2])
        if dtype is not None or (is_array and kind == "void"):
            return CParameter(found[3], is_array, is_array and not is_const, dtype)
    raise LauncherError(
        f"raw_kernel {kernel}: the parameter `{text}` is no pointer to numbers, and no number.\n"
        "Write float, double, int, long long, bool, or a type as uint8_t or __half, or a pointer "
        "to one. To a structure, write a pointer to void."
    )
