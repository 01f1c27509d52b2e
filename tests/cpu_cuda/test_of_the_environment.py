"""What Numba's environment says of a program for `numba.cuda` that the switch runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import numpy as np
from numba import cuda, njit

import numbasync as na


@njit
def half(x):
    return x / 2


@cuda.jit(cache=True)
def double(a):
    i = cuda.grid(1)
    if i < a.size:
        a[i] *= 2


@cuda.jit("void(float64[:])", cache=True)
def shift(a):
    a[cuda.grid(1)] += 1


a = half(np.arange(8.0))
double[1, 32](a)
shift[1, 8](a)
print(type(half).__name__, a.sum(), na.compile_count())
"""


def said(path: Path, env: dict[str, str]) -> str:
    command = [sys.executable, "-m", "numbasync.cpu_cuda", str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def test_disabled_jit_leaves_kernels_compiled_and_kept(
    tmp_path: Path, python_env: dict[str, str]
) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM, encoding="utf-8")
    (tmp_path / "cache").mkdir(mode=0o700)
    env = python_env | {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "NUMBA_DISABLE_JIT": "1"}
    assert said(path, env) == "function 36.0 2"
    assert said(path, env) == "function 36.0 0", "the second process finds both on disk"
    assert said(path, env | {"NUMBA_DISABLE_JIT": "0"}) == "CPUDispatcher 36.0 0"
