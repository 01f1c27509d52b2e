"""Kernels and device functions whose signatures are declared: `@cuda.jit("void(float32[:])")`."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numba import cuda
from numba.cuda import types
from numba.cuda.cudadrv.error import CudaSupportError

import numbasync as na
from numbasync.errors import DTypeError, KernelCompileError
from tests.common import host

sigutils: Any = importlib.import_module("numba.cuda.core.sigutils")
ARRAY = types.float64[::1]


def jit(signatures: Any, **options: Any) -> Any:
    """`cuda.jit(signatures)`, which asks for a driver; where there is none, what it would have
    made, without what only a GPU runs.
    """

    def decorate(function: Any) -> Any:
        try:
            return cuda.jit(signatures, **options)(function)
        except CudaSupportError:
            made = cuda.jit(**options)(function)
        for each in signatures if isinstance(signatures, list) else [signatures]:
            arguments, result = sigutils.normalize_signature(each)
            made.overloads[arguments] = SimpleNamespace(
                signature=None if result is None else result(*arguments), entry_point=None
            )
        made.disable_compile()
        return made

    return decorate


def test_arguments_become_what_is_declared(device: na.Device) -> None:
    @na.launcher
    @jit("void(float64[:], float32, int32, boolean)")
    def put(z: na.KernelOutput, a, n, b):
        i = cuda.grid(1)
        if i == 0:
            z[0] = a
        elif i == 1:
            z[1] = n * 2 + (7 if b else 5)
        elif i == 2:
            z[2] = a * a

    z = na.zeros(3, np.float64).sync()
    for tenth in (0.1, np.float64(0.1), np.float32(0.1)):
        put[1, 3](z, tenth, np.int8(-3), 1).sync()
        single = np.float32(0.1)
        assert host(z).tolist() == [float(single), 1, float(single * single)]
    put[1, 3](z, 3, 2, 0).sync()  # a whole number is a float32, too
    assert host(z).tolist() == [3, 9, 9]


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1])
def test_a_number_too_large_for_its_declaration_fails(device: na.Device, number: int) -> None:
    @na.launcher
    @jit("void(float64[::1], int32)")
    def put(z: na.KernelOutput, n):
        z[cuda.grid(1)] = n

    z = na.zeros(1, np.float64).sync()
    put[1, 1](z, 2**31 - 1).sync()
    with pytest.raises(DTypeError, match="does not fit the kernel's type"):
        put[1, 1](z, number).sync()
    assert host(z).tolist() == [2**31 - 1]


@pytest.mark.parametrize(
    "wrong",
    [
        (np.zeros(1, np.float32), 1, 1),
        (np.zeros((1, 1)), 1, 1),
        (np.zeros(1), 1.5, 1),
        (np.zeros(1), 1, 1j),
        (np.zeros(1), (1, 2), 1),
    ],
    ids=["dtype", "rank", "float-as-integer", "complex-as-float", "tuple-as-number"],
)
def test_arguments_that_do_not_convert_are_refused(device: na.Device, wrong: Any) -> None:
    @na.launcher
    @jit("void(float64[:], int64, float64)")
    def put(z: na.KernelOutput, n, a):
        z[0] = n + a

    z = na.zeros(1, np.float64).sync()
    with pytest.raises(KernelCompileError, match="put cannot be compiled"):
        put[1, 1](na.zeros(wrong[0].shape, wrong[0].dtype), *wrong[1:]).sync()
    put[1, 1](z, 1, 2).sync()
    assert host(z).tolist() == [3]


def test_of_several_signatures_the_best_is_meant(device: na.Device) -> None:
    signatures: list[Any] = [
        (ARRAY, types.float32, types.float32),
        "(float64[::1], float64, float64)",
        types.void(ARRAY, types.int64, types.int64),
    ]

    @na.launcher
    @jit(signatures)
    def add(z: na.KernelOutput, x, y):
        z[0] = x + y

    z = na.zeros(1, np.float64).sync()

    def got(x: Any, y: Any) -> float:
        add[1, 1](z, x, y).sync()
        return float(host(z)[0])

    assert got(np.float32(1), np.float32(2**-25)) == 1
    assert got(1.0, 2**-25) == 1 + 2**-25
    assert got(np.float32(1), 2**-25) == 1 + 2**-25
    assert got(2**53, np.int8(1)) == 2**53  # a sum of integers, and stored as a float64
    assert got(2**62, -(2**62) + 1) == 1  # which floats would not tell


def test_several_that_are_as_good_are_refused(device: na.Device) -> None:
    @na.launcher
    @jit([(ARRAY, types.float32, types.float64), (ARRAY, types.float64, types.float32)])
    def add(z: na.KernelOutput, x, y):
        z[0] = x + y

    z = na.zeros(1, np.float64).sync()
    with pytest.raises(KernelCompileError, match="Ambiguous overloading"):
        add[1, 1](z, 1.0, 2.0).sync()
    add[1, 1](z, np.float32(1), 2.0).sync()
    assert host(z).tolist() == [3]


def test_device_functions_convert_what_they_are_given(device: na.Device) -> None:
    @jit("float32(float32, float32)", device=True)
    def add(x, y):
        return x + y

    @na.launcher
    @cuda.jit
    def put(z: na.KernelOutput, x, y):
        z[0] = add(x, y)

    z = na.zeros(1, np.float64).sync()
    put[1, 1](z, 1.0, 2**-25).sync()
    assert host(z).tolist() == [1]


def test_device_functions_of_several_signatures(device: na.Device) -> None:
    @jit(["float32(float32, float32)", "float64(float64, float64)"], device=True)
    def add(x, y):
        return x + y

    @na.launcher
    @cuda.jit
    def put(z: na.KernelOutput, x, y):
        z[0] = add(x, y)

    z = na.zeros(1, np.float64).sync()
    put[1, 1](z, 1.0, 2**-25).sync()
    assert host(z).tolist() == [1 + 2**-25]
    put[1, 1](z, np.float32(1), np.float32(2**-25)).sync()
    assert host(z).tolist() == [1]
    with pytest.raises(KernelCompileError, match=r"with parameters \(complex128, complex128\)"):
        put[1, 1](z, 1j, 2j).sync()


def test_device_functions_in_which_threads_meet_convert_too(device: na.Device) -> None:
    @jit("float64(float32)", device=True)
    def turned(x):
        own = cuda.shared.array(32, types.float32)
        own[cuda.threadIdx.x] = x
        cuda.syncthreads()
        return own[31 - cuda.threadIdx.x] + 0.5 * x

    @na.launcher
    @cuda.jit
    def put(z: na.KernelOutput, x: na.KernelInput):
        z[cuda.threadIdx.x] = turned(x[cuda.threadIdx.x])

    x = np.arange(32) / 7
    z = na.zeros(32, np.float64).sync()
    put[1, 32](z, x).sync()
    single = x.astype(np.float32).astype(np.float64)
    np.testing.assert_array_equal(host(z), single[::-1] + 0.5 * single)


def test_numbers_become_a_declared_bfloat16(device: na.Device) -> None:
    bfloat16: Any = cuda.types.bfloat16

    @na.launcher
    @jit(types.void(ARRAY, bfloat16))
    def put(z: na.KernelOutput, a):
        z[0] = a

    z = na.zeros(1, np.float64).sync()
    double = 1 + 2**-8 + 2**-40  # a float32, which is rounded then, would be halfway
    for value in (0.1, np.float32(-0.1), 3, double, ml_dtypes.bfloat16(0.1)):
        put[1, 1](z, value).sync()
        assert host(z)[0] == float(ml_dtypes.bfloat16(value))


async def test_warming_up_compiles_what_is_declared(device: na.Device) -> None:
    @na.launcher
    @jit(["void(float32[::1], float32[:,:], int32)", "void(float64[:], float64[:,::1], int64)"])
    def add(z: na.KernelOutput, x: na.KernelInput, n):
        i = cuda.grid(1)
        if i < z.shape[0]:
            z[i] += x[i, 0] * n

    before = na.compile_count()
    await na.warm_up(add)
    between = na.compile_count()
    assert between >= before + 2
    z, x = await na.zeros(4), await na.ones((4, 4))
    await add(z, x[:, ::2], 3)
    await add(await na.zeros(8, np.float64), await na.ones((8, 2), np.float64), 3)
    assert host(z).tolist() == [3] * 4
    await na.warm_up(add)
    assert na.compile_count() <= between + 2  # calls with the arrays of other orders
