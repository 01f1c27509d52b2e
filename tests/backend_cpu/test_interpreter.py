"""Kernels that run as Python: what a debugger sees, what `cuda` means, and what errors say."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest
from numba import cuda, float32, int32, uint8
from numba.cuda import libdevice, syncthreads

from numbasync.backend.cpu.interpreter.kernel import Interpreted
from numbasync.backend.cpu.runtime import choose_engine
from numbasync.backend.cpu.runtime.workers import Engine
from numbasync.backend.protocols import ArrayKey, Checks, Dim3
from numbasync.errors import (
    CallerError,
    InterpretedKernelWarning,
    KernelCompileError,
    KernelError,
    OutOfBoundsError,
    UnsupportedKernelError,
)

KEY = ArrayKey("<f4", 1, "C")
TABLE = np.array([3, 1, 4], np.uint8)
helpers: Any = types.ModuleType("helpers")


class Argument:
    def __init__(self, array: np.ndarray) -> None:
        self.array = array


def run(
    kernel: Any,
    *args: Any,
    grid: Dim3 = (1, 1, 1),
    block: Dim3 = (1, 1, 1),
    checks: Checks | None = None,
) -> None:
    values = [Argument(a) if isinstance(a, np.ndarray) else a for a in args]
    interpreted = Interpreted(cuda.jit(kernel), 1024)
    interpreted.run(grid, block, 64, values, Engine("test", 1), checks)


# --- which engine ---


def test_the_engine_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMBASYNC_CPU_ENGINE", raising=False)
    assert choose_engine.requested_engine() == "compiled"
    monkeypatch.setenv("NUMBASYNC_CPU_ENGINE", " Interpreted")
    assert choose_engine.requested_engine() == "interpreted"
    for name in ("auto", "warp"):
        monkeypatch.setenv("NUMBASYNC_CPU_ENGINE", name)
        with pytest.raises(CallerError, match=f"'{name}': write compiled or interpreted"):
            choose_engine.requested_engine()


def test_a_process_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    @cuda.jit
    def copy(z, x):
        z[0] = x[0]

    monkeypatch.setattr(choose_engine, "_has_warned", False)
    told = r"kernel copy, and every other, runs as Python .* hundred times .* not a GPU's"
    with pytest.warns(InterpretedKernelWarning, match=told) as warned:
        kernel = choose_engine.prepare_kernel(copy, (KEY, KEY), 1024, "interpreted")
        choose_engine.prepare_kernel(copy, (KEY, KEY), 1024, "interpreted")
    (warning,) = warned
    assert warning.filename == __file__
    assert (kernel.engine, kernel.why) == (
        "interpreted",
        "NUMBASYNC_CPU_ENGINE=interpreted asks for it",
    )


def test_numbas_refusals_hold_unless_a_kernel_is_debugged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @cuda.jit
    def refused(z, x):
        z[0] = x[0] & 1

    @cuda.jit
    def debugged(z, x):
        print(f"{x[0]:.1f}")  # noqa: T201
        z[0] = x[0]

    monkeypatch.setattr(choose_engine, "_has_warned", True)
    with pytest.raises(KernelCompileError, match="and_"):
        choose_engine.prepare_kernel(refused, (KEY, KEY), 1024, "interpreted")
    with pytest.raises(KernelCompileError):
        choose_engine.prepare_kernel(debugged, (KEY, KEY), 1024, "compiled")
    assert choose_engine.prepare_kernel(debugged, (KEY, KEY), 1024, "interpreted")


# --- debugging ---


def test_a_debugger_stops_in_the_kernels_own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel(out, x):
        own = cuda.shared.array(4, float32)
        t = cuda.threadIdx.x
        own[t] = x[t]
        cuda.syncthreads()
        breakpoint()
        out[t] = own[3 - t]

    stops = []

    def hook() -> None:
        frame = sys._getframe(1)
        frame_locals = frame.f_locals
        stops.append(
            (frame.f_code is kernel.__code__, frame_locals["t"], list(frame_locals["own"]))
        )

    monkeypatch.setattr(sys, "breakpointhook", hook)
    out = np.zeros(4)
    run(kernel, out, np.arange(4.0), block=(4, 1, 1))
    assert stops == [(True, t, [0, 1, 2, 3]) for t in range(4)]
    assert out.tolist() == [3, 2, 1, 0]


def test_print_shows_what_a_thread_has(capsys: pytest.CaptureFixture[str]) -> None:
    def kernel(x):
        print(cuda.threadIdx, x[cuda.threadIdx.x : 2])  # noqa: T201

    run(kernel, np.arange(2), block=(2, 1, 1))
    assert capsys.readouterr().out.splitlines() == [
        "Index3(x=0, y=0, z=0) [0 1]",
        "Index3(x=1, y=0, z=0) [1]",
    ]


# --- what names mean ---


def test_the_users_function_and_module_stay_unchanged() -> None:
    def kernel(out):
        out[0] = cuda.grid(1)

    names = dict(kernel.__globals__)
    run(kernel, np.zeros(1))
    assert {k: v for k, v in kernel.__globals__.items() if k in names} == names


@cuda.jit(device=True)
def power(x, n):
    return x * power(x, n - 1) if n > 0 else 1


def test_closures_modules_and_device_functions() -> None:
    scale = 2.5

    @cuda.jit(device=True)
    def scaled(x):
        return x[cuda.threadIdx.x] * scale

    def kernel(out, x, pair):
        def inner(value):
            return value + pair[1][0] + cuda.blockDim.x

        syncthreads()
        out[cuda.grid(1)] = inner(scaled(x)) + helpers.power(pair[0], 3) + TABLE[-1]

    helpers.power = power
    out, x = np.zeros(3), np.arange(3.0)
    run(kernel, out, x, (2, (100,)), block=(3, 1, 1))
    assert out.tolist() == (x * 2.5 + 100 + 3 + 8 + 4).tolist()


def sleeps(out):
    out[0] = cuda.nanosleep(1)


def uses_libdevice(out):
    out[0] = libdevice.sqrt(out[0])


def is_misspelt(out):
    cuda.syncthread()


@pytest.mark.parametrize(
    ("kernel", "told"),
    [
        (sleeps, "kernel sleeps, block.*cuda.nanosleep is not available"),
        (uses_libdevice, "libdevice.*is not available"),
        (is_misspelt, r"numba\.cuda has no 'syncthread'.*misspelt"),
    ],
)
def test_what_is_not_available_is_named(kernel: Any, told: str) -> None:
    with pytest.raises(UnsupportedKernelError, match=told):
        run(kernel, np.zeros(1))


def test_fields_of_structures_are_attributes_and_items() -> None:
    def kernel(out, records):
        own = cuda.local.array(1, records.dtype)
        own[0] = records[1]
        records[0].a = own[0]["a"] + 1
        out[0] = own[0].b + records[0].a

    records = np.array([(1, 2.5), (3, 4.5)], [("a", np.int32), ("b", np.float32)])
    out = np.zeros(1)
    run(kernel, out, records)
    assert records["a"].tolist() == [4, 3] and out.tolist() == [8.5]


# --- threads and barriers ---


def test_threads_and_blocks_are_numbered_as_on_gpus() -> None:
    def kernel(out):
        x, y, z = cuda.grid(3)
        out[z, y, x] = (
            cuda.threadIdx.x + 10 * cuda.blockIdx.y + 100 * cuda.threadIdx.z + 1000 * cuda.laneid
        )
        if x == 0 and y == 0 and z == 0:
            gx, gy, gz = cuda.gridsize(3)
            out[z, y, x] = gx * 100 + gy * 10 + gz

    out = np.zeros((4, 6, 4), np.int64)
    run(kernel, out, grid=(2, 3, 1), block=(2, 2, 4))
    assert out[0, 0, 0] == 464
    assert out[3, 5, 3] == 1 + 20 + 300 + 1000 * (1 + 2 * (1 + 2 * 3))


def test_a_block_reduction_with_barriers() -> None:
    def kernel(out, x):
        own = cuda.shared.array(64, float32)
        t = cuda.threadIdx.x
        own[t] = x[cuda.grid(1)]
        step = 32
        while step > 0:
            cuda.syncthreads()
            if t < step:
                own[t] += own[t + step]
            step //= 2
        if t == 0:
            out[cuda.blockIdx.x] = own[0]

    x = np.arange(256, dtype=np.float32)
    out = np.zeros(4, np.float32)
    run(kernel, out, x, grid=(4, 1, 1), block=(64, 1, 1))
    assert out.tolist() == x.reshape(4, 64).sum(1).tolist()


def test_shared_memory() -> None:
    def kernel(out):
        a, b = cuda.shared.array(1, float32), cuda.shared.array((1, 1), float32)  # on one line
        if cuda.blockIdx.x == 0:
            out[0] = a[0]  # not written yet
        a[0], b[0, 0] = 1, 2
        out[1] = a[0] + 10 * b[0, 0]
        wide, narrow = cuda.shared.array(0, float32), cuda.shared.array(0, uint8)
        wide[0] = 1.0
        out[2] = narrow[3]  # the sign and exponent of 1.0
        out[3] = wide.shape[0]

    out = np.zeros(4)
    run(kernel, out, grid=(2, 1, 1))
    assert np.isnan(out[0]) and out[1:].tolist() == [21, 0x3F, 16]


def test_shared_memory_has_a_limit() -> None:
    def fits(out):
        out[0] = cuda.shared.array(12 * 1024, float32).shape[0]  # beside 64 dynamic bytes

    def exceeds(out):
        out[0] = cuda.shared.array(12 * 1024 + 1, float32).shape[0]

    run(fits, np.zeros(1))
    with pytest.raises(
        KernelError, match="49,156 bytes of static and 64 bytes of dynamic .* 49,152 static"
    ):
        run(exceeds, np.zeros(1))


def test_threads_run_in_the_order_of_a_check() -> None:
    def kernel(out):
        cuda.syncthreads()
        out[0] = 10 * cuda.blockIdx.x + cuda.threadIdx.x

    out = np.zeros(1)
    for checks, last in ((None, 23), (Checks("forward"), 23), (Checks("reverse"), 0)):
        run(kernel, out, grid=(3, 1, 1), block=(4, 1, 1), checks=checks)
        assert out[0] == last


# --- numbers ---


def test_an_exception_names_kernel_block_thread_and_line() -> None:
    def kernel(out):
        out[cuda.grid(1)] = 1

    with pytest.raises(OutOfBoundsError) as caught:
        run(kernel, np.zeros(5), grid=(2, 1, 1), block=(4, 1, 1))
    for part in ("kernel kernel", "block (1, 0, 0)", "thread (1, 0, 0)", "out of bounds", __file__):
        assert part in str(caught.value)
    assert isinstance(caught.value.__cause__, IndexError)


def test_numbers_are_pythons_and_numpys() -> None:
    def kernel(out, small, x):
        out[0] = x[0] / x[1]
        out[1] = small[0] + small[0]
        out[2] = np.float32(0.1) * 2.1
        small[0] = 300

    out, small = np.zeros(3), np.array([200], np.uint8)
    with pytest.raises(KernelError, match="OverflowError.*300"):
        run(kernel, out, small, np.array([1.0, 0.0]))
    assert out.tolist() == [np.inf, 144, np.float32(0.1) * np.float32(2.1)]


@pytest.mark.parametrize(
    ("name", "start", "argument", "end"),
    [("add", 5, 3, 8), ("add", 5, -6, 2**32 - 1), ("sub", 5, 3, 2), ("max", 5, 9, 9),
     ("max", 5, 3, 5), ("min", 5, 3, 3), ("and_", 6, 3, 2), ("or_", 6, 3, 7), ("xor", 6, 3, 5),
     ("exch", 6, 3, 3), ("inc", 5, 9, 6), ("inc", 5, 5, 0), ("dec", 5, 9, 4), ("dec", 0, 9, 9),
     ("dec", 12, 9, 9), ("nanmax", 5, 9, 9), ("nanmin", 5, 9, 5)],
)  # fmt: skip
def test_atomics_give_the_old_value(name: str, start: int, argument: int, end: int) -> None:
    def kernel(out, array, value):
        out[0] = getattr(cuda.atomic, name)(array, 0, value)

    out, array = np.zeros(1, np.int64), np.array([start], np.uint32)
    run(kernel, out, array, argument)
    assert (out[0], array[0]) == (start, end)


def test_compare_and_swap() -> None:
    def kernel(out, array):
        out[0] = cuda.atomic.cas(array, 1, 7, 9)
        out[1] = cuda.atomic.cas(array, 1, 7, 1)
        out[2] = cuda.atomic.compare_and_swap(array, 5, 6)

    out, array = np.zeros(3), np.array([5, 7], np.int32)
    run(kernel, out, array)
    assert out.tolist() == [7, 9, 5] and array.tolist() == [6, 9]


def test_bit_functions_need_a_width() -> None:
    def kernel(out, narrow, wide):
        out[0] = cuda.clz(narrow[0])
        out[1] = cuda.clz(wide[0])
        out[2] = cuda.popc(narrow[1])
        out[3] = cuda.popc(wide[1])
        out[4] = cuda.brev(np.uint32(1))
        out[5] = cuda.brev(int32(1))
        out[6] = cuda.ffs(8)
        out[7] = cuda.selp(wide[1] < 0, cuda.fma(2, 3, 4), 0)
        out[8] = cuda.clz(cuda.threadIdx.x)

    out = np.zeros(9, np.int64)
    with pytest.raises(UnsupportedKernelError, match=r"cuda\.clz\(np.int32\(x\)\)"):
        run(kernel, out, np.array([1, -1], np.int32), np.array([1, -1]))
    assert out.tolist() == [31, 63, 32, 64, 1 << 31, -(1 << 31), 4, 10, 0]
