"""Statements that are recovered from bytecode do what the function does."""

from __future__ import annotations

import ast
import itertools
import warnings
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.backend.cpu.compiler.from_bytecode import recovered
from numbasync.backend.cpu.compiler.names import UntranslatableError
from numbasync.errors import OutOfBoundsError

LOG: list[Any] = []


def told(value: Any) -> Any:
    """Leaves a note of the order in which parts are computed."""
    LOG.append(value)
    return value


def conditions(a, b, z):  # type: ignore[no-untyped-def]
    if (a > 0 and b > 0) or not (a < -2 or b == 1):
        z[0] = 1
    elif a == b:
        z[0] = 2
    if a:
        if b:
            z[1] = 1
        else:
            z[1] = 2
            if a > 2:
                return None
    else:
        z[1] = 3
    z[2] = a if a < b else b if b > 0 else -b
    z[3] = 0 < a < b <= 3
    if (a or b) and not (a and b):
        z[4] = 7
    return z[1] + (a == b)


def order(a, b, z):  # type: ignore[no-untyped-def]
    z[told(0)] = told(a) - told(b) * told(a + b)
    z[told(1)] += told(2)
    a, b = told(b), told(a)
    a, b, c = b + 1, a, told(a)
    z[2], z[told(3)] = told(c), a
    x = z[2]
    z[2] = told(9)
    z[4] = x + told(-a) ** 2 // told(5) % 3
    return told((told(a), told(b)))[told(1)]


def counting(a, b, z):  # type: ignore[no-untyped-def]
    total = i = 0
    for i in range(a + 4):
        if i == b:
            continue
        if i > 3 and total > 2:
            break
        for j in range(i):
            if j == 2:
                break
            total += j + 1
        total <<= 1
    for i, x in enumerate(z):
        total -= i * x
    return total * 100 + i


def waiting(a, b, z):  # type: ignore[no-untyped-def]
    n = 0
    while a > -3:
        a -= 1
        if a == b:
            continue
        n += 1
        while b < 4 or n > 9:
            b += 1
            n -= 2
            if b == 2:
                break
    while True:
        n += 7
        if n > 20:
            break
        if n == 13:
            return -1
    return n * 10 + b


def leaving(a, b, z):  # type: ignore[no-untyped-def]
    for i in range(6):
        for j in range(i):
            if i * j == a + b:
                z[0] = i
                return i
            if j == 3:
                z[1] = j
                break
        z[2] += 1
    return -1


def parts(a, b, z):  # type: ignore[no-untyped-def]
    y = z[1:]
    y += a
    z[::2] = b
    y[-1] |= 5
    t = (a, (b, a ^ b))
    u, (v, w) = t
    return ~u + v - +w, z[a % 3 : 4], max(a, b), not a, None


FUNCTIONS = [conditions, order, counting, waiting, leaving, parts]


def outcome(function: Callable[..., Any], a: int, b: int) -> tuple[Any, ...]:
    LOG.clear()
    z = np.arange(6)
    result = function(a, b, z)
    return repr(result), z.tolist(), list(LOG)


def rebuilt(function: FunctionType) -> Callable[..., Any]:
    node = recovered(function)
    space = dict(function.__globals__)
    exec(ast.unparse(node), space)
    made: Callable[..., Any] = space[node.name]
    return made


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_what_is_recovered_does_the_same(function: FunctionType) -> None:
    again = rebuilt(function)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for a, b in itertools.product(range(-5, 6), repeat=2):
            assert outcome(again, a, b) == outcome(function, a, b), (a, b)


def left_to_two_places(n, z):  # type: ignore[no-untyped-def]
    for i in range(n):
        if z[i] > 2:
            z[0] = 5
            break
    else:
        z[1] = 1
    z[2] = 3


def listing(n, z):  # type: ignore[no-untyped-def]
    z[0] = [n, 1][0]


@pytest.mark.parametrize(
    ("function", "what"), [(left_to_two_places, "bytecode"), (listing, "build_list")]
)
def test_what_cannot_be_recovered(function: FunctionType, what: str) -> None:
    with pytest.raises(UntranslatableError, match=what):
        recovered(function)


def test_an_index_of_a_made_kernel_is_checked() -> None:
    source = "def kernel(z, x):\n    i = cuda.grid(1)\n\n    z[i] = x[i + 1]\n"
    space: dict[str, Any] = {"cuda": cuda}
    exec(source, space)
    kernel = cuda.jit(space["kernel"])
    device = na.devices("cpu")[0]
    z = na.zeros(8).sync_on(device.new_stream())
    with pytest.raises(OutOfBoundsError, match=r"index 8 .* of x, .*:4\)"):
        na.launcher(kernel)[1, 8](z, np.zeros(8, np.float32)).sync_on(device.new_stream())
