"""numba-cuda with releases of NumPy that lack what it asks for, and an installation without it."""

from __future__ import annotations

import importlib
import importlib.util

import numpy as np
import pytest

from numbasync.backend import numba_cuda_arrays


def test_a_name_that_numpy_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(np, "row_stack", raising=False)
    seen = []
    monkeypatch.setattr(
        importlib, "import_module", lambda name: seen.append((name, hasattr(np, "row_stack")))
    )
    numba_cuda_arrays.load.__wrapped__()
    assert seen == [("numba.cuda.np.arrayobj", True)]
    assert not hasattr(np, "row_stack")


def test_without_numba_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install numba-cuda"):
        numba_cuda_arrays.load.__wrapped__()
