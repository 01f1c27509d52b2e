"""Device functions of kernels that the target lowers: how they are reached, and what is left as it
was.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numba import cuda, float32
from numba.core.errors import NumbaError
from numba.cuda import types
from numba.cuda.dispatcher import CUDADispatcher

from numbasync.backend.cpu.target import lower
from tests.backend_cpu.threads_in_turn import Kernel, keys_of

pytestmark = pytest.mark.usefixtures("cpu")

jit: Any = cuda.jit


def launched(kernel: Any, grid: Any, block: Any, *args: Any) -> Kernel:
    made = Kernel(kernel, keys_of(args))
    made.launch(grid, block, *args)
    return made


@jit(device=True)
def turned(x, n):  # type: ignore[no-untyped-def]
    held = cuda.shared.array(8, float32)
    held[cuda.threadIdx.x] = x
    cuda.syncthreads()
    result = held[n - 1 - cuda.threadIdx.x]
    cuda.syncthreads()
    return result


def outer(call: Any, functions: Any) -> Any:
    module: Any = ModuleType("module")
    module.turn = turned

    @jit
    def kernel(z, x):  # type: ignore[no-untyped-def]
        i = cuda.threadIdx.x
        z[i] = call(x[i], 4) + 10 * functions[0](x[i], n=4)
        z[i] += 100 * module.turn(x[i], 4)

    return kernel


@pytest.mark.filterwarnings("ignore:First-class function type")  # a function in a tuple
def test_device_functions_by_every_way() -> None:
    x, z = np.arange(4, dtype=np.float32), np.zeros(4)
    made = launched(outer(turned, (turned,)), 1, 4, z, x)
    assert z.tolist() == [333, 222, 111, 0]
    # Static shared memory of a function is there once, however often it is called.
    assert made.module.text.count('@"na.shared.') - made.module.text.count('* @"na.shared.') == 1


def test_what_the_program_has_is_as_it_was() -> None:
    @jit
    def kernel(z, x):  # type: ignore[no-untyped-def]
        z[0] = turned(x[0], 1)

    @jit
    def wrong(z):  # type: ignore[no-untyped-def]
        z[0] = turned("a", 1)

    before = dict(vars(CUDADispatcher))
    code, names = kernel.py_func.__code__, dict(kernel.py_func.__globals__)
    launched(kernel, 1, 1, np.zeros(1), np.ones(1))
    with pytest.raises(NumbaError):
        lower(wrong, (types.float64[::1],))
    assert dict(vars(CUDADispatcher)) == before
    assert kernel.py_func.__code__ is code
    assert kernel.py_func.__globals__ == names
    assert not kernel.overloads
    assert not turned.overloads


@jit(device=True)
def counted(n):  # type: ignore[no-untyped-def]
    if n > 0:
        return counted(n - 1) + 1
    return 0


@jit(device=True)
def is_even(n):  # type: ignore[no-untyped-def]
    if n == 0:
        return True
    return is_odd(n - 1)


@jit(device=True)
def is_odd(n):  # type: ignore[no-untyped-def]
    if n == 0:
        return False
    return is_even(n - 1)


def test_functions_that_call_themselves() -> None:
    @jit
    def kernel(z, n):  # type: ignore[no-untyped-def]
        z[0] = counted(3) + 10 * counted(n)  # with a literal, and with a variable
        z[1] = is_even(n) + 10 * is_odd(n)

    launched(kernel, 1, 1, z := np.zeros(2), 5)
    assert z.tolist() == [53, 10]
    assert not counted.overloads and not is_even.overloads and not is_odd.overloads
