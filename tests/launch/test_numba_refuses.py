"""What Numba's compiler for GPUs refuses is refused on every device, before anything runs."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import KernelCompileError
from numbasync.testing import counters

F32 = np.float32
HINTS = ("Decorate", "numba.cuda does not have")
WRONG: dict[str, tuple[Callable[..., None], dict[str, Any], str]] = {}


def wrong(said: str, **arguments: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A kernel whose line with `# here` is refused: what the message says of it, and its
    arguments beside `z` and `x`, which are vectors of float32.
    """

    def keep(kernel: Callable[..., None]) -> Callable[..., None]:
        WRONG[kernel.__name__] = kernel, arguments, said
        return kernel

    return keep


@cuda.jit(device=True)
def first_of(a):
    return a[0]


def on_the_host(a):
    return a + 1


@wrong("x: array(float32, 1d, C)")
def an_undefined_name(z, x):
    i = cuda.grid(1)
    z[i] = x[i] * no_such_name  # here  # noqa: F821  # pyright: ignore[reportUndefinedVariable]


@wrong("x: array(float32, 1d, C)")
def an_undefined_function_of_a_module(z, x):
    z[0] = math.sinn(x[0])  # here  # pyright: ignore[reportAttributeAccessIssue]


@wrong("z: array(float32, 1d, C)")
def a_string_in_an_array(z, x):
    z[cuda.grid(1)] = "one"  # here


@wrong("x: array(float32, 2d, C)", x=np.ones((4, 2), F32))
def rows_added_to_elements(z, x):
    i = cuda.grid(1)
    row = x[i]
    z[i] += row  # here


@wrong("x: array(float32, 2d, C)", x=np.ones((4, 2), F32))
def rows_stored_in_elements(z, x):
    i = cuda.grid(1)
    z[i] = x[i]  # here


@wrong("n: array(int64, 1d, C)", n=np.ones(2, np.int64))
def an_array_for_a_limit(z, x, n):
    i = cuda.grid(1)
    if i < n:  # here
        z[i] = x[i]


@wrong("n: array(int64, 1d, C)", n=np.ones(2, np.int64))
def an_array_for_a_count(z, x, n):
    for i in range(n):  # here
        z[i] = x[i]


@wrong("factor: array(float32, 1d, C)", factor=np.ones(2, F32))
def an_array_for_a_factor(z, x, factor):
    i = cuda.grid(1)
    scaled = x[i] * factor
    z[i] = scaled  # here


@wrong("n: float64", n=2.0)
def a_number_for_an_array(z, x, n):
    z[0] = n[0]  # here


@wrong("x: array(float32, 1d, C)")
def too_many_indices(z, x):
    i, j = cuda.grid(2)
    z[i] = x[i, j]  # here


@wrong("z: array(float32, 1d, C)")
def too_many_indices_of_an_output(z, x):
    i, j = cuda.grid(2)
    z[i, j] = x[i]  # here


@wrong("x: array(float32, 1d, C)")
def a_float_for_an_index(z, x):
    z[0] = x[x[0]]  # here


@wrong("x: array(complex64, 1d, C)", x=np.ones(4, np.complex64))
def a_complex_number_in_a_float(z, x):
    z[0] = x[0]  # here


@wrong("x: array(float32, 1d, C)")
def an_attribute_that_no_array_has(z, x):
    z[0] = x.length  # here


PACKED = np.dtype([("name", "S5"), ("n", np.int32)])  # n is at an odd address


@wrong("x: unaligned array(Record(", x=np.zeros(4, PACKED))
def a_field_that_is_not_aligned(z, x):
    z[0] = x[0].n  # here


@wrong("x: array(float32, 1d, C)")
def bits_of_a_float(z, x):
    z[0] = x[0] & 1  # here


@wrong("x: array(float32, 1d, C)")
def a_variable_of_two_types(z, x):
    kept = 1
    if z[0] > 0:
        kept = x
    z[0] = kept  # here


@wrong("x: array(float32, 1d, C)")
def a_device_function_that_gets_a_number(z, x):
    z[0] = first_of(x[0])  # here


@wrong("Decorate it with @cuda.jit(device=True)")
def a_function_of_the_host(z, x):
    z[0] = on_the_host(x[0])  # here


@wrong("x: array(float32, 1d, C)")
def an_exception_with_values(z, x):
    if x[0] > 1e9:
        raise ValueError("too large", x[0])  # here


