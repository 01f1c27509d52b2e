"""numba-cuda's functions of arrays, with every release of NumPy."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from functools import cache
from typing import Any

import numpy as np

MISSING = (
    "numba-cuda is not installed, of whose lowering the CPU device is made; "
    "numba-cuda-mlir and the numba.cuda that comes with Numba have none.\n"
    "Write: pip install numba-cuda"
)


@cache
def load() -> None:
    """Import the module that makes them. Called before anything else imports it: numba-cuda 0.30
    asks NumPy for `row_stack`, which NumPy 2.5 does not have; Numba itself no longer does.

    Raises:
        ImportError: there is no numba-cuda.
    """
    if importlib.util.find_spec("numba.cuda.core") is None:
        raise ImportError(MISSING)
    numpy: Any = np
    if hasattr(numpy, "row_stack"):
        return
    numpy.row_stack = numpy.vstack
    try:
        with warnings.catch_warnings():  # of NumPy, about times without a unit
            warnings.simplefilter("ignore", DeprecationWarning)
            importlib.import_module("numba.cuda.np.arrayobj")
    finally:
        del numpy.row_stack
