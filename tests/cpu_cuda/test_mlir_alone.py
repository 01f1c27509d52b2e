"""An installation with numba-cuda-mlir and without numba-cuda."""

from __future__ import annotations

import subprocess
from importlib.util import find_spec

import pytest

PROGRAM = """
import importlib, pkgutil, sys
from importlib.machinery import PathFinder

class Without:  # numba-cuda
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] == "numba_cuda":
            return None
        return PathFinder.find_spec(name, path, target)
    find_distributions = PathFinder.find_distributions

sys.meta_path = [f for f in sys.meta_path if type(f).__name__ != "NumbaCudaFinder"]
sys.meta_path[sys.meta_path.index(PathFinder)] = Without

import numbasync as na
import numbasync_kernels
from numba_cuda_mlir import cuda

@na.launcher
@cuda.jit
def scale(z, a, x):
    i = cuda.grid(1)
    if i < z.size:
        z[i] = a * x[i]

assert [p.is_output for p in scale.parameters] == [True, False, False]
for name in ("algorithms", "block", "collective", "random", "tensor_cores", "vectors", "warp"):
    getattr(na, name)
for found in pkgutil.walk_packages(numbasync_kernels.__path__, "numbasync_kernels."):
    importlib.import_module(found.name)
assert "numba_cuda" not in sys.modules
assert na.devices("cpu") == []
if not na.devices():
    try:
        na.default_device()
    except na.errors.DeviceUnavailableError as error:
        assert "numba-cuda is not installed" in str(error), error
"""


@pytest.mark.skipif(find_spec("numba_cuda_mlir") is None, reason="numba-cuda-mlir is not installed")
def test_everything_imports_without_numba_cuda(python: str, python_env: dict[str, str]) -> None:
    found = subprocess.run(
        [python, "-W", "ignore", "-c", PROGRAM], env=python_env, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
