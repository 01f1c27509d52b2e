"""Kernels with `cache=True`: a second process compiles nothing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.cuda

PROGRAM = """
import numpy as np
from numba import cuda
import numbasync as na
from numbasync.testing import counters

@na.launcher
@cuda.jit(cache=True)
def saxpy(z: na.KernelOutput, a, x: na.KernelInput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = a * x[i] + z[i]

@na.launcher
@cuda.jit(cache=True, debug=True, opt=False)
def careful(z: na.KernelOutput):
    if z[0] > 0:
        raise ValueError("positive")

z = saxpy(na.ones(1000), 2.0, na.ones(1000)).output().sync()
print(z.to_host().sync().sum())
try:
    careful[1, 1](z).sync()
except na.errors.KernelError as error:
    print(str(error).splitlines()[0])
print(counters().compiles, na.compile_count())
"""


def run_twice(command: list[str], env: dict[str, str]) -> list[list[str]]:
    """The lines that it prints, each time."""
    said = []
    for _ in range(2):
        result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
        assert result.returncode == 0, result.stderr
        said.append(result.stdout.splitlines())
    return said


def program_twice(
    text: str, folder: Path, python: str, python_env: dict[str, str]
) -> list[list[str]]:
    """The lines that a program prints each time, with Numba's cache in a folder of its own."""
    program = folder / "program.py"
    program.write_text(text)
    env = {
        **python_env, "NUMBASYNC_DEVICE": "cuda", "NUMBA_CACHE_DIR": str(folder / "cache"),
        "PYTHONWARNINGS": "ignore",
    }  # fmt: skip
    return run_twice([python, str(program)], env)


def test_a_second_process_compiles_nothing(
    tmp_path: Path, python: str, python_env: dict[str, str]
) -> None:
    first, second = program_twice(PROGRAM, tmp_path, python, python_env)
    assert first[:2] == second[:2]
    assert first[0] == "3000.0"
    assert first[1].startswith("kernel careful, block (0, 0, 0), thread (0, 0, 0): ValueError: pos")
    assert first[2] == "2 2"
    assert second[2] == "0 0"


POISON = """
import os, pickle, sys

class Ran:
    def __reduce__(self):
        return os.mkdir, (sys.argv[1],)

sys.stdout.buffer.write(pickle.dumps(Ran()))
"""


@pytest.mark.parametrize("how", ["damaged", "others can write"])
def test_damaged_and_others_writable_files_are_not_loaded(
    tmp_path: Path, python: str, python_env: dict[str, str], how: str
) -> None:
    program_twice(PROGRAM, tmp_path, python, python_env)
    ran, poison = tmp_path / "ran", b""
    if how != "damaged":
        made = subprocess.run([python, "-c", POISON, str(ran)], capture_output=True, check=True)
        poison = made.stdout
        (tmp_path / "cache").chmod(0o777)
    for file in (tmp_path / "cache").rglob("*.nb*"):
        file.write_bytes(poison)
    first, second = program_twice(PROGRAM, tmp_path, python, python_env)
    assert first[0] == second[0] == "3000.0" and first[2] == "2 2"
    assert second[2] == ("0 0" if how == "damaged" else "2 2")
    assert not ran.exists()


BATCH = """
import numpy as np
import numbasync as na

x = np.random.default_rng(1).random((64, 1000), np.float32)
b = na.CommandBatch()
i = b.upload(x)
y, z, c = b.softmax(i), b.sum(i * 2), b.sum(i, 0)
b.execute_sync()
np.testing.assert_allclose(b.read_sync(z), x.astype(np.float64).sum() * 2, rtol=1e-5)
print(na.compile_count())
"""


def test_nor_does_it_compile_what_batches_have_written(
    tmp_path: Path, python: str, python_env: dict[str, str]
) -> None:
    env = {
        **python_env, "NUMBASYNC_DEVICE": "cuda", "NUMBASYNC_CACHE_DIR": str(tmp_path),
        "PYTHONWARNINGS": "ignore",
    }  # fmt: skip
    assert run_twice([python, "-c", BATCH], env) == [["3"], ["0"]]