@wrong("z: array(float32, 1d, C)")
def a_dictionary(z, x):
    table = {1: 2.0}
    z[0] = table[1]  # here


@wrong("x: array(float32, 1d, C)")
def a_copy_of_an_array(z, x):
    y = np.zeros_like(x)  # here
    z[0] = y[0]


# These are compiled for the processor, and not for a GPU.


@wrong("z: array(float32, 1d, C)")
def an_atomic_operation_of_integers_alone(z, x):
    cuda.atomic.xor(z, 0, 1)  # here


@wrong("numba.cuda does not have np.floor; write math.floor")
def a_function_of_numpy(z, x):
    z[0] = np.floor(x[0])  # here


@wrong("numba.cuda does not have np.remainder; write a % b")
def a_function_of_another_name_in_numpy(z, x):
    z[0] = np.mod(x[0], 5.0)  # here


@wrong("x: array(float32, 1d, C)")
def a_vote_of_floats(z, x):
    z[0] = cuda.all_sync(0xFFFFFFFF, x[0])  # here


@wrong("x: array(uint32, 1d, C)", x=np.ones(4, np.uint32))
def a_shuffle_of_unsigned_numbers(z, x):
    z[0] = cuda.shfl_sync(0xFFFFFFFF, x[0], 1)  # here


@wrong("x: array(float32, 1d, C)")
def a_sum_in_place_of_a_whole_array(z, x):
    x += 1  # here
    z[0] = x[0]


@wrong("x: array(int32, 1d, C)", x=np.ones(4, np.int32))
def the_smaller_of_a_number_and_a_bool(z, x):
    z[0] = min(x[0], x[1] > 0)  # here


@wrong("x: array(int32, 1d, C)", x=np.ones(4, np.int32))
def the_largest_of_numbers_and_a_bool(z, x):
    z[0] = max(x[0], x[1] > 0, x[2])  # here


@wrong("x: array(int32, 1d, C)", x=np.ones(4, np.int32))
def the_smallest_of_a_tuple_with_a_bool(z, x):
    z[0] = min((x[0], x[1] > 0))  # here


@pytest.mark.parametrize("name", WRONG)
def test_it_is_refused_before_anything_runs(device: na.Device, name: str) -> None:
    function, given, said = WRONG[name]
    kernel = na.launcher(cuda.jit(function))
    passed = {"z": np.zeros(4, F32), "x": np.ones(4, F32)} | given
    tensors = [na.from_host(v).sync() if isinstance(v, np.ndarray) else v for v in passed.values()]
    source, first = inspect.getsourcelines(function)
    (line,) = [first + i for i, text in enumerate(source) if "# here" in text]
    before = counters()
    with pytest.raises(KernelCompileError, match=f"kernel {name} cannot be compiled") as caught:
        kernel[1, 4](*tensors).sync()
    text = str(caught.value)
    assert f"test_numba_refuses.py, line {line}: " in text, text
    where = text if said.startswith(HINTS) else text.partition("which uses ")[2].split("\n")[0]
    assert said in where, text
    assert counters().launches == before.launches
    assert kernel.cpu_engine().name == "none yet"
    assert tensors[0].to_host().sync().tolist() == [0] * 4


@pytest.mark.parametrize(
    ("z", "x", "said"),
    [
        (
            (4,),
            (4, 2),
            "x[i] is a row of x, which has 2 axes.\nIndex all axes, or pass",
        ),
        ((4, 2), (4, 2), "z[i] is a row of z, which has 2 axes"),
        ((4,), (4, 2, 3), "x[i] is a part of x, which has 3 axes"),
    ],
    ids=str,
)
def test_a_row_taken_for_an_element_is_named(
    device: na.Device, z: tuple[int, ...], x: tuple[int, ...], said: str
) -> None:
    @na.launcher
    @cuda.jit
    def double(z: na.KernelOutput, x: na.KernelInput):
        i = cuda.grid(1)
        if i < z.shape[0]:
            z[i] = 2.0 * x[i]

    with pytest.raises(KernelCompileError) as caught:
        double(na.zeros(z), na.ones(x)).sync()
    assert said in str(caught.value)


def test_an_element_of_a_matrix_is_no_row(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def shifted(z: na.KernelOutput, x: na.KernelInput):
        i = cuda.grid(1)
        if i < z.shape[0]:
            z[i] = x[i, 0] << 1

    with pytest.raises(KernelCompileError) as caught:
        shifted(na.zeros(4), na.ones((4, 2))).sync()
    assert " is a row of " not in str(caught.value)
