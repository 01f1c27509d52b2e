"""Kernels whose source is not at hand: made by `exec`."""

from __future__ import annotations

from textwrap import dedent
from typing import Any

import numpy as np
from numba import cuda, float64, int32

import numbasync as na
from tests.common import host


def made(source: str, **names: Any) -> Any:
    """The function `kernel` of a program that is in no file."""
    space = {"cuda": cuda, "np": np, "na": na, "float64": float64, "int32": int32, **names}
    exec(dedent(source), space)
    return space["kernel"]


def test_a_made_kernel_with_conditions(device: na.Device) -> None:
    source = """
        def kernel(z: na.KernelOutput, x: na.KernelInput, n):
            i = cuda.grid(1)
            if i >= x.size:
                return
            if x[i] < 0 or (x[i] > 2 and i % 2 == 0):
                z[i, 0] = -x[i]
            elif not x[i] == 1:
                z[i, 0] = x[i] ** 2
            z[i, 1] = 1 if 0 < x[i] < n else -1
            a, b = x[i], n
            a, b = b + 1, a
            a += b
            z[i, 2] = a * 10 + b
        """
    x = np.linspace(-3, 5, 81)
    z = na.zeros((81, 3), np.float64).sync()
    na.launcher(cuda.jit(made(source)))[3, 32](z, x, 3).sync()
    i = np.arange(81)
    negated = (x < 0) | ((x > 2) & (i % 2 == 0))
    want = [
        np.where(negated, -x, np.where(x == 1, 0, x**2)),
        np.where((x > 0) & (x < 3), 1, -1),
        (4 + x) * 10 + x,
    ]
    np.testing.assert_allclose(host(z).T, want, rtol=1e-15)


def test_a_made_kernel_with_loops(device: na.Device) -> None:
    source = """
        def kernel(z: na.KernelOutput, x: na.KernelInput):
            i = cuda.grid(1)
            total = 0
            for j in range(x.shape[0]):
                if x[j] == i:
                    continue
                if x[j] > 12:
                    break
                for k in range(2, j):
                    total += k * x[j]
            n = i
            while n > 1 and total < 10**6:
                n = n // 2 if n % 2 == 0 else 3 * n + 1
                if n == 5:
                    continue
                total += n
            while True:
                n += 3
                if n > i:
                    break
            z[i] = total * 100 + n
        """
    x = np.array([3, 1, 4, 1, 5, 9, 2, 6, 13, 5, 3], np.int32)
    z = na.zeros(64, np.int64).sync()
    na.launcher(cuda.jit(made(source)))[2, 32](z, x).sync()
    want = []
    for i in range(64):
        total = 0
        for j, value in enumerate(x.tolist()):
            if value > 12 and value != i:
                break
            total += sum(k * value for k in range(2, j)) if value != i else 0
        n = i
        while n > 1 and total < 10**6:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            total += 0 if n == 5 else n
        n += 3
        while n <= i:
            n += 3
        want.append(total * 100 + n)
    np.testing.assert_array_equal(host(z), want)


def test_a_made_kernel_whose_threads_meet(device: na.Device) -> None:
    source = """
        def kernel(z: na.KernelOutput, x: na.KernelInput):
            t = cuda.threadIdx.x
            own = cuda.shared.array(64, float64)
            own[t] = x[cuda.grid(1)]
            cuda.syncthreads()
            step = 32
            while step > 0:
                if t < step:
                    own[t] += own[t + step]
                cuda.syncthreads()
                step //= 2
            if t == 0:
                cuda.atomic.add(z, 0, own[0])
            top = own[0]
            for i in range(2):
                top = cuda.shfl_xor_sync(0xFFFFFFFF, top + i, 1) if i < 1 else top
            below = 0
            if top < 0:
                below = 1
            if cuda.syncthreads_or(below):
                cuda.atomic.max(z, 1, 1.0)
        """
    x = np.random.default_rng(2).integers(0, 100, 256).astype(np.float64)
    z = na.zeros(2, np.float64).sync()
    kernel = na.launcher(cuda.jit(made(source)))
    kernel[4, 64](z, x).sync()
    np.testing.assert_array_equal(host(z), [x.sum(), 0])


def test_made_device_functions(device: na.Device) -> None:
    scaled = cuda.jit(device=True)(made("def kernel(a, by=2):\n    return a * by"))
    chosen = cuda.jit(device=True)(eval("lambda a, b: a if a > b else b"))

    @na.launcher
    @cuda.jit
    def both(z: na.KernelOutput, x: na.KernelInput):
        i = cuda.grid(1)
        z[i] = chosen(scaled(x[i], 3), x[i] + 10)

    x = np.arange(-20, 44)
    z = na.zeros(64, np.int64).sync()
    both[2, 32](z, x).sync()
    np.testing.assert_array_equal(host(z), np.maximum(3 * x, x + 10))


def test_parts_of_a_made_expression_keep_their_order(device: na.Device) -> None:
    """Each addition to the counter gives what was there before, and so tells when it was made."""

    @cuda.jit(device=True)
    def add(n):
        return cuda.atomic.add(n, 0, 1)

    source = """
        def kernel(z: na.KernelOutput, n: na.KernelOutput):
            z[0] = add(n) * 10 + add(n)
            z[1] = add(n) - (add(n) - add(n) * 100) * 10
            z[add(n)] = add(n)
            a = add(n)
            b = add(n)
            z[2] = b * 1000 + a * 100 + (add(n) < add(n)) + n[0]
            n[0] = 3
            before = n[0]
            n[0] = 5
            z[3] = before * 10 + n[0]
            x, y = add(n), add(n)
            z[4] = x * 10 + y
            z[add(n)], z[add(n) - 3] = add(n), add(n)
        """
    z, n = na.zeros(10, np.int64).sync(), na.zeros(1, np.int64).sync()
    kernel = na.launcher(cuda.jit(made(source, add=add)))
    kernel[1, 1](z, n).sync()
    # Values are computed before indices: 5 is stored at 6, 7 at 9 and 8 at 10 - 3.
    want = [1, 2 - (3 - 4 * 100) * 10, 8 * 1000 + 7 * 100 + 1 + 11, 35, 56, 0, 5, 8, 0, 7]
    assert host(z).tolist() == want
