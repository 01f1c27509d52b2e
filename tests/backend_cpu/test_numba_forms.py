"""Forms of Python that Numba takes in kernels, across barriers too: each thread keeps its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numba import cuda, float64, int32
from numba.cuda.misc.special import (  # pyright: ignore[reportMissingImports]
    literal_unroll,
)

import numbasync as na
from tests.common import full, host

X = np.arange(8.0)
RECORD = np.dtype([("a", np.int32), ("b", np.float64), ("text", "U4")], align=True)
RECORDS = np.array([(i, 10.0 * i, f"n{i}") for i in range(8)], RECORD)


def enumerated(z, x):
    t = cuda.threadIdx.x
    for k, v in enumerate((x[t], 2.0, 3.0)):
        cuda.syncthreads()
        z[t] += k * v


def zipped(z, x):
    t = cuda.threadIdx.x
    for a, b in zip((x[t], 2.0), (x[7 - t], 5.0)):  # noqa: B905 - Numba's has no `strict`
        cuda.syncthreads()
        z[t] += a * b


def unrolled(z, x, numbers):
    t = cuda.threadIdx.x
    for number in literal_unroll(numbers):
        cuda.syncthreads()
        z[t] += number + x[t]


@cuda.jit(device=True)
def scaled(value, by=2, plus=0):
    held = cuda.shared.array(8, float64)
    held[cuda.threadIdx.x] = value
    cuda.syncthreads()
    result = held[7 - cuda.threadIdx.x] * by + plus
    cuda.syncthreads()
    return result


def by_keywords(z, x):
    t = cuda.threadIdx.x
    z[t] = scaled(x[t], plus=1) + scaled(by=10, value=x[t])


def arrays_in_one_assignment(z, x):
    a, (b, t) = cuda.shared.array(8, float64), (cuda.local.array(2, int32), cuda.threadIdx)
    a[t.x], b[0] = x[t.x], t.x
    cuda.syncthreads()
    z[t.x] = a[7 - t.x] + b[0]


def records(z, r):
    t = cuda.threadIdx.x
    mine = r[t]
    cuda.syncthreads()
    other = r[7 - t]
    cuda.syncthreads()
    z[t] = mine.a + other.b if other.text == "n3" else mine.b


def tuples_in_tuples(z, x):
    t = cuda.threadIdx.x
    kept = ((x[t], t), (x, (t + 1, 2.5)))
    cuda.syncthreads()
    (v, i), (array, (k, half)) = kept
    z[t] = v + i + array[7 - t] + k * half


def rows_of_rows(z, cube):
    t = cuda.threadIdx.x
    row = cube[t]
    cuda.syncthreads()
    part = row[1]
    cuda.syncthreads()
    z[t] = part[0] + row[0][1]


def perhaps_none(z, x, more):
    t = cuda.threadIdx.x
    start = x[t]
    cuda.syncthreads()
    z[t] = start if more is None else start + more


def complex_and_bool(z, x):
    t = cuda.threadIdx.x
    w, is_odd = complex(x[t], 1.0), t % 2 == 1
    cuda.syncthreads()
    z[t] = (w * w).real if is_odd else abs(w) ** 2


def leaves_at_each_round(z, x):
    """Each round fewer threads come, those of the warp that are left by a shuffle."""
    t = cuda.threadIdx.x
    total = x[t]
    for k in range(3):
        if t >= 8 - k:
            break
        before = cuda.shfl_up_sync((1 << (8 - k)) - 1, total, 1)
        total += before if t else 0.0
    z[t] = total


def largest(z, x):
    t = cuda.threadIdx.x
    v = math.nan if t == 3 else x[t]
    cuda.syncthreads()
    z[t] = max(v, 4.0, 0.0)


def shifted_sums() -> np.ndarray:
    total = X.copy()
    for k in range(3):
        total[1 : 8 - k] += total[: 7 - k].copy()
    return total


CUBE = np.arange(32.0).reshape(8, 2, 2)
CASES: dict[str, tuple[Callable[..., None], tuple[Any, ...], np.ndarray]] = {
    "enumerate": (enumerated, (X,), 2.0 + 2 * 3 + 0 * X),
    "zip": (zipped, (X,), X * X[::-1] + 10),
    "literal_unroll": (unrolled, (X, (1, 2.5, np.float32(3))), 3 * X + 6.5),
    "keywords": (by_keywords, (X,), X[::-1] * 12 + 1),
    "one assignment": (arrays_in_one_assignment, (X,), X[::-1] + np.arange(8)),
    "records": (records, (RECORDS,), np.where(np.arange(8) == 4, 4 + 30, 10 * X)),
    "tuples": (tuples_in_tuples, (X,), 2 * X + X[::-1] + (X + 1) * 2.5),
    "rows": (rows_of_rows, (CUBE,), CUBE[:, 1, 0] + CUBE[:, 0, 1]),
    "None": (perhaps_none, (X, None), X),
    "a number": (perhaps_none, (X, 3), X + 3),
    "complex": (complex_and_bool, (X,), np.where(X % 2 == 1, X * X - 1, X * X + 1)),
    "leaves": (leaves_at_each_round, (X,), shifted_sums()),
    "max": (largest, (X,), np.where(X == 3, np.nan, np.maximum(X, 4))),
}
FIRST = ("literal_unroll", "records", "tuples", "leaves")


@pytest.mark.parametrize("name", [n if n in FIRST else full(n) for n in CASES])
def test_each_thread_has_its_own(device: na.Device, name: str) -> None:
    kernel, arguments, expected = CASES[name]
    z = na.zeros(8, np.float64).sync()
    given = [na.from_host(a).sync() if isinstance(a, np.ndarray) else a for a in arguments]
    na.launcher(cuda.jit(kernel))[1, 8](z, *given).sync()
    np.testing.assert_allclose(host(z), expected, rtol=1e-14)


@pytest.mark.usefixtures("cpu")
def test_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    @na.launcher
    @cuda.jit
    def say(z: na.KernelOutput, n):
        i = cuda.grid(1)
        if i == 1:
            print(i, "is 100 %; 5 %v 'a' \"b\"", z[i], n)  # noqa: T201
            cuda.syncwarp()
            print("@na.shared.0 = é; ", i > 0)  # noqa: T201
        cuda.syncthreads()
        if i == 0:
            print()  # noqa: T201
            print("done\n%s")  # noqa: T201
        z[i] = i

    say[1, 2](na.zeros(2, np.float32).sync(), 3).sync()
    said = "1 is 100 %; 5 %v 'a' \"b\" 0.000000 3\n@na.shared.0 = é;  True\n\ndone\n%s\n"
    assert capsys.readouterr().out == said
