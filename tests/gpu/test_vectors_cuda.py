"""Vector accesses and literals on a GPU: instructions in the PTX, and values at every offset."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda, float32

import numbasync as na
from numbasync import vectors
from tests.common import host

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning"),
]
DTYPES = [np.dtype(c) for c in "?bBhHiIqQefdFD"]
WIDTHS = [(d, n // d.itemsize) for d in DTYPES for n in vectors.BYTES if n >= d.itemsize]


def variants(launcher: na.Launcher) -> list[Any]:
    return list(launcher.planner.kernel._variants.values())


def ptx(launcher: na.Launcher, device: na.Device) -> str:
    """The PTX of all variants of a kernel."""
    return "\n".join(v.assembly("ptx") for v in variants(launcher))


def accesses(text: str) -> list[str]:
    """Loads and stores of global, shared and local memory, in the order of the text."""
    return re.findall(r"\b((?:ld|st)\.(?:global|shared|local)[\w.]*)", text)


def moved(text: str) -> list[tuple[str, int]]:
    """The accesses, each with its bytes. Which type their names say differs between compilers."""
    pattern = re.compile(r"(\w+\.\w+)(?:\.v(\d))?\.[a-z]+(\d+)")
    found = [pattern.fullmatch(name) for name in accesses(text)]
    return [(m[1], int(m[2] or 1) * int(m[3]) // 8) for m in found if m is not None]


@cache
def copying(count: int) -> na.Launcher:
    """A kernel that copies, by vectors where both addresses allow it."""

    @na.launcher
    @cuda.jit
    def copy(z: na.KernelOutput, x: na.KernelInput, by_vectors: na.KernelOutput):
        i = cuda.grid(1) * count
        if i + count <= z.shape[0] and (
            vectors.is_aligned(z, i, count) and vectors.is_aligned(x, i, count)
        ):
            vectors.store(z, i, vectors.load(x, i, count))
            cuda.atomic.add(by_vectors, 0, 1)
        else:
            for k in range(i, min(i + count, z.shape[0])):
                z[k] = x[k]

    return copy


@pytest.mark.parametrize(("dtype", "count"), WIDTHS, ids=str)
def test_one_instruction_moves_a_vector(device: na.Device, dtype: np.dtype, count: int) -> None:
    @na.launcher
    @cuda.jit
    def move(z: na.KernelOutput, x: na.KernelInput):
        i = cuda.grid(1) * count
        if i < z.shape[0]:
            vectors.store(z, -i - count, vectors.load(x, i, count))

    x = np.random.default_rng(3).integers(0, 2, 40 * count).astype(dtype)
    z = na.zeros(40 * count, dtype).sync()
    move[2, 32](z, x).sync()
    assert host(z).reshape(40, count).tolist() == x.reshape(40, count)[::-1].tolist()
    nbytes = count * dtype.itemsize
    assert moved(ptx(move, device)) == [("ld.global", nbytes), ("st.global", nbytes)]


@settings(max_examples=150)
@given(
    st.sampled_from(WIDTHS), st.integers(0, 40), st.integers(0, 40), st.integers(0, 300),
    st.binary(min_size=8, max_size=8),
)  # fmt: skip
def test_views_of_any_start_and_length_are_copied(
    device: na.Device, width: tuple[np.dtype, int], to: int, start: int, length: int, bits: bytes
) -> None:
    dtype, count = width
    raw = np.resize(np.frombuffer(bits, np.uint8), 341 * dtype.itemsize)
    if dtype.kind == "b":
        raw = raw & 1
    x = raw.view(dtype)
    z, moved = na.zeros(341, dtype).sync(), na.zeros(1, np.int32).sync()
    source = na.from_host(x).sync()[start : start + length]
    target = z[to : to + length]
    if length:
        copying(count)[-(-length // count) // 64 + 1, 64](target, source, moved).sync()
    want = np.zeros(341, dtype)
    want[to : to + length] = x[start : start + length]
    assert host(z).tobytes() == want.tobytes()
    nbytes = count * dtype.itemsize
    fits = to * dtype.itemsize % nbytes == start * dtype.itemsize % nbytes == 0
    assert host(moved)[0] == (length // count if fits else 0)


def test_shared_memory_is_accessed_by_vectors(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def turn(z: na.KernelOutput, x: na.KernelInput):
        held = cuda.shared.array((2, 128), float32, alignment=16)
        t = cuda.threadIdx.x
        vectors.store(held, (1, 4 * (31 - t)), vectors.load(x, 4 * t, 4))
        cuda.syncthreads()
        a, b, c, d = vectors.load(held, (1, 4 * t), 4)
        vectors.store(z, 4 * t, (d, c, b, a))

    x = np.random.default_rng(3).random(128, np.float32)
    z = na.zeros(128).sync()
    turn[1, 32](z, x).sync()
    assert host(z).tolist() == x[::-1].tolist()
    spaces = ("ld.global", "ld.shared", "st.global", "st.shared")
    text = ptx(turn, device)
    assert sorted(moved(text)) == [(space, 16) for space in spaces]
    if device.compute_capability < (10, 0):  # later ones move the same bytes as v2.b64
        assert all(f"{space}.v4.f32" in text for space in spaces)


# --- literals, and what the compiler makes of constants ---


def test_a_literal_unrolls_loops_and_uses_registers(device: na.Device) -> None:
    def body(z: Any, x: Any, n: Any) -> None:
        i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
        if i < z.shape[0]:
            own = cuda.local.array(8, float32)
            for k in range(n):
                own[k] = x[i, k]
            total = float32(0)
            for k in range(n):
                total += own[n - 1 - k] * own[k]
            z[i] = total

    plain, literal = na.launcher(body), na.launcher(_with_literal(body))
    x = np.random.default_rng(3).random((40, 8), np.float32)
    for kernel in (plain, literal):
        z = na.zeros(40).sync()
        kernel[2, 32](z, x, 8).sync()
        np.testing.assert_allclose(host(z), (x * x[:, ::-1]).sum(1), rtol=1e-5)
    assert "ld.local" in ptx(plain, device)
    text = ptx(literal, device)
    assert moved(text) == [("ld.global", 4)] * 8 + [("st.global", 4)]
    assert all(v.packed for v in variants(literal))


def _with_literal(function: Any) -> Any:
    """A copy of the function whose parameter `n` is a literal."""
    from types import FunctionType

    copy = FunctionType(function.__code__, function.__globals__, "literal")
    copy.__annotations__ = {"n": na.Literal}
    return copy


SIDE = 8


@pytest.mark.parametrize("count", [4, 64])
def test_the_compiler_unrolls_loops_of_constant_length(device: na.Device, count: int) -> None:
    """What the guide says: nobody needs to unroll by hand. Of closures and of global ints."""

    @na.launcher
    @cuda.jit
    def sums(z: na.KernelOutput, x: na.KernelInput):
        i = cuda.grid(1)
        own = cuda.local.array(count, float32)
        held = cuda.shared.array((SIDE, SIDE), float32)
        for k in range(count):
            own[k] = x[i, k]
        held[cuda.threadIdx.x % SIDE, 0] = 0
        total = float32(0)
        for k in range(count):
            total += own[k] * own[count - 1 - k]
        z[i] = total

    x = np.ones((32, count), np.float32)
    z = na.zeros(32).sync()
    sums[1, 32](z, x).sync()
    assert (host(z) == count).all()
    text = ptx(sums, device)
    assert moved(text).count(("ld.global", 4)) == count and ".local" not in text
    assert f"[{4 * SIDE * SIDE}]" in text
