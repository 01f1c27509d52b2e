"""Plain kernels on GPUs: vector loads, the numbers of the kernel as written, and what passes on."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync import vectors
from numbasync.testing import counters
from tests.gpu.test_disk_cache import program_twice

pytestmark = pytest.mark.cuda
ROOT = Path(__file__).parent.parent.parent
N = 2**20 + 77


def add(z: na.KernelOutput, x: na.KernelInput, y: na.KernelInput) -> None:
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = x[i] + y[i]


def unguarded(z: na.KernelOutput, x: na.KernelInput, y: na.KernelInput) -> None:
    i = cuda.grid(1)
    z[i] = x[i] + y[i]


def add_rows(z: na.KernelOutput, x: na.KernelInput, y: na.KernelInput) -> None:
    i, j = cuda.grid(2)
    if i < z.shape[0] and j < z.shape[1]:
        z[i, j] = x[i, j] + y[i, j]


def ptx_of(launcher: Any) -> list[str]:
    """The PTX of the coarsened variants that calls have compiled."""
    kernels = launcher.planner.coarse_kernels._kernels.values()
    executables = [e for kernel in kernels for e in kernel._variants.values()]
    return [e.assembly("ptx") for e in executables]


def numbers(dtype: str, shape: Any = N) -> list[na.Tensor]:
    draw = np.random.default_rng(1)
    return [na.from_host(draw.integers(0, 50, shape).astype(dtype)).sync() for _ in range(3)]


def accesses(ptx: str) -> set[str]:
    return set(re.findall(r"\b((?:ld|st)\.global[\w.]*)", ptx))


@pytest.mark.parametrize(
    ("dtype", "load", "store"),
    [
        ("f4", "ld.global.nc.v4.f32", "st.global.v4.f32"),
        ("f8", "ld.global.nc.v2.f64", "st.global.v2.f64"),
        ("i4", "ld.global.nc.v4.u32", "st.global.v4.u32"),
        ("i8", "ld.global.nc.v2.u64", "st.global.v2.u64"),
        ("i2", "ld.global.nc.v4.u16", "st.global.v4.u16"),
        ("i1", "ld.global.nc.v4.u8", "st.global.v4.u8"),
        ("c8", "ld.global.nc.v4.f32", "st.global.v4.f32"),
    ],
)
def test_aligned_arrays_are_loaded_by_vectors(dtype: str, load: str, store: str) -> None:
    kernel = na.launcher(cuda.jit(add))
    z, x, y = numbers(dtype)
    kernel(z, x, y).sync()
    (ptx,) = ptx_of(kernel)
    assert {load, store} <= accesses(ptx)
    expected = x.to_host().sync() + y.to_host().sync()
    assert (z.to_host().sync() == expected).all()


@pytest.mark.parametrize("length", [1, 7, 999, 4096 * 7, N])
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("elements", [2, 4, 8])
def test_lengths_and_views(length: int, offset: int, elements: int) -> None:
    kernel = na.launcher(elements=elements)(cuda.jit(add))
    whole, x, y = numbers("f4", length + 2)
    before = whole.to_host().sync()
    place = slice(offset, offset + length)
    kernel(whole[place], x[place], y[place]).sync()
    assert len(kernel.planner.coarse_kernels) == 1
    before[place] = (x.to_host().sync() + y.to_host().sync())[place]
    assert (whole.to_host().sync() == before).all()


def test_no_position_beyond_the_grid_is_computed() -> None:
    kernel = na.launcher(elements=4)(cuda.jit(unguarded))
    z, x, y = na.zeros(4096).sync(), na.ones(4096).sync(), na.ones(4096).sync()
    kernel[7, 128](z, x, y).sync()
    result = z.to_host().sync()
    assert (result[: 7 * 128] == 2).all() and not result[7 * 128 :].any()


def test_rows_are_coarsened_along_their_elements() -> None:
    kernel = na.launcher(cuda.jit(add_rows))
    z, x, y = numbers("f4", (1000, 1003))
    kernel(z, x, y).sync()
    assert len(kernel.planner.coarse_kernels) == 1
    assert (z.to_host().sync() == x.to_host().sync() + y.to_host().sync()).all()


def test_calls_of_one_kernel_change_between_variants(stream: na.Stream) -> None:
    kernel = na.launcher(cuda.jit(add))
    z, x, y = numbers("f4")
    expected = x.to_host().sync() + y.to_host().sync()
    for place in (slice(None), slice(1, None), slice(0, 1000), slice(4, None), slice(1, None)):
        for _ in range(2):  # the second call is a fast one
            na.fill(z, 0).sync_on(stream)
            kernel(z[place], x[place], y[place]).sync_on(stream)
            result = z.to_host().sync_on(stream)
            assert (result[place] == expected[place]).all()
            assert np.count_nonzero(result) == np.count_nonzero(expected[place])
    assert na.compile_count() and len(kernel.planner.coarse_kernels) == 2


def test_graphs_replay_coarsened_launches(stream: na.Stream) -> None:
    kernel = na.launcher(cuda.jit(add))
    z, x, y = numbers("f4")
    graph = kernel(z, x, y).graph_on(stream)
    na.fill(z, 0).sync_on(stream)
    graph.launch().sync_on(stream)
    assert (z.to_host().sync() == (x.to_host().sync() + y.to_host().sync())).all()
    (node,) = graph.nodes
    graph.set_args(node, z[1:], x[1:], y[1:])  # not aligned: another variant
    na.fill(z, 0).sync_on(stream)
    graph.launch().sync_on(stream)
    assert z.to_host().sync()[0] == 0 and (z.to_host().sync()[1:] > 0).sum() > N / 2


def test_overlapping_arguments_are_refused_before_a_coarsened_launch() -> None:
    kernel = na.launcher(cuda.jit(add))
    z, x, y = numbers("f4")
    kernel(z, x, y).sync()
    with pytest.raises(na.errors.AliasError):
        kernel(z[4:], z[:-4], y[4:]).sync()
    kernel(z, x, x).sync()  # two inputs may be one
    assert (z.to_host().sync() == 2 * x.to_host().sync()).all()


def test_elements_1_compiles_the_kernel_as_written() -> None:
    kernel = na.launcher(elements=1)(cuda.jit(add))
    kernel(*numbers("f4")).sync()
    assert len(kernel.planner.coarse_kernels) == 0


@pytest.mark.parametrize(
    "options",
    [{"fastmath": True}, {"launch_bounds": 256}, {"max_registers": 32}, {"lineinfo": True}],
)
def test_options_pass_on(options: dict[str, Any]) -> None:
    kernel = na.launcher(threads=256)(cuda.jit(**options)(add))
    z, x, y = numbers("f4")
    kernel(z, x, y).sync()
    assert (z.to_host().sync() == x.to_host().sync() + y.to_host().sync()).all()
    (ptx,) = ptx_of(kernel)
    if "launch_bounds" in options:
        assert ".maxntid" in ptx
    if "fastmath" in options:
        assert "add.ftz.f32" in ptx
    if "lineinfo" in options:
        assert ".loc" in ptx


def test_automatic_blocks_are_within_the_launch_bounds() -> None:
    kernel = na.launcher(cuda.jit(launch_bounds=128)(add))
    explained = kernel.explain(*(na.meta(N) for _ in range(3)))
    assert (explained.elements, explained.block) == (4, (128, 1, 1))


def test_a_too_large_block_rules_out_no_other() -> None:
    kernel = na.launcher(cuda.jit(launch_bounds=256)(add))
    arrays = numbers("f4")
    with pytest.raises(na.errors.LaunchError):
        kernel[2048, 512](*arrays).sync()
    assert kernel[4096, 256].explain(*arrays).elements == 4


def test_a_wrongly_typed_call_rules_out_no_other() -> None:
    kernel = na.launcher(cuda.jit(add))
    z, x, y = numbers("f4")
    with pytest.raises(na.errors.KernelCompileError):
        kernel(z, numbers("c8")[0], y).sync()
    assert kernel.explain(z, x, y).elements == 4


def test_functions_of_numba_cuda_are_those_of_originals() -> None:
    def counts(z: na.KernelOutput, x: na.KernelInput, y: na.KernelInput) -> None:
        i = cuda.grid(1)
        if i < x.shape[0]:
            cuda.atomic.add(z, cuda.popc(x[i]), numba.int32(1) + y[i])

    def fused(z: na.KernelOutput, x: na.KernelInput, y: na.KernelInput) -> None:
        i = numba.cuda.grid(1)
        if i < z.shape[0]:
            z[i] = cuda.fma(x[i], y[i], cuda.libdevice.fabsf(x[i]))

    kernel = na.launcher(elements=4)(cuda.jit(counts))
    z, x, y = numbers("i4")
    na.fill(z, 0).sync()
    kernel.forall(N)(z, x, y).sync()
    assert len(kernel.planner.coarse_kernels) == 1 and not kernel.planner.coarse_kernels._failures
    bits, weights = (
        np.array([n.bit_count() for n in range(50)])[x.to_host().sync()],
        1 + y.to_host().sync(),
    )
    expected = np.bincount(bits, weights, minlength=N)
    assert (z.to_host().sync() == expected).all()
    kernel = na.launcher(cuda.jit(fused))
    z, x, y = numbers("f4")
    assert kernel.explain(z, x, y).elements == 4
    kernel(z, x, y).sync()
    left, right = x.to_host().sync(), y.to_host().sync()
    assert (z.to_host().sync() == left * right + left).all()


def test_vector_accesses_and_captured_arrays_are_as_written() -> None:
    captured = cuda.to_device(np.ones(N, np.float32))

    def adds_captured(z: na.KernelOutput, x: na.KernelInput) -> None:
        i = cuda.grid(1)
        if i < z.shape[0]:
            z[i] = x[i] + captured[i]

    def copies(z: na.KernelOutput, x: na.KernelInput) -> None:
        i = 4 * cuda.grid(1)
        if i + 4 <= z.shape[0]:
            vectors.store(z, i, vectors.load(x, i, 4))

    for function, why in ((adds_captured, "may alias one"), (copies, "several elements at once")):
        kernel = na.launcher(cuda.jit(function))
        z, x, _ = numbers("f4")
        assert why in kernel.explain(z, x).why_not_wider
        kernel(z, x).sync()
        expected = x.to_host().sync() + (function is adds_captured)
        last = N if function is adds_captured else N // 4 * 4
        assert (z.to_host().sync()[:last] == expected[:last]).all()


def test_a_compilation_ahead_serves_large_and_small_calls() -> None:
    kernel = na.launcher(cuda.jit(add))
    kernel.compile(*(na.meta(N) for _ in range(3))).sync()
    compiles = counters().compiles
    z, x, y = numbers("f4")
    kernel(z, x, y).sync()
    kernel(z[:100], x[:100], y[:100]).sync()
    assert counters().compiles == compiles


PROGRAM = """
import numpy as np
from numba import cuda
import numbasync as na
from numbasync.testing import counters

