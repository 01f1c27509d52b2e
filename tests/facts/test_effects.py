"""What a kernel stores to, found in its code: the ways that are hard to follow."""

from __future__ import annotations

import gc
import math
import operator
import weakref
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numba import cuda
from numba.cuda.random import xoroshiro128p_uniform_float32
from numba.extending import intrinsic

import numbasync as na
from numbasync.errors import LauncherError
from numbasync.facts.effects import summary
from numbasync.launch.parameters import parameters
from tests.waiting import in_time

if TYPE_CHECKING:
    pass  # pyright: ignore[reportMissingImports]


def written(function: Callable[..., Any]) -> set[str]:
    assert isinstance(function, FunctionType)
    return {p.name for p in parameters(function) if p.is_output}


# --- device functions ---


@cuda.jit(device=True)
def store(a, i):
    a[i] = 1


@cuda.jit(device=True)
def store_second(a, b):
    b[0] = a[0]


@cuda.jit(device=True)
def load(a, i):
    return a[i]


@cuda.jit(device=True)
def store_all(*arrays):
    for array in arrays:
        array[0] = 1


@cuda.jit(device=True)
def pass_on(*arrays):
    store_all(*arrays)


@cuda.jit(device=True)
def with_default(a, b, to=0, last=None):
    b[to] = a[0]


@cuda.jit(device=True)
def halve(n):
    while n > 1:
        n //= 2
    return n


@cuda.jit(device=True)
def add_to_members(pair):
    for member in pair:
        member += 1


# The stores are found last: in the innermost branch of a cycle of three.
@cuda.jit(device=True)
def ping(x, y, z):
    if x[0] > 0:
        pong(y, z, x)


@cuda.jit(device=True)
def pong(y, z, x):
    if y[0] > 0:
        pang(x, y, z)
    z[0] = 1


@cuda.jit(device=True)
def pang(x, y, z):
    ping(y, z, x)


@intrinsic
def hidden(typing_context, a):
    raise NotImplementedError


def mutual(x, y, z):
    ping(x, y, z)


def by_star(x, y):
    store_second(*(x, y))


def by_star_of_a_name(x, y):
    pair = (x, y)
    store_second(*pair)


def by_star_after_one(x, y):
    store_second(x, *(y,))


def to_star_parameter(x, y):
    store_all(y, y)


def star_to_star(x, y):
    pass_on(y)


def by_default(x, y):
    with_default(x, y)


def by_keyword_and_default(x, y):
    with_default(b=y, a=x, last=3)


def either_function(x, y):
    f = load if x[0] > 0 else store
    f(y, 0)


def called_by_another_name(x, y):
    f = store
    g = f
    g(y, 0)


def a_library_function(x, y):
    x[0] if xoroshiro128p_uniform_float32(y, 0) else 0


def an_intrinsic(x, y):
    hidden(y)  # pyright: ignore[reportCallIssue]


# --- NumPy and arrays ---


def ufunc_positional(x, y):
    np.add(x, x, y)


def ufunc_keyword(x, y):
    np.add(x, x, out=y)


def ufunc_star(x, y):
    np.add(*(x, x, y))


def ufunc_at(x, y):
    np.add.at(y, 0, 1)


def unknown_numpy(x, y):
    np.copyto(y, 1)


def shuffled(x, y):
    np.random.shuffle(y)


def out_of_a_reduction(x, y):
    np.sum(y, 0, None, y)


def fill(x, y):
    y.fill(x[0])


def sort_a_view(x, y):
    y[1:].T.sort()


def unknown_method(x, y):
    y.frobnicate(3)


def through_numpy_views(x, y):
    np.transpose(np.asarray(y))[0] = x[0]


def of_an_operator(x, y):
    operator.setitem(y, 0, 1)


def deleted(x, y):
    del y[0]


# --- in place ---


def whole_in_place(x, y):
    y += 1


def slice_in_place(x, y):
    v = y[1:]
    v += x[0]


def row_slice_in_place(x, y):
    v = y[0, 1:]
    v *= 2


def by_a_slice_object(x, y):
    s = slice(0, 2)
    v = y[s]
    v += 1


def dots_in_place(x, y):
    v = y[...]
    v -= 1


def stored_after_in_place(x, y):
    v = y[0]
    v += 1
    v[0] = 1


def members_in_place(x, y):
    add_to_members((y, y))


# --- closures and tuples ---


def closure(x, y):
    def inner(i):
        y[i] = x[i]

    inner(3)


def closure_by_another_name(x, y):
    put = lambda i: store(y, i)  # noqa: E731
    other = put
    other(0)


def closure_in_a_branch(x, y):
    f = (lambda i: store(y, i)) if x[0] > 0 else (lambda i: store(y, i + 1))
    f(0)


def closure_that_calls_itself(x, y):
    def inner(i):
        if i > 0:
            y[i] = 1
            inner(i - 1)

    inner(3)


def which_of_a_tuple(x, y):
    both = (x, y)
    both[1][0] = both[0][0]


def unpacked(x, y):
    a, b = (x, y)
    b[0] = a[0]


def strung_tuples(x, y):
    both = (y,) + (y,)  # noqa: RUF005 - what is tested
    both[0][0] = x[0]


