"""Kernels that many tests use, and how this suite chooses its devices."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Generator[None, None, None]:
    """What tests have made is not looked at again.

    Numba keeps what it compiled, and tests collect garbage by the thousand: each collection would
    look at all of it.
    """
    try:
        return (yield)
    finally:
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
