"""`check_kernel`: right kernels pass on every device, wrong results and wrong calls do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync import testing
from numbasync.errors import CallerError, DTypeError
from numbasync.layout import Layout
from numbasync.testing import check_kernel
from numbasync.testing.check.guard_zones import ZONE, Guarded
from numbasync.testing.check.judge import bits_differ

pytestmark = pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning")
X = np.random.default_rng(0).random(100).astype(np.float32)


@na.launcher
@cuda.jit
def saxpy(z: na.KernelOutput, a, x: na.KernelInput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = a * x[i] + z[i]


@cuda.jit
def scaled(z, x, a):
    for i in range(cuda.grid(1), z.shape[0], cuda.gridsize(1)):
        z[i] = a * x[i]


@na.launcher(axes=(1, 0))
@cuda.jit
def transposed(out: na.KernelOutput, x: na.KernelInput):
    j, i = cuda.grid(2)
    if i < out.shape[0] and j < out.shape[1]:
        out[i, j] = x[j, i]


@na.launcher
@cuda.jit
def both(total: na.KernelOutput, z: na.KernelOutput, x: na.KernelInput):
    i = cuda.grid(1)
    if i < x.shape[0]:
        cuda.atomic.add(total, 0, x[i])
        z[i] = -x[i]


@na.launcher
@cuda.jit
def record_to_row(out: na.KernelOutput, x: na.KernelInput):
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i].a = x[i].b


def test_right_kernels_pass(device: na.Device) -> None:
    check_kernel(saxpy, [X.copy(), 2.0, X], lambda z, a, x: a * x + z, tile=32)
    check_kernel(saxpy, [X.copy(), np.float32(2.1), X], lambda z, a, x: a * x + z)
    check_kernel(
        scaled, [np.zeros_like(X), X, 3.0], lambda z, x, a: a * x, grid=4, block=32,
        grids=[(1, 1), (3, 7), (100, 1)],
    )  # fmt: skip
    x = X.reshape(20, 5)
    check_kernel(transposed, [np.zeros((5, 20), np.float32), x], lambda _, x: x.T, tile=(2, 4))


def test_several_outputs(device: na.Device) -> None:
    def reference(total: Any, z: Any, x: Any) -> Any:
        return total + x.sum(), -x

    args = [np.ones(1, np.float32), np.zeros_like(X), X]
    check_kernel(both, args, reference, tile={"z": 32})
    check_kernel(both, args, lambda total, z, x: (None, -x), tile={"z": 32})

    def in_place(total: Any, z: Any, x: Any) -> None:
        total += x.sum()
        z[:] = -x

    check_kernel(both, args, in_place, tile={"z": 32})
    assert args[0] == 1 and not args[1].any()  # the caller's
    with pytest.raises(CallerError, match="gave 1 arrays, and both.* has 2 outputs: total, z"):
        check_kernel(both, args, lambda total, z, x: -x, tile={"z": 32})
    with pytest.raises(testing.KernelMismatch, match="100 of 100 elements of z"):
        check_kernel(both, args, lambda total, z, x: (None, x + 1), tile={"z": 32})


def test_records_and_empty_arrays_and_no_reference(device: na.Device) -> None:
    kind = np.dtype([("a", np.int32), ("b", np.int32)])
    x = np.array([(1, 2), (3, 4), (5, 6)], kind)

    def swapped(out: Any, x: Any) -> Any:
        out["a"] = x["b"]
        return out

    check_kernel(record_to_row, [np.zeros(3, kind), x], swapped, block=4)
    with pytest.raises(testing.KernelMismatch) as error:  # nobody writes b
        check_kernel(record_to_row, [x.copy(), x], lambda out, x: swapped(x.copy(), x), block=4)
    assert "no thread" not in str(error.value)  # fields are not watched
    check_kernel(saxpy, [X[:0].copy(), 2.0, X[:0]], lambda z, a, x: z)
    check_kernel(saxpy, [X.copy(), 2.0, X], None, tile=32)


def test_bytes_between_fields_are_nobodys(device: na.Device) -> None:
    kind = np.dtype([("a", np.int8), ("b", np.int32), ("c", np.int16, (3,))], align=True)
    x = np.full(4 * kind.itemsize, 0x5A, np.uint8).view(kind)
    check_kernel(record_to_row, [np.zeros(4, kind), x], None, block=4)
    before, after = x.copy(), x.copy()
    after["b"][1] += 1
    after["c"][3, 2] = 0
    assert bits_differ(before, after).tolist() == [False, True, False, True]


def test_a_report_says_what_a_person_needs(device: na.Device) -> None:
    def wrong(z: Any, a: Any, x: Any) -> Any:
        z = a * x + z
        z[40:64] += 1
        return z

    with pytest.raises(testing.KernelMismatch) as error:
        check_kernel(saxpy, [np.zeros_like(X), 2.0, X], wrong, tile=32, races=2, seed=5)
    said = str(error.value)
    assert isinstance(error.value, AssertionError)
    assert "kernel saxpy on cpu:0, grid (4, 1, 1), block (32, 1, 1)" in said
    assert "24 of 100 elements of z are wrong (default tolerance)" in said
    want = 2 * np.float64(X[40]) + 1
    got = np.float32(2) * X[40]
    ulps = 1 / np.spacing(np.float32(want))
    assert f"first at (40,): got {got!s}, want {want!s}: off by 1, {ulps:.3g} ulp\n" in said
    assert "written by block (1, 0, 0), thread (8, 0, 0)" in said
    assert "\n    .+..\n" in said
    assert "again: pytest 'tests/testing/test_check_kernel.py::test_a_report" in said
    assert said.endswith("--kernel-seed 5")


@na.launcher
@cuda.jit
def only_positive(z: na.KernelOutput, x: na.KernelInput):
    i = cuda.grid(1)
    if i < z.shape[0] and x[i] > 0.5:
        z[i] = x[i]


def test_an_element_that_is_not_written_is_missed(device: na.Device) -> None:
    args = [np.zeros_like(X), X]

    def relu(z: Any, x: Any) -> Any:
        return np.where(x > 0.5, x, 0)

    with pytest.raises(testing.KernelMismatch, match="got nan, want 0") as error:
        check_kernel(only_positive, args, relu, tile=32)
    assert "of which no thread changed it" in str(error.value)
    assert "what was there before" in str(error.value)
    assert "pass poison=False" in str(error.value)
    check_kernel(only_positive, args, relu, tile=32, poison=False)
    with pytest.raises(testing.KernelMismatch) as error:
        check_kernel(only_positive, args, lambda z, x: x, tile=32, poison=False)
    assert "what was there before\n" in str(error.value)
    check_kernel(only_positive, args, lambda z, x: np.where(x > 0.5, x, z), tile=32)
    with pytest.raises(CallerError, match="x is no output of only_positive"):
        check_kernel(only_positive, args, relu, poison=["x"])


@na.launcher
@cuda.jit
def all_but_the_last(z: na.KernelOutput, x: na.KernelInput):
    i = cuda.grid(1)
    if i < z.shape[0] - 1:
        z[i] = x[i]


def test_a_map_shows_all_that_is_wrong(device: na.Device) -> None:
    args: list[Any] = [np.zeros_like(X), X, 1.0]
    here: dict[str, Any] = {"grid": 1, "block": 100}
    with pytest.raises(testing.KernelMismatch) as error:
        check_kernel(scaled, args, lambda z, x, a: x + (x < 0.5), races=1, **here)
    assert "blocks (1 block along x; # all wrong, + some, . none):\n    +\n" in str(error.value)
    with pytest.raises(testing.KernelMismatch) as error:
        check_kernel(
            only_positive, args[:2], lambda z, x: np.where(np.arange(100) < 90, x, 0), races=1,
            poison=False, **here,
        )  # fmt: skip
    report = str(error.value)
    assert "elements of shape (100,)" in report
    row = report.split("none):\n    ")[1].split("\n")[0]
    wrong = np.where(X > 0.5, np.arange(100) >= 90, np.arange(100) < 90)
    assert row == "".join(".+#"[a + b] for a, b in wrong.reshape(-1, 2).tolist())


def test_a_result_that_was_there_by_chance(device: na.Device) -> None:
    for x in (np.ones(8, np.bool_), np.zeros(8, np.bool_), np.full(8, np.nan)):
        args = [np.zeros_like(x), x]
        with pytest.raises(testing.KernelMismatch, match=r"1 of 8 .*\n  first at \(7,\)"):
            check_kernel(all_but_the_last, args, _x_of, tile=4, races=0)
        check_kernel(all_but_the_last, args, lambda z, x: np.append(x[:-1], z[-1]), tile=4, races=0)


def test_a_kernels_inputs_are_left_as_they_are(device: na.Device) -> None:
    # saxpy reads z: filled with NaN it could not be right.
    check_kernel(saxpy, [np.ones_like(X), 2.0, X], lambda z, a, x: a * x + 1, tile=32)


def _anything(*args: Any) -> Any:
    return 1


def test_tolerances(device: na.Device) -> None:
    def off(by: float) -> Any:
        return lambda z, a, x: (a * x + z) * (1 + by)

    args = [np.zeros_like(X), 1.0, X]
    eps = float(np.finfo(np.float32).eps)
    check_kernel(saxpy, args, off(1e-6))
    with pytest.raises(testing.KernelMismatch):
        check_kernel(saxpy, args, off(1e-4))
    check_kernel(saxpy, args, off(1e-4), rtol=2e-4)
    check_kernel(saxpy, args, off(1e-4), atol=2e-4)
    check_kernel(saxpy, args, off(0.9 * eps), ulp=2)
    with pytest.raises(testing.KernelMismatch, match=r"\(ulp=2\)"):
        check_kernel(saxpy, args, off(3 * eps), ulp=2)


def _x_of(z: Any, x: Any) -> Any:
    return x


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"kernel": 3}, CallerError, "3 is no kernel"),
        ({"kernel": only_positive[2, 64]}, CallerError, r"only_positive\[\(2, .* has its extents"),
        ({"kernel": only_positive.forall(9)}, CallerError, r"\[9 threads\]> .* extents by name"),
        ({"reference": X}, CallerError, "the reference is a function of the arguments, not array"),
        ({"reference": lambda *_: "abc"}, CallerError, "gave <U3 for z, which is float32"),
        ({"reference": lambda *_: [[1], [1, 2]]}, CallerError, "which is no array"),
        ({"reference": lambda z, x: x + 1j}, CallerError, "gave complex128 .* return its .real"),
        ({"races": -1}, CallerError, "races=-1: a whole number from 0 to 100,000"),
        ({"races": "many"}, CallerError, "races='many': a whole number"),
        ({"seed": -1}, CallerError, "seed=-1: a whole number"),
        ({"rtol": -1e-3}, CallerError, "rtol=-0.001: a number of at least 0"),
        ({"grids": [1, 32]}, CallerError, r"grids= has 1; write \(grid, block\)"),
        ({"grids": (1, 32)}, CallerError, r"grids= has 1; write \(grid, block\)"),
        ({"poison": None}, CallerError, "poison=None: True, False, or names of outputs"),
        ({"args": [X.astype("O"), X]}, DTypeError, "check_kernel: z: .* cannot hold object"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)  # fmt: skip
def test_calls_that_cannot_be_meant(
    device: na.Device, change: dict[str, Any], error: Any, said: str
) -> None:
    call: dict[str, Any] = {"kernel": only_positive, "args": [X, X], "reference": _x_of, **change}
    with pytest.raises(error, match=said):
        check_kernel(**call)


def test_tensors_are_no_arguments(device: na.Device) -> None:
    z = na.zeros(4).sync()
    for given in (z, z.partition(2)):
        with pytest.raises(
            CallerError,
            match="x is <.*Tensor .*; pass NumPy arrays",
        ):
            check_kernel(saxpy, [X, 1.0, given], _anything)


def test_calls_that_do_not_fit(device: na.Device) -> None:
    with pytest.raises(CallerError, match="takes 3 arguments, and 2 came"):
        check_kernel(saxpy, [X, 1.0], _anything)
    with pytest.raises(CallerError, match=r"x is no output of saxpy\(z, a, x\); its outputs are z"):
        check_kernel(saxpy, [X.copy(), 1.0, X], _anything, tile={"x": 32})
    with pytest.raises(CallerError, match=r"shape \(64,\) for z, which has shape \(100,\)"):
        check_kernel(saxpy, [X.copy(), 1.0, X], lambda z, a, x: np.ones(64))


def test_zones_around_arrays_are_seen(device: na.Device) -> None:
    guarded = Guarded(np.arange(6, dtype=np.int32).reshape(2, 3))
    inside, write = guarded.read()
    assert write is None and inside.tolist() == [[0, 1, 2], [3, 4, 5]]
    whole = guarded.tensor.storage  # what lies around it, as a kernel on a GPU reaches it
    words = na.Tensor(device, whole, Layout(0, (2 * ZONE // 4 + 6,), (4,)), np.dtype(np.int32))
    na.fill(words[ZONE // 4 + 6 : ZONE // 4 + 8], 7).sync()
    assert str(guarded.read()[1]) == "written 1 element past its end, and 7 bytes more"
    na.fill(words[ZONE // 4 - 2], 7).sync()
    assert guarded.read()[0].tolist() == [[0, 1, 2], [3, 4, 5]]
    other = Guarded(np.zeros(3, np.int64))
    at = Layout(ZONE - 16, (1,), (8,))
    na.fill(na.Tensor(device, other.tensor.storage, at, np.dtype(np.int64)), 1).sync()
    found = other.read()[1]
    assert found is not None and found.elements == -2


@na.launcher
@cuda.jit
def adds_twice(z: na.KernelOutput, x: na.KernelInput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] += 2 * x[i]


def test_what_is_added_to_is_read(device: na.Device) -> None:
    check_kernel(adds_twice, [np.ones_like(X), X], lambda z, x: 1 + 2 * x, tile=32)