def renamed(x, y):
    x = x[0]
    x += 1
    y[0] = x


ONLY_Y = [
    by_star, by_star_of_a_name, by_star_after_one, to_star_parameter, star_to_star, by_default,
    by_keyword_and_default, either_function, called_by_another_name, a_library_function,
    an_intrinsic, ufunc_positional, ufunc_keyword, ufunc_star, ufunc_at, unknown_numpy, shuffled,
    out_of_a_reduction, fill, sort_a_view, unknown_method, through_numpy_views, of_an_operator,
    deleted, whole_in_place, slice_in_place, row_slice_in_place, by_a_slice_object, dots_in_place,
    stored_after_in_place, members_in_place, closure, closure_by_another_name, unpacked,
    which_of_a_tuple, strung_tuples, renamed,
]  # fmt: skip


@pytest.mark.parametrize("kernel", ONLY_Y, ids=lambda f: f.__name__)
def test_stores_are_found_and_no_more(kernel: Callable[..., None]) -> None:
    assert written(kernel) == {"y"}


def test_closures_that_cannot_be_followed_count() -> None:
    assert "y" in written(closure_in_a_branch)
    with pytest.raises(LauncherError, match="Numba cannot read closure_that_calls_itself"):
        written(closure_that_calls_itself)


def test_code_with_many_paths_is_read_quickly() -> None:
    lines = ["def kernel(x, y):", "    f, k = load, 0"]
    for i in range(30):
        lines += [f"    if x[{i}] > 0:", "        f, k = f, k"]
        lines += [f"    elif y[{i}] > 0:", "        f, k = f, k"]
    lines += ["    f(x, 0)", "    w = y[k]", "    w += 1", "    y[0] = w"]
    names: dict[str, Any] = {"load": load}
    exec("\n".join(lines), names)
    assert in_time(lambda: written(names["kernel"])) == {"y"}


def test_mutually_calling_functions_are_read_to_the_end() -> None:
    assert written(mutual) == {"x", "y", "z"}
    # Asked in any order, each knows all.
    for function in (pong, pang, ping):
        assert {i for i, _ in summary(function.py_func).stores} == {0, 1, 2}


def test_nothing_incomplete_is_kept_after_an_error() -> None:
    @cuda.jit(device=True)
    def unreadable(a):
        import os

        a[0] = os.getpid()

    @cuda.jit(device=True)
    def around(a, b):
        store(b, 0)
        unreadable(a)

    for _ in range(2):
        with pytest.raises(LauncherError, match="cannot read unreadable"):
            summary(around.py_func)


def test_what_was_read_is_forgotten_with_the_function() -> None:
    def kernel(x):
        x[0] = 1

    parameters(kernel)
    gone = weakref.ref(kernel)
    del kernel
    gc.collect()
    assert gone() is None


# --- what is no store ---


def reads(x, y, n):
    i = cuda.grid(1)
    total = x[i]
    total += load(y, i)
    total += halve(x[i])
    row = np.float32(max(min(x[i], y[i]), abs(x[0])))
    row += math.sqrt(x[i]) + np.sqrt(y[i]) + len(x)
    own = cuda.shared.array(4, np.float32)
    own.fill(0)
    own[0] = row
    other = cuda.shfl_down_sync(-1, total, 1)
    other += cuda.popc(n)
    for k in range(x.shape[0]):
        total += x[k] + y.dtype.type(0)
    for element in y:
        total += element
    for element in y.reshape(4).T:
        total += element.item()
    total += x.sum() + np.sum(y) + np.zeros_like(x)[0] + x.astype(np.int32)[0]
    squares = [v * v for v in x]
    total += len(squares)
    add = lambda a: a + x[0]  # noqa: E731
    total = add(total)


def test_reading_is_no_store() -> None:
    assert written(reads) == set()


def test_an_added_to_row_counts_as_a_number() -> None:
    def kernel(x, y):
        v = x[0]
        v += 1
        y[0] = v

    assert written(kernel) == {"y"}


def test_a_counted_on_number_may_still_be_one() -> None:
    @na.launcher
    @cuda.jit
    def countdown(z, n):
        steps = n
        while n > 0:
            n -= 1
        z[0] = steps

    z = na.zeros(1).sync()
    for n in (3, 3.0, np.int32(3)):
        countdown[1, 1](z, n).sync()
        assert z.to_host().sync()[0] == 3
    n = parameters(countdown.py_func)[1]
    assert n.is_output and n.takes_number


def test_a_declared_number_may_be_counted_on() -> None:
    def kernel(z: na.KernelOutput, n: int):
        n += 1
        z[0] = n

    assert written(kernel) == {"z"}


def test_a_declaration_is_believed_where_code_is_opaque() -> None:
    unseen = cuda.declare_device("unseen", "void(float32[:], float32[:])")

    def kernel(x: na.KernelInput, y: na.KernelOutput):
        unseen(x, y)

    assert written(kernel) == {"y"}


def test_an_added_to_declared_input_is_an_error() -> None:
    def kernel(x: na.KernelInput):
        x += 1  # pyright: ignore[reportOperatorIssue]

    with pytest.raises(LauncherError, match="kernel kernel stores to x"):
        parameters(kernel)
