"""Kernels, operations, tensors and results between processes, on the CPU device."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import sessions

PROGRAM = """
import multiprocessing, sys, warnings
from concurrent.futures import ProcessPoolExecutor
import numpy as np
from numba import cuda
import numbasync as na
from tests.common import saxpy

warnings.simplefilter("ignore", DeprecationWarning)  # of fork in a process with threads

@na.launcher
@cuda.jit(cache=True)
def of_main(z: na.KernelOutput, k):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] += k

def run(kernel, x):
    return kernel(x, 2.0, np.ones(x.shape, np.float32)).sync()

def add(kernel, op):
    return kernel(op, 3.0).output().sync()

def fail(x):
    return saxpy(x, 1.0)

def pools(how):
    t = na.arange(6).sync()
    assert add(of_main, na.ones(2)).to_host().sync().tolist() == [4, 4]  # the device is in use
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(how)) as pool:
        result = pool.submit(run, saxpy, t).result()
        assert type(result) is saxpy.Result
        assert result.z.to_host().sync().tolist() == [2, 3, 4, 5, 6, 7]
        assert pool.submit(add, of_main, na.ones(4)).result().to_host().sync().tolist() == [4] * 4
        try:
            pool.submit(fail, t).result()
        except na.errors.LauncherError as error:
            assert "x is missing" in str(error)

def by_value(how):
    import joblib

    bias = 5

    @na.launcher
    @cuda.jit
    def local(z: na.KernelOutput, k):
        i = cuda.grid(1)
        if i < z.shape[0]:
            z[i] += k * bias

    big = na.full(300_000, 7).sync()  # joblib maps large arrays into memory
    jobs = [joblib.delayed(add)(k, x) for k, x in ((of_main, na.ones(4)), (local, big))]
    of_ones, of_big = joblib.Parallel(2)(jobs)
    assert of_ones.to_host().sync().tolist() == [4] * 4
    assert (of_big.to_host().sync() == 22).all()

if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[-1])
    print("end")
"""

WAYS = [["pools", "spawn"], ["by_value"]] + [["pools", "fork"]] * (sys.platform == "linux")


@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_processes(python: str, python_env: dict[str, str], tmp_path: Path, way: list[str]) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    env = {**python_env, "NUMBASYNC_DEVICE": "cpu"}
    assert env["PYTHONWARNINGS"] == "error"
    found = sessions.run_program(python, [str(path), *way], env, seconds=600)
    assert (found.returncode, found.stdout, found.stderr) == (0, "end\n", "")
