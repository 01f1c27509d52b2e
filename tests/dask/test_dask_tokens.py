"""Dask's names for equal tasks: launchers by what they compute, tensors by their elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from tests.common import add_one, put, saxpy

tokenize = pytest.importorskip("dask.tokenize", reason="needs the extra dask").tokenize
FACTOR = 2.0


def token(value: Any) -> str:
    found: str = tokenize(value, ensure_deterministic=True)
    return found


def shifted(bias: Any, **options: Any) -> na.Launcher:
    @na.launcher(**options)
    @cuda.jit
    def kernel(z: na.KernelOutput):
        i = cuda.grid(1)
        if i < z.shape[0]:
            z[i] += bias

    return kernel


@cuda.jit(device=True)
def scaled(x):
    return FACTOR * x


@na.launcher
@cuda.jit
def uses_others(z: na.KernelOutput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = scaled(z[i])


def test_a_launchers_token_covers_source_closure_and_options() -> None:
    tokens = [token(k) for k in (
        saxpy, add_one, shifted(1), shifted(2), shifted(1, threads=64), shifted(1, may_alias=True),
        shifted((1, 2)), shifted(np.arange(3)), shifted(np.arange(4)),
    )]  # fmt: skip
    assert len(set(tokens)) == len(tokens)
    assert token(shifted(1)) == token(shifted(1)) == tokens[2]
    assert token(shifted(np.arange(3))) == tokens[7]


def test_a_modules_constant_is_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = token(uses_others)
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    assert token(uses_others) != before


def test_a_tensors_token_is_of_its_elements(device: na.Device) -> None:
    values = np.arange(6.0).reshape(2, 3)
    t = put(values)
    assert token(t) == token(put(values)) == token(put(values.T.copy()).T.dup().sync())
    others = [t[:1], put(values + 1), put(values.astype("f4")), na.meta((2, 3)).sync()]
    assert len({token(x) for x in (t, *others)}) == 5
    add_one(t.reshape(6)).sync()
    assert token(t) == token(put(values + 1))
