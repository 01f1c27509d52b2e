"""Kernels that many tests use, and how this suite chooses its devices."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True, scope="module")
def what_earlier_modules_made_is_not_looked_at() -> None:
    """Numba keeps what it compiled. Tests collect garbage by the thousand, and each collection
    would look at all of it again.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture
def python_env() -> dict[str, str]:
    """An environment in which a child process finds this checkout's packages."""
    paths = [str(ROOT), str(ROOT / "kernels"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONWARNINGS": "error"}


@pytest.fixture
def python() -> str:
    return sys.executable
