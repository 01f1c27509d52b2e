"""Vector accesses in kernels: values on every device, and what the CPU device finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda, float32

import numbasync as na
from numbasync import testing, vectors
from numbasync.backend.cpu.interpreter.kernel import Interpreted
from numbasync.backend.cpu.runtime.workers import Engine
from numbasync.errors import (
    DataRaceError,
    KernelCompileError,
    LauncherError,
    MisalignedAccessError,
    OutOfBoundsError,
    TileOverrunError,
    UninitialisedReadError,
)
from tests.common import full, host

pytestmark = pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning")
FOUR = 4
# Integers with every number of bytes, other types with the most: the bytes are moved alike.
# Unsigned integers are moved as signed ones are.
WIDTHS = [
    (np.dtype(c), n // np.dtype(c).itemsize)
    for c in "?bhiqefdFD" for n in vectors.BYTES
    if n >= np.dtype(c).itemsize and (c in "bhiq" or n == max(vectors.BYTES))
]  # fmt: skip


def noise(dtype: Any, shape: Any) -> np.ndarray:
    """Values that use every byte: any of an integer, no NaN of a float."""
    rng = np.random.default_rng(5)
    kind = np.dtype(dtype).kind
    if kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if kind in "iu":
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    if kind == "c":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def moving(count: int) -> na.Launcher:
    """A kernel that moves `count` elements a thread, the vectors in reverse order."""

    @na.launcher
    @cuda.jit
    def move(z: na.KernelOutput, x: na.KernelInput):
        i = cuda.grid(1)
        if i < z.shape[0] // count:
            vectors.store(z, -count * (i + 1), vectors.load(x, i * count, count))

    return move


@pytest.mark.parametrize(
    ("dtype", "count"), [width if n % 4 == 0 else full(*width) for n, width in enumerate(WIDTHS)],
    ids=str,
)  # fmt: skip
def test_vectors_move_every_byte(device: na.Device, dtype: np.dtype, count: int) -> None:
    x = noise(dtype, 6 * count)
    z = na.zeros(6 * count, dtype).sync()
    moving(count)[1, 32](z, x).sync()
    assert host(z).reshape(6, count).tolist() == x.reshape(6, count)[::-1].tolist()


@pytest.mark.parametrize("dtype", [np.dtype(c) for c in "BefF"], ids=str)
def test_elements_are_numbers_of_the_arrays_type(device: na.Device, dtype: np.dtype) -> None:
    """They are computed with, and what is stored is converted, as by plain accesses."""
    count = max(2 // dtype.itemsize, 1)

    @na.launcher
    @cuda.jit
    def both(z: na.KernelOutput, plain: na.KernelOutput, x: na.KernelInput):
        values = vectors.load(x, 0, count)
        for k in range(count):
            plain[k] = x[k] + x[k]
        if count == 2:
            vectors.store(z, 0, (values[0] + values[0], values[1] + values[1]))
        else:
            vectors.store(z, 0, (values[0] + values[0],))

    z, plain = na.zeros(count, dtype).sync(), na.zeros(count, dtype).sync()
    both[1, 1](z, plain, noise(dtype, count)).sync()
    assert host(z).tolist() == host(plain).tolist()


def test_indices_are_those_of_plain_accesses(device: na.Device) -> None:
    """Tuples for several axes, variables of them, negative and unsigned numbers."""

    @na.launcher
    @cuda.jit
    def rows(z: na.KernelOutput, x: na.KernelInput, flat: na.KernelInput):
        i, j = cuda.grid(2)
        if i < 3 and j < 2:
            place = i, np.uint8(4 * j)
            a = vectors.load(x, (0, i - 3, 4 * j), count=FOUR)
            b = vectors.load(x[1], place, 4)
            c = vectors.load(flat, np.uint32(4 * i), 4)
            d = vectors.load(flat, -4, 4)
            vectors.store(z, place, (a[0] + b[0], a[1] + b[1], a[2] + c[2], a[3] + d[3]))

    x, flat = noise(np.int32, (2, 3, 8)) // 4, np.arange(12, dtype=np.int32)
    z = na.zeros((3, 8), np.int32).sync()
    rows[1, (4, 4)](z, x, flat).sync()
    a, b, c = x[0].reshape(3, 2, 4), x[1].reshape(3, 2, 4), flat.reshape(3, 1, 4)
    want = np.stack([a[..., 0] + b[..., 0], a[..., 1] + b[..., 1], a[..., 2] + c[..., 2],
                     a[..., 3] + 11], axis=-1)  # fmt: skip
    assert host(z).tolist() == want.reshape(3, 8).tolist()


@cuda.jit(device=True)
def swapped(array, i):
    a, b, c, d = vectors.load(array, i, FOUR)
    return d, c, b, a


def test_shared_and_local_arrays_device_functions_and_barriers(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def turn(z: na.KernelOutput, x: na.KernelInput):
        held = cuda.shared.array((2, 64), float32, alignment=16)
        own = cuda.local.array(4, float32)
        t = cuda.threadIdx.x
        values = swapped(x, 4 * t)
        vectors.store(held, (1, 4 * (15 - t)), values)
        cuda.syncthreads()
        vectors.store(own, 0, vectors.load(held, (1, 4 * t), 4))
        vectors.store(z, 4 * t, (own[0], own[1], values[1], own[3]))

    x = noise(np.float32, 64)
    z = na.zeros(64).sync()
    turn[1, 16](z, x).sync()
    want, own = x[::-1].copy(), x.reshape(16, 4)
    want[2::4] = own[:, 2]
    assert host(z).tolist() == want.tolist()


def test_is_aligned_chooses_for_views_that_start_anywhere(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def copy(z: na.KernelOutput, x: na.KernelInput, fits: na.KernelOutput):
        i = 4 * cuda.grid(1)
        if i + 4 <= z.shape[0]:
            if vectors.is_aligned(z, i, 4) and vectors.is_aligned(x, i, 4):
                vectors.store(z, i, vectors.load(x, i, 4))
                fits[0] = True
            else:
                for k in range(4):
                    z[i + k] = x[i + k]

    x = na.arange(48).sync()
    for start in range(5):
        z, fits = na.zeros(48).sync(), na.zeros(1, np.bool_).sync()
        copy[1, 32](z[start : start + 40], x[start : start + 40], fits).sync()
        assert host(z)[start : start + 40].tolist() == list(range(start, start + 40))
        assert host(fits)[0] == (start in (0, 4))


@pytest.mark.parametrize(
    ("count", "dtype", "said"),
    [
        (3, np.float32, "vector access to 3 elements of .*; write 1 or 2 or 4 "),
        (8, np.float32, "write 1 or 2 or 4 "),
        (1, np.int8, "write 2 or 4 or 8 or 16 "),
        (2, np.complex128, "write 1 "),
        (-4, np.float32, "vector access to -4 elements"),
    ],
)
def test_other_counts_are_refused(device: na.Device, count: int, dtype: Any, said: str) -> None:
    with pytest.raises(KernelCompileError, match=said):
        moving(count)[1, 1](na.zeros(16, dtype), na.zeros(16, dtype)).sync()


@na.launcher
@cuda.jit
def counted(z: na.KernelOutput, n):
    z[0] = vectors.load(z, 0, n)[0]


@na.launcher
@cuda.jit
def computed(z: na.KernelOutput):
    z[0] = vectors.load(z, 0, FOUR // 2)[0]


@na.launcher
@cuda.jit
def by_two_numbers(z: na.KernelOutput):
    z[0] = vectors.load(z, (0, 0), 4)[0]


@na.launcher
@cuda.jit
def of_a_number(z: na.KernelOutput):
    vectors.store(z, 0, 1)  # type: ignore[arg-type]


def test_what_is_no_vector_access_is_refused(device: na.Device) -> None:
    z = na.zeros(16).sync()
    for launch, said in (
        (counted[1, 1](z, 4), "a count of type int64"),
        (computed[1, 1](z), "a count of type int64"),
        (by_two_numbers[1, 1](z), "write 1 integers"),
        (of_a_number[1, 1](z), "write a tuple"),
        (moving(4)[1, 1](z[::2], z[1::2].dup()), "pass a C-contiguous array"),
    ):
        with pytest.raises(KernelCompileError, match=said):
            launch.sync()


def test_what_is_stored_to_is_an_output() -> None:
    @na.launcher
    @cuda.jit
    def move(z, x):
        if vectors.is_aligned(z, 0, 2):
            vectors.store(z, 0, vectors.load(x, 0, 2))

    assert [p.is_output for p in move.parameters] == [True, False]
    with pytest.raises(LauncherError, match="stores to z"):

        @na.launcher
        @cuda.jit
        def wrong(z: na.KernelInput):
            vectors.store(z, 0, (1, 2))


# --- what only the CPU device reports ---


@na.launcher
@cuda.jit
def two_at(z: na.KernelOutput, x: na.KernelInput, i, j):
    vectors.store(z, j, vectors.load(x, i, 2))


@pytest.fixture(params=[False, True], ids=["plain", "checked"])
def mode(request: pytest.FixtureRequest, cpu: None) -> Any:
    """Kernels as they are, and with checks of every access."""
    if not request.param:
        yield
        return
    with testing.checked(na.default_device()):
        yield


@pytest.mark.usefixtures("mode")
def test_misaligned_accesses_are_reported() -> None:
    z, x = na.zeros(8).sync(), na.ones(8).sync()
    two_at[1, 1](z, x, 0, 6).sync()
    for views, i, j, name, at in (
        ((z, x), 1, 0, "x", 1), ((z, x), 0, -3, "z", 5), ((z[1:], x), 0, 2, "z", 2),
    ):  # fmt: skip
        said = f"two_at, block .*: 8 bytes of {name}, from index {at} of .*test_cuda_vectors.py:"
        with pytest.raises(MisalignedAccessError, match=said):
            two_at[1, 1](*views, i, j).sync()
    assert host(z).tolist() == [0] * 6 + [1] * 2


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize(("i", "wrong"), [(6, 7), (8, 8), (-1, 7), (-8, -8)])
def test_elements_outside_of_the_array_are_reported(i: int, wrong: int) -> None:
    z, x = na.zeros(8).sync(), na.ones(7).sync()
    with pytest.raises(
        OutOfBoundsError, match=f"index {wrong} is out of bounds .* of x, which .* 7"
    ):
        two_at[1, 1](z, x, i, 0).sync()


@pytest.mark.usefixtures("mode")
def test_shared_arrays_are_aligned_as_on_gpus() -> None:
    @na.launcher
    @cuda.jit
    def unsaid(z: na.KernelOutput):
        held = cuda.shared.array(64, float32)
        held[0] = held[1] = 1
        vectors.store(z, 0, vectors.load(held, 0, 2))

    with pytest.raises(MisalignedAccessError, match="8 bytes of held.*\n.*alignment=16"):
        unsaid[1, 1](na.zeros(2)).sync()


@na.launcher
@cuda.jit
def overlapping(z: na.KernelOutput, x: na.KernelInput):
    i = cuda.grid(1)
    if i == 0:
        vectors.store(z, 0, vectors.load(x, 0, 2))
    else:
        z[i] = x[i] + 1


@na.launcher
@cuda.jit
def read_elsewhere(z: na.KernelOutput):
    i = 2 * cuda.grid(1)
    a = vectors.load(z, (i + 2) % z.shape[0], 2)
    z[i + 1] = a[0] + 1


@na.launcher
@cuda.jit
def unwritten(z: na.KernelOutput):
    held = cuda.shared.array(4, float32, alignment=16)
    held[0] = held[1] = held[2] = 1
    vectors.store(z, 0, vectors.load(held, 0, 4))


@na.launcher(threads=1)
@cuda.jit
def past_its_tile(z: na.KernelOutput):
    vectors.store(z, 2 * (cuda.blockIdx.x // 2), (1, 2))


@pytest.mark.usefixtures("cpu")
def test_checks_see_each_element() -> None:
    with testing.checked(na.default_device()):
        for launch, error, said in (
            (overlapping[1, 4](na.zeros(8), np.arange(8, dtype=np.float32)), DataRaceError, "of z"),
            (read_elsewhere[1, 4](na.zeros(8)), DataRaceError, "reads|writes an element of z"),
            (unwritten[1, 1](na.zeros(4)), UninitialisedReadError, "reads an element of held"),
            (past_its_tile(na.zeros(4).sync().partition(1)), TileOverrunError, "of z"),
        ):
            with pytest.raises(error, match=said):
                launch.sync()
        moving(4)[1, 8](na.zeros(32), na.ones(32)).sync()
    x = np.arange(8, dtype=np.float32)
    testing.check_kernel(
        two_at, [np.zeros(4, np.float32), x, 2, 0], lambda z, x, i, j: [2, 3, *z[2:]],
        grid=1, block=1,
    )  # fmt: skip
    with pytest.raises(testing.MisalignedAccess, match="of x, from index 1"):
        testing.check_kernel(two_at, [np.zeros(4, np.float32), x, 1, 0], None, grid=1, block=1)
    with pytest.raises(testing.KernelRace):
        testing.check_kernel(overlapping, [np.zeros(8, np.float32), x], None, grid=1, block=4)


# --- as Python ---


def test_python_kernels_and_programs_share_functions() -> None:
    def copy(z: Any, x: Any, i: Any) -> None:
        vectors.store(z, (0, i), vectors.load(x, i, count=2))

    class Argument:
        def __init__(self, array: np.ndarray) -> None:
            self.array = array

    x, z = np.arange(4, dtype=np.float32), np.zeros((1, 4), np.float32)

    def run(i: int) -> None:
        kernel = Interpreted(cuda.jit(copy), 1024)
        kernel.run((1, 1, 1), (1, 1, 1), 0, [Argument(z), Argument(x), i], Engine("test", 1))

    run(-2)
    assert z.tolist() == [[0, 0, 2, 3]]
    with pytest.raises(MisalignedAccessError, match="from index 1"):
        run(1)
    with pytest.raises(OutOfBoundsError, match="index 5 is out of bounds.*test_cuda_vectors.py:"):
        run(4)
    assert vectors.load(x, np.int64(2), 2) == (2, 3) and not vectors.is_aligned(x, 3, 2)
    assert vectors.is_aligned(x, 4, 2) and not vectors.is_aligned(x, 5, 2)  # behind the array
