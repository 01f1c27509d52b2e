"""Kernels in CUDA C++: their parameters, arguments, order and refusals. GPUs run them in
tests/gpu/test_raw_kernel_cuda.py; here NumPy stands for the compiled kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import (
    AlreadySubmittedError,
    DTypeError,
    LauncherError,
    LaunchError,
    MissingExtraError,
    NumbasyncError,
    ShapeError,
    UnsupportedKernelError,
)
from numbasync.launch.cuda_source import parameters_of
from numbasync.testing import gate
from tests.common import host

AXPY = """
// __global__ void axpy(int wrong) {}
extern "C" __global__ void __launch_bounds__(256, 1)
axpy(float *__restrict__ z, const float* x, float a, long long n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) z[i] += a * x[i];
}
__global__ void fill(unsigned char *z, volatile uint8_t const *x, size_t n, bool b, __half h) { }
__global__ void any(void *z, const void *x) { }
__global__ void none() { }
__global__ void bad(const Pair *x, Pair p) { }
template <typename T> __global__ void of_type(T *z) { }
"""


class Axpy:
    """What a compiled `axpy` would do."""

    formal, records, max_threads_per_block = None, (), 256
    engine = why = ""
    large = 0

    def short_launch(self, *extents: Any) -> None:
        return None

    def allow_large_shared(self) -> None:
        self.large += 1

    def run(self, grid: Any, block: Any, shared_bytes: int, args: Any, *others: Any) -> None:
        z, x, a, n = args
        assert type(a) is np.float32 and type(n) is np.int64
        count = min(int(n), grid[0] * block[0])
        z.array[:count] += a * x.array[:count]


@pytest.fixture
def compiled(cpu: na.Device, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []

    def compile_source(self: Any, *given: Any) -> Axpy:
        calls.append(given)
        return Axpy()

    monkeypatch.setattr(type(cpu.backend), "compile_source", compile_source)
    return calls


def declared(name: str) -> list[tuple[Any, ...]]:
    found, _ = parameters_of(AXPY, name)
    return [(p.name, p.is_array, p.is_output, p.dtype) for p in found]


def test_parameters_are_read_from_the_source() -> None:
    f4, u1 = np.dtype(np.float32), np.dtype(np.uint8)
    assert declared("axpy") == [
        ("z", True, True, f4), ("x", True, False, f4),
        ("a", False, False, f4), ("n", False, False, np.int64),
    ]  # fmt: skip
    assert declared("fill") == [
        ("z", True, True, u1), ("x", True, False, u1), ("n", False, False, np.uint64),
        ("b", False, False, np.bool_), ("h", False, False, np.float16),
    ]  # fmt: skip
    assert declared("any") == [("z", True, True, None), ("x", True, False, None)]
    assert declared("none") == []
    assert parameters_of(AXPY, "axpy")[1] and not parameters_of(AXPY, "fill")[1]
    assert parameters_of('extern "C" { __global__ void k(int n) { } }', "k")[1]
    assert repr(na.raw_kernel(AXPY, "axpy")) == "<raw kernel axpy(z, x, a, n)>"


def test_a_call_is_an_operation(compiled: list[Any], cpu: na.Device) -> None:
    axpy = na.raw_kernel(AXPY, "axpy", options=["--use_fast_math"])
    z = na.zeros(6).sync()
    assert axpy[2, 4](z, na.ones(6), 2, 5).sync() is z
    assert host(z).tolist() == [2, 2, 2, 2, 2, 0]
    op = axpy[(2,), (4, 1), 0, 60_000](z, na.arange(6), np.float64(0.5), np.int8(6))
    assert str(op) == "<DeviceOp axpy(z, x, a, n), not run>" or "axpy(z, x, a, n)" in repr(op)
    assert op.then(lambda z: z.dup()).to_host().sync().tolist() == [2, 2.5, 3, 3.5, 4, 2.5]
    assert compiled == [(AXPY, "axpy", True, ("--use_fast_math",))], "compiled once"


def test_a_launch_is_in_the_order_of_its_tensors(compiled: list[Any], cpu: na.Device) -> None:
    axpy = na.raw_kernel(AXPY, "axpy")
    z, x = na.zeros(4).sync(), na.zeros(4).sync()
    one, two = cpu.new_stream(), cpu.new_stream()
    with gate(one):
        na.fill(x, 3).async_on(one)
        axpy[1, 4, two](z, x, 1, 4).async_on(two)
        na.fill(x, 7).async_on(one)
        copy = z.dup().async_on(one)
        assert not two.query()
    assert host(copy).tolist() == [3] * 4


async def test_graphs_replay_it(compiled: list[Any], cpu: na.Device) -> None:
    axpy = na.raw_kernel(AXPY, "axpy")
    z, x = await na.gather(na.zeros(4), na.ones(4))
    graph = axpy[1, 4](z, x, 1, 4).graph()
    before = host(z)[0]
    await graph.launch()
    await graph.launch()
    assert host(z).tolist() == [before + 2] * 4


def test_the_cpu_device_refuses_it_by_name(cpu: na.Device) -> None:
    op = na.raw_kernel(AXPY, "axpy")[1, 1](na.zeros(1), na.ones(1), 1, 1)
    with pytest.raises(UnsupportedKernelError, match=r"axpy is CUDA C\+\+.*\n.*@na\.launcher"):
        op.sync()


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="no CUDA packages")
    from numbasync.backend.cuda import source_kernels

    def missing(*args: Any) -> None:
        raise RuntimeError("no libnvrtc.so")

    monkeypatch.setattr(nvrtc, "nvrtcCreateProgram", missing)
    gpu: Any = SimpleNamespace(compute_capability=(9, 0))
    with pytest.raises(MissingExtraError, match=r"kernel k .*no libnvrtc\.so\n.*\[cuda\]"):
        source_kernels._compile(gpu, "", "k", True, ())


def axpy_of(*args: Any) -> Any:
    return na.raw_kernel(AXPY, "axpy")[1, 4](*args)


X = np.zeros(3, np.float32)
REFUSED: dict[str, tuple[Callable[[na.Tensor], Any], type[NumbasyncError], str]] = {
    "no text": (
        lambda t: na.raw_kernel(3, "k"),  # type: ignore[arg-type]
        LauncherError, "both as text"),
    "options": (
        lambda t: na.raw_kernel(AXPY, "none", options="-G"),
        LauncherError, "list of texts"),
    "no kernel": (
        lambda t: na.raw_kernel(AXPY, "gone"),
        LauncherError, r"no `__global__ void gone"),
    "template": (lambda t: na.raw_kernel(AXPY, "of_type"), LauncherError, r"`T \*z`"),
    "structure": (
        lambda t: na.raw_kernel(AXPY, "bad"),
        LauncherError, r"`const Pair \*x`.*\n.*void"),
    "no grid": (lambda t: na.raw_kernel(AXPY, "none")(), LaunchError, r"none\[grid, block\]"),
    "one extent": (lambda t: na.raw_kernel(AXPY, "none")[3], LaunchError, "not 1 values"),
    "bad extent": (lambda t: na.raw_kernel(AXPY, "none")[3, 0], LaunchError, "the block is one to"),
    "count": (lambda t: axpy_of(t, t), LauncherError, r"axpy\(z, x, a, n\)> takes 4.*not 2"),
    "array": (lambda t: axpy_of(t, X, 1, 1), LauncherError, r"x is a pointer.*\n.*from_host"),
    "dtype": (
        lambda t: axpy_of(t, t.reinterpret(np.int32), 1, 1),
        DTypeError, r"x\.astype\('float32'\)"),
    "gaps": (lambda t: axpy_of(t[::2], t, 1, 1), ShapeError, r"z\.dup\(\)"),
    "fraction": (lambda t: axpy_of(t, t, 1, 1.5), DTypeError, "n is a int64, which 1.5 is not"),
    "text": (lambda t: axpy_of(t, t, "2", 1), DTypeError, "a is a float32"),
    "too large": (lambda t: axpy_of(t, t, 1, 2**63), DTypeError, "n is a int64"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(device: na.Device, name: str) -> None:
    run, kind, text = REFUSED[name]
    with pytest.raises(kind, match=text):
        run(na.zeros(4).sync())


def test_blocks_and_operations_are_checked(compiled: list[Any], cpu: na.Device) -> None:
    axpy, z = na.raw_kernel(AXPY, "axpy"), na.zeros(4).sync()
    with pytest.raises(LaunchError, match=r"a block of \(512, 1, 1\) threads; at most 256"):
        axpy[1, 512](z, z, 1, 1).sync()
    used = na.ones(4)
    used.sync()
    with pytest.raises(AlreadySubmittedError):
        axpy[1, 4](z, used, 1, 1)
    with pytest.raises(LauncherError, match="x is a pointer"):
        axpy[1, 4](z, na.value(3), 1, 1).sync()
