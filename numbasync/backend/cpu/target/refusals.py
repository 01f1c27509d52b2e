"""What Numba refuses for a GPU, the CPU device refuses: its front end is the same."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

from numbasync.backend.compile_errors import compile_error
from numbasync.backend.cpu.target.lower import lower
from numbasync.errors import UnsupportedKernelError


def check(kernel: types.FunctionType, argument_types: Sequence[Any]) -> None:
    """Refuse a kernel that Numba refuses for arguments of these types; for kernels that are not
    compiled, which may use what only a GPU has.

    Raises:
        KernelCompileError: see `compile_errors.compile_error`.
    """
    try:
        lower(kernel, argument_types)
    except (UnsupportedKernelError, Warning):  # a program may have turned warnings into errors
        return
    except Exception as error:  # Numba raises many classes
        raise compile_error(kernel, argument_types, error) from error
