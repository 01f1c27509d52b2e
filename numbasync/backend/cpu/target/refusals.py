"""What Numba refuses for a GPU, the CPU device refuses: its front end is the same."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

from numba.cuda import config as _config

from numbasync.backend.compile_errors import compile_error
from numbasync.backend.cpu.target.lower import lower
from numbasync.errors import KernelCompileError, UnsupportedKernelError

config: Any = _config  # type checkers do not know all of its names


def check(kernel: types.FunctionType, argument_types: Sequence[Any]) -> None:
    """Refuse a kernel that Numba refuses for arguments of these types; for kernels that are not
    compiled, which may use what only a GPU has.

    Raises:
        KernelCompileError: see `refusal`.
    """
    try:
        lower(kernel, argument_types)
    except (UnsupportedKernelError, Warning):  # a program may have turned warnings into errors
        return
    except Exception as error:  # Numba raises many classes
        raise refusal(kernel, argument_types, error) from error


def refusal(
    kernel: types.FunctionType, argument_types: Sequence[Any], error: Exception
) -> KernelCompileError | UnsupportedKernelError:
    """The error for one that `lower` has raised; see `compile_errors.compile_error`."""
    if config.CUDA_ENABLE_NRT and "NRT required" in str(error):
        return UnsupportedKernelError(
            f"kernel {kernel.__name__} allocates an array, which kernels of the CPU device do not: "
            "create it with cuda.local.array, or pass it."
        )
    return compile_error(kernel, argument_types, error)