def made(total):  # a name in the generated kernel, too
    @na.launcher
    @cuda.jit(cache=True)
    def scaled(z: na.KernelOutput, x: na.KernelInput):
        i = cuda.grid(1)
        if i < z.shape[0]:
            z[i] = total * x[i]
    return scaled

x = na.ones(2**20).sync()
for factor in (2.0, 3.0):
    kernel = made(factor)
    z = kernel(na.zeros(2**20), x).output().sync()
    print(z.to_host().sync().sum() / 2**20, len(kernel.planner.coarse_kernels))
print(counters().compiles)
"""


def test_coarsened_variants_come_from_numbas_disk_cache(
    tmp_path: Path, python: str, python_env: dict[str, str]
) -> None:
    first, second = program_twice(PROGRAM, tmp_path, python, python_env)
    assert first == ["2.0 1", "3.0 1", "2"]
    assert second == ["2.0 1", "3.0 1", "0"]


def test_random_kernels_have_the_originals_bits(python: str, python_env: dict[str, str]) -> None:
    program = [python, "-m", "tests.stress.plain_kernels", "40", "cuda"]
    done = subprocess.run(
        program, env=python_env, capture_output=True, text=True, timeout=300, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = re.search(r"(\d+) differ, (\d+) were coarsened", done.stdout)
    assert result is not None and result[1] == "0" and int(result[2]) > 20
