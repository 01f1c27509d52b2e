"""What the names in an interpreted kernel stand for, and when their values are taken."""

from __future__ import annotations

import math
import threading
from math import sqrt
from typing import Any

import numba
import numpy as np
import pytest
from numba import cuda
from numba.cuda import libdevice
from numba.cuda.random import xoroshiro128p_uniform_float32

from numbasync.backend.cpu.interpreter.interpret import Interpreted
from numbasync.backend.cpu.runtime.workers import Engine
from numbasync.errors import UnsupportedKernelError
from tests.backend_cpu.test_interpret import CpuArgument, run

SCALE = 2
TABLE = np.array([3, 1, 4], np.int32)
shape = "an attribute of arrays, not this"


def plain(x):
    return x + 1


def test_globals_are_frozen_when_the_kernel_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    table = np.array([5.0])

    @cuda.jit
    def kernel(out):
        out[0] = SCALE
        out[1] = TABLE[0]
        out[2] = table[0]

    made = Interpreted(kernel, 1024)
    monkeypatch.setitem(globals(), "SCALE", 7)
    monkeypatch.setattr(f"{__name__}.TABLE", np.array([9]))
    table[0] = 6
    results = []

    def work() -> None:
        out = np.zeros(3)
        made.run((1, 1, 1), (1, 1, 1), 0, [CpuArgument(out)], Engine("test", 1))
        results.append(out.tolist())

    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert results == [[2, 3, 5], [2, 3, 5]]


def test_functions_of_math_imported_by_name_are_bound() -> None:
    root = math.log

    def kernel(out, x):
        out[0] = sqrt(x[0])
        out[1] = root(x[1])

    out = np.zeros(2)
    run(kernel, out, np.array([-1.0, 0.0]))
    assert math.isnan(out[0]) and out[1] == -math.inf


def test_a_plain_function_is_refused() -> None:
    def kernel(out):
        out[0] = plain(out[0])

    with pytest.raises(UnsupportedKernelError, match=r"plain.*\n.*@cuda\.jit\(device=True\)"):
        run(kernel, np.zeros(1))


def uses_libdevice(out):
    out[0] = libdevice.sqrt(out[0])


def uses_libdevice_of_cuda(out):
    out[0] = cuda.libdevice.sqrt(out[0])


def uses_random(out):
    out[0] = xoroshiro128p_uniform_float32(out, 0)


def uses_prange(out):
    for i in numba.prange(3):
        out[0] = i


def uses_np_random(out):
    out[0] = np.random.rand()


@pytest.mark.parametrize(
    ("kernel", "name"),
    [(uses_libdevice, "cuda.libdevice"), (uses_libdevice_of_cuda, "cuda.libdevice"),
     (uses_random, "cuda.random.xoroshiro128p_uniform_float32"), (uses_prange, "numba.prange"),
     (uses_np_random, "numpy.random")],
)  # fmt: skip
def test_what_is_not_available_is_refused_by_name(kernel: Any, name: str) -> None:
    with pytest.raises(UnsupportedKernelError, match=name):
        run(kernel, np.zeros(1))


def test_a_misspelt_intrinsic_has_another_message() -> None:
    def kernel(out):
        cuda.syncthread()

    with pytest.raises(UnsupportedKernelError, match=r"numba\.cuda has no 'syncthread'.*misspelt"):
        run(kernel, np.zeros(1))
