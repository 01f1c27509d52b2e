"""From a naive matrix product to `wgmma`: the six kernels of docs/tensor-cores.md, each measured.

Each makes ``out = a @ b`` of float16, row-major, with sums in float32, and takes only sizes that
are multiples of its tile. On a GPU the matrices have 4096 rows and columns, and the rates mean
something. On the CPU device they have a few tiles, and the answers are all that is looked at.

    python examples/10_tensor_cores.py [--json FILE]
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32

import numbasync as na
from numbasync import tensor_cores as tc
from numbasync.testing import Timing, do_bench

TILE, DEPTH = 128, 64  # a block's square of out in steps 2 to 5; elements of k at a time


def multiples(rows: int, columns: int, depth: int) -> tuple[str, ...]:
    """The preconditions of a kernel: the shapes fit, and whole tiles make them up."""
    return (
        "out.shape[0] == a.shape[0] and out.shape[1] == b.shape[1]",
        f"a.shape[1] == b.shape[0] and a.shape[1] % {depth} == 0",
        f"out.shape[0] % {rows} == 0 and out.shape[1] % {columns} == 0",
    )


# --- 1: a thread an element ---


@na.launcher(preconditions=multiples(8, 32, 1))
@cuda.jit
def naive(out: na.KernelOutput, a: na.KernelInput, b: na.KernelInput):
    j, i = cuda.grid(2)
    total = float32(0)
    for k in range(a.shape[1]):
        total += float32(a[i, k]) * float32(b[k, j])
    out[i, j] = total


# --- 2: tiles in shared memory ---

STEP, PART = 16, 8  # elements of k at a time; the square of out of a thread
SIDE = TILE // PART


@na.launcher(preconditions=multiples(TILE, TILE, STEP))
@cuda.jit
def by_tiles(out: na.KernelOutput, a: na.KernelInput, b: na.KernelInput):
    left = cuda.shared.array((STEP, TILE), float32)
    right = cuda.shared.array((STEP, TILE), float32)
    sums = cuda.local.array((PART, PART), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    for p in range(PART):
        for q in range(PART):
            sums[p, q] = 0
    for first in range(0, a.shape[1], STEP):
        for n in range(STEP * TILE // (SIDE * SIDE)):
            t = (n * SIDE + y) * SIDE + x
            left[t % STEP, t // STEP] = a[row + t // STEP, first + t % STEP]
            right[t // TILE, t % TILE] = b[first + t // TILE, column + t % TILE]
        cuda.syncthreads()
        for k in range(STEP):
            for p in range(PART):
                for q in range(PART):
                    sums[p, q] += left[k, y * PART + p] * right[k, x * PART + q]
        cuda.syncthreads()
    for p in range(PART):
        for q in range(PART):
            out[row + y * PART + p, column + x * PART + q] = sums[p, q]


# --- 3: tensor cores ---

PLAIN = na.shared_layout(
    a=tc.tile(np.float16, (TILE, DEPTH), swizzle=0),
    b=tc.tile(np.float16, (DEPTH, TILE), swizzle=0),
)


@na.launcher(preconditions=multiples(TILE, TILE, DEPTH))
@cuda.jit
def by_warps(out: na.KernelOutput, a: na.KernelInput, b: na.KernelInput):
    thread = cuda.threadIdx.x
    row, column = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    own_row, own_column = thread // 64 * 64, thread // 32 % 2 * 64  # of the warp
    sums = tc.accumulator(64, 64)
    for first in range(0, a.shape[1], DEPTH):
        for chunk in range(thread, TILE * DEPTH // 8, 128):
            i, k = chunk // 8, chunk % 8 * 8
            tc.copy_async(PLAIN.a, (i, k), a, (row + i, first + k), 8)
            k, j = chunk // 16, chunk % 16 * 8
            tc.copy_async(PLAIN.b, (k, j), b, (first + k, column + j), 8)
        tc.commit_copies()
        tc.wait_copies(0)
        cuda.syncthreads()
        for k in range(0, DEPTH, 16):
            left = tc.load_a(PLAIN.a, (own_row, k), 64)
            right = tc.load_b(PLAIN.b, (k, own_column), 64, True)
            sums = tc.mma(sums, left, right)
        cuda.syncthreads()
    tc.store(out, (row + own_row, column + own_column), sums)


# --- 4: swizzle and stages ---

STAGES, AHEAD, PENDING = 3, 2, 1
STAGED = na.shared_layout(
    a=tc.tile(np.float16, (STAGES, TILE, DEPTH)), b=tc.tile(np.float16, (STAGES, 2, DEPTH, 64))
)


@cuda.jit(device=True)
def copy_step(step, a, b, row, column):
    """Begin to copy the operands of a step into its stage; zeros behind the last step."""
    stage, first = step % STAGES, step * DEPTH
    for chunk in range(cuda.threadIdx.x, TILE * DEPTH // 8, 128):
        i, k = chunk // 8, chunk % 8 * 8
        tc.copy_async(STAGED.a, (stage, i, k), a, (row + i, first + k), 8, first < a.shape[1])
        half, k, j = chunk // 512, chunk // 8 % 64, chunk % 8 * 8
        source = first + k, column + 64 * half + j
        tc.copy_async(STAGED.b, (stage, half, k, j), b, source, 8, first < a.shape[1])
    tc.commit_copies()


@na.launcher(preconditions=multiples(TILE, TILE, DEPTH))
@cuda.jit
def by_stages(out: na.KernelOutput, a: na.KernelInput, b: na.KernelInput):
    thread = cuda.threadIdx.x
    row, column = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    own_row, half = thread // 64 * 64, thread // 32 % 2
    for step in range(AHEAD):
        copy_step(step, a, b, row, column)
    sums = tc.accumulator(64, 64)
    for step in range(a.shape[1] // DEPTH):
        tc.wait_copies(PENDING)
        cuda.syncthreads()
        copy_step(step + AHEAD, a, b, row, column)
        stage = step % STAGES
        for k in range(0, DEPTH, 16):
            left = tc.load_a(STAGED.a, (stage, own_row, k), 64)
            right = tc.load_b(STAGED.b, (stage, half, k, 0), 64, True)
            sums = tc.mma(sums, left, right)
    tc.store(out, (row + own_row, column + 64 * half), sums)


# --- 5: tensor maps, barriers and warpgroups ---

MAPPED = na.shared_layout(
    a=tc.tile(np.float16, (STAGES, TILE, DEPTH)), b=tc.tile(np.float16, (STAGES, 2, DEPTH, 64)),
    full=tc.barriers(STAGES),
)  # fmt: skip
STEP_BYTES = 2 * (TILE * DEPTH + DEPTH * TILE)


@cuda.jit(device=True)
def load_step(step, a, b, row, column):
    """Begin to load the operands of a step into its stage; one thread calls it."""
    stage, first = step % STAGES, step * DEPTH
    tc.barrier_expect(MAPPED.full, stage, STEP_BYTES)
    tc.load_tile(MAPPED.a, (stage, 0, 0), a, (row, first), MAPPED.full, stage)
    for half in range(2):
        corner = first, column + 64 * half
        tc.load_tile(MAPPED.b, (stage, half, 0, 0), b, corner, MAPPED.full, stage)


@na.launcher(preconditions=(*multiples(TILE, TILE, DEPTH), "k == a.shape[1]"))
@cuda.jit
def by_warpgroups(out: na.KernelOutput, a: na.KernelInput, b: na.KernelInput, k: int):
    thread = cuda.threadIdx.x
    row, column = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    steps = k // DEPTH
    if thread == 0:
        for stage in range(STAGES):
            tc.barrier_init(MAPPED.full, stage, 1)
        tc.fence_barrier_init()
        for step in range(min(STAGES, steps)):
            load_step(step, a, b, row, column)
    cuda.syncthreads()
    own_row = thread // 128 * 64  # of the warpgroup
    sums = tc.accumulator(16, TILE)
    for step in range(steps):
        stage = step % STAGES
        tc.barrier_wait(MAPPED.full, stage, step // STAGES % 2)
        left, right = (stage, own_row, 0), (stage, 0, 0, 0)
        sums = tc.wgmma(sums, MAPPED.a, left, MAPPED.b, right, True, DEPTH, False, True)
        sums = tc.wgmma_wait(sums, 0)
        cuda.syncthreads()  # both warpgroups have read the stage
        if thread == 0 and step + STAGES < steps:
            load_step(step + STAGES, a, b, row, column)
    tc.store(out, (row + own_row + thread // 32 % 4 * 16, column), sums)


# --- 6: warp specialisation ---

WIDE, DEEP = 256, 4  # columns of a tile of out; stages
ROLES = na.shared_layout(
    a=tc.tile(np.float16, (DEEP, TILE, DEPTH)), b=tc.tile(np.float16, (DEEP, 4, DEPTH, 64)),
    full=tc.barriers(DEEP), empty=tc.barriers(DEEP),
)  # fmt: skip
WIDE_BYTES = 2 * (TILE * DEPTH + DEPTH * WIDE)


@na.launcher(preconditions=(*multiples(TILE, WIDE, DEPTH), "k == a.shape[1]"))
@cuda.jit(launch_bounds=(384, 1))
def by_roles(out: na.KernelOutput, a: na.KernelInput, b: na.KernelInput, k: int):
    thread = cuda.threadIdx.x
    warpgroup = thread // 128
    if thread == 0:
        for stage in range(DEEP):
            tc.barrier_init(ROLES.full, stage, 1)
            tc.barrier_init(ROLES.empty, stage, 2)
        tc.fence_barrier_init()
    cuda.syncthreads()
    down, across = out.shape[0] // TILE, out.shape[1] // WIDE  # tiles
    steps = k // DEPTH
    stage, parity = 0, 0
    if warpgroup == 0:  # loads
        tc.give_up_registers(40)
        if thread == 0:
            for tile in range(cuda.blockIdx.x, down * across, cuda.gridDim.x):
                row, column = tile % down * TILE, tile // down * WIDE
                for step in range(steps):
                    first = step * DEPTH
                    tc.barrier_wait(ROLES.empty, stage, parity ^ 1)
                    tc.barrier_expect(ROLES.full, stage, WIDE_BYTES)
                    tc.load_tile(ROLES.a, (stage, 0, 0), a, (row, first), ROLES.full, stage)
                    for part in range(4):
                        corner = first, column + 64 * part
                        tc.load_tile(ROLES.b, (stage, part, 0, 0), b, corner, ROLES.full, stage)
                    stage += 1
                    if stage == DEEP:
                        stage = 0
                        parity ^= 1
    else:  # multiply
        tc.take_registers(232)
        own_row = (warpgroup - 1) * 64
        speaks = thread % 128 == 0
        before = 0
        for tile in range(cuda.blockIdx.x, down * across, cuda.gridDim.x):
            row, column = tile % down * TILE, tile // down * WIDE
            sums = tc.accumulator(16, WIDE)
            for step in range(steps):
                tc.barrier_wait(ROLES.full, stage, parity)
                left, right = (stage, own_row, 0), (stage, 0, 0, 0)
                sums = tc.wgmma(sums, ROLES.a, left, ROLES.b, right, True, DEPTH, False, True)
                sums = tc.wgmma_wait(sums, 1)
                if step > 0 and speaks:  # the product of the step before is done
                    tc.barrier_arrive(ROLES.empty, before)
                before = stage
                stage += 1
                if stage == DEEP:
                    stage = 0
                    parity ^= 1
            sums = tc.wgmma_wait(sums, 0)
            if speaks:
                tc.barrier_arrive(ROLES.empty, before)
            tc.store(out, (row + own_row + thread // 32 % 4 * 16, column), sums)


# --- running ---


class Product(NamedTuple):
    """A kernel, configured for its operands, and its arguments."""

    kernel: Any
    args: tuple[Any, ...]

    def op(self) -> na.DeviceOp[Any]:
        return self.kernel(*self.args)


def one_element_a_thread(out: na.Tensor, a: na.Tensor, b: na.Tensor) -> Product:
    grid = out.shape[1] // 32, out.shape[0] // 8
    return Product(naive[grid, (32, 8)], (out, a, b))


def in_tiles(kernel: na.Launcher, threads: Any) -> Callable[..., Product]:
    def made(out: na.Tensor, a: na.Tensor, b: na.Tensor) -> Product:
        grid = out.shape[1] // TILE, out.shape[0] // TILE
        return Product(kernel[grid, threads], (out, a, b))

    return made


def mapped(out: na.Tensor, a: na.Tensor, b: na.Tensor) -> tuple[Any, ...]:
    return out, na.tensor_map(a, (TILE, DEPTH)), na.tensor_map(b, (DEPTH, 64)), a.shape[1]


def with_maps(out: na.Tensor, a: na.Tensor, b: na.Tensor) -> Product:
    grid = out.shape[1] // TILE, out.shape[0] // TILE
    return Product(by_warpgroups[grid, 256], mapped(out, a, b))


def with_roles(out: na.Tensor, a: na.Tensor, b: na.Tensor) -> Product:
    tiles = out.shape[1] // WIDE * (out.shape[0] // TILE)
    blocks = min(tiles, na.default_device().limits.multiprocessors)
    return Product(by_roles[blocks, 384], mapped(out, a, b))


# The name of each step, the tensor cores that it needs, and how it is called.
STEPS: list[tuple[str, str, Callable[..., Product]]] = [
    ("1 a thread an element", "none", one_element_a_thread),
    ("2 tiles in shared memory", "none", in_tiles(by_tiles, (SIDE, SIDE))),
    ("3 tensor cores", "warps", in_tiles(by_warps, 128)),
    ("4 swizzle and stages", "warps", in_tiles(by_stages, 128)),
    ("5 tensor maps and wgmma", "warpgroups", with_maps),
    ("6 warp specialisation", "warpgroups", with_roles),
]
HAVE = {
    "none": {"none"}, "warps": {"none", "warps"}, "warpgroups": {"none", "warps", "warpgroups"},
    "emulated": {"none", "warps", "warpgroups"},
}  # fmt: skip
# Multiplications of float16 by the tensor cores for one of float32 by the other cores, in a clock;
# by compute capability.
TENSOR = {(8, 0): 16, (9, 0): 16}


class Rates:
    """What was measured.

    Attributes:
        large: the device is a GPU.
        timings: by step.
        texts: of each step, what `explain` says of the kernel.
    """

    def __init__(self) -> None:
        self.device = na.default_device()
        self.large = self.device.kind == "cuda"
        self.shape = (4096, 4096, 4096) if self.large else (256, 256, 192)  # m, n, k
        self.timings: dict[str, Timing] = {}
        self.texts: dict[str, str] = {}

    @property
    def peak(self) -> float | None:
        """The rate of the device's tensor cores in TFLOP/s, at the clock its driver reports."""
        rate = self.device.backend.peaks.flops_per_second.get("float32")
        factor = TENSOR.get(self.device.compute_capability or (0, 0))
        return rate * factor / 1e12 if rate and factor else None

    def tflops(self, ms: float) -> float:
        m, n, k = self.shape
        return 2 * m * n * k / ms / 1e9

    def run(self) -> None:
        m, n, k = self.shape
        rng = np.random.default_rng(0)
        # Small integers, of which all sums are exact, for the answers; for the times, numbers as
        # they occur: a GPU multiplies zeros and ones with less power, and so at a higher clock.
        left, right = (rng.integers(-2, 3, shape).astype(np.float16) for shape in ((m, k), (k, n)))
        expected = left.astype(np.float32) @ right.astype(np.float32)
        a, b = na.from_host(left).sync(), na.from_host(right).sync()
        numbers = [rng.standard_normal(t.shape, np.float32).astype(np.float16) for t in (a, b)]
        c, d = (na.from_host(each).sync() for each in numbers)
        out = na.zeros((m, n), np.float16).sync()
        for name, units, made in STEPS:
            if units not in HAVE[self.device.limits.tensor_cores]:
                print(f"{name}: left out, it needs tensor cores for {units}")
                continue
            na.fill(out, 0).sync()
            made(out, a, b).op().sync()
            np.testing.assert_array_equal(out.to_host().sync(), expected, name)
            if self.large:
                self.measure(name, made(out, c, d))
            else:
                print(f"{name}: what NumPy gives")

    def measure(self, name: str, product: Product) -> None:
        timing = self.timings[name] = do_bench(product.op)
        rate = f"{self.tflops(timing.ms):.1f} TFLOP/s"
        if self.peak is not None:
            rate += f", {self.tflops(timing.ms) / self.peak:.3f} of the device's rate"
        print(f"{name}: {timing.ms:.4f} ms, {rate}")
        words = ("registers", "local", "static", "dynamic", "occupancy", "  bounded by")
        lines = repr(product.kernel.explain(*product.args)).split("\n")
        self.texts[name] = "\n".join([rate, *(line for line in lines if line.startswith(words))])

    def save(self, path: Path) -> None:
        """Write the file from which the page is filled."""
        sys.path.append(str(Path(__file__).parents[1]))  # the checkout has the benchmarks
        from benchmarks import report
        from benchmarks.measure import Figure, Measured

        method = "Device times with cold caches, as rates; medians and quartiles."
        run = report.head("tensor cores", method, self.device)
        figures = [
            Figure.of(name, [self.tflops(ms) for ms in timing.samples], 1, "TFLOP/s")
            for name, timing in self.timings.items()
        ]
        base = "the device's rate"
        if self.peak is not None:
            figures.append(Figure(base, self.peak, self.peak, self.peak, 1, 1, "TFLOP/s"))
        run["tables"] = [report.table("step", method, Measured(figures, []), base, (), "TFLOP/s")]
        run["texts"] = self.texts
        report.save(run, path)


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the kernels of docs/tensor-cores.md.")
    parser.add_argument("--json", type=Path, help="a file to write the rates to; on a GPU")
    path = parser.parse_args().json
    rates = Rates()
    if path is not None and not rates.large:
        parser.error("--json: there are no rates without a GPU")
    rates.run()
    if path is not None:
        rates.save(path)


if __name__ == "__main__":
    main()
