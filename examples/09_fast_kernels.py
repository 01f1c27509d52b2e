"""What makes a kernel fast: the steps of docs/kernels-guide.md, each measured.

On a GPU the arrays are large, and the ratios mean something. On the CPU device they are small, and
the answers are all that is compared.

    python examples/09_fast_kernels.py [--json FILE]
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numba import cuda, float32

import numbasync as na
from numbasync import vectors
from numbasync.testing import Timing, do_bench_paired

Op = Callable[[], na.DeviceOp[Any]]
A = np.float32(2)


# --- 1: which thread reads what ---


@na.launcher(threads=(32, 8), elements=1)
@cuda.jit
def scale_down(z: na.KernelOutput, a, x: na.KernelInput):
    i, j = cuda.grid(2)
    if i < z.shape[0] and j < z.shape[1]:
        z[i, j] = a * x[i, j]


@na.launcher(threads=(32, 8), elements=1, axes=(1, 0))
@cuda.jit
def scale_along(z: na.KernelOutput, a, x: na.KernelInput):
    j, i = cuda.grid(2)
    if i < z.shape[0] and j < z.shape[1]:
        z[i, j] = a * x[i, j]


# --- 2: elements a thread ---


def saxpy(elements: int | None) -> na.Launcher:
    @na.launcher(elements=elements)
    @cuda.jit
    def saxpy(z: na.KernelOutput, a, x: na.KernelInput, y: na.KernelInput):
        i = cuda.grid(1)
        if i < z.shape[0]:
            z[i] = a * x[i] + y[i]

    return saxpy


@na.launcher
@cuda.jit
def own_index(z: na.KernelOutput, a, x: na.KernelInput, y: na.KernelInput):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < z.shape[0]:
        z[i] = a * x[i] + y[i]


# --- 3 and 6: shared memory, and how much of it ---


@na.launcher(axes=(1, 0), threads=(32, 8))
@cuda.jit
def transpose_directly(z: na.KernelOutput, x: na.KernelInput):
    j, i = cuda.grid(2)
    if i < z.shape[0] and j < z.shape[1]:
        z[i, j] = x[j, i]


def transpose(tile: int, rows: int) -> na.Launcher:
    layout = na.shared_layout(held=(np.float32, (tile, tile + 1)))

    @na.launcher
    @cuda.jit
    def transposed(z: na.KernelOutput, x: na.KernelInput):
        held = layout.held
        across, down = cuda.threadIdx.x, cuda.threadIdx.y
        column, row = cuda.blockIdx.x * tile, cuda.blockIdx.y * tile
        for k in range(0, tile, rows):
            held[down + k, across] = x[row + down + k, column + across]
        cuda.syncthreads()
        for k in range(0, tile, rows):
            z[column + down + k, row + across] = held[across, down + k]

    return transposed


# --- 4: unsigned indices ---

TILE, STEP, PART = 128, 16, 8  # a block's square of c; its steps along a row; a thread's square


def matmul(index: type, **options: Any) -> na.Launcher:
    tile, step, part, side = (index(n) for n in (TILE, STEP, PART, TILE // PART))

    @na.launcher
    @cuda.jit(**options)
    def multiply(c: na.KernelOutput, a: na.KernelInput, b: na.KernelInput):
        left = cuda.shared.array((STEP, TILE), float32)
        right = cuda.shared.array((STEP, TILE), float32)
        sums = cuda.local.array((PART, PART), float32)
        x, y = index(cuda.threadIdx.x), index(cuda.threadIdx.y)
        row, column = index(cuda.blockIdx.y) * tile, index(cuda.blockIdx.x) * tile
        for p in range(PART):
            for q in range(PART):
                sums[p, q] = 0
        for first in range(0, a.shape[1], STEP):
            for n in range(STEP * PART * PART // TILE):
                t = (index(n) * side + y) * side + x
                left[t % step, t // step] = a[row + t // step, index(first) + t % step]
                right[t // tile, t % tile] = b[index(first) + t // tile, column + t % tile]
            cuda.syncthreads()
            for k in range(STEP):
                for p in range(PART):
                    for q in range(PART):
                        i, j = y * part + index(p), x * part + index(q)
                        sums[p, q] += left[index(k), i] * right[index(k), j]
            cuda.syncthreads()
        for p in range(PART):
            for q in range(PART):
                c[row + y * part + index(p), column + x * part + index(q)] = sums[p, q]

    return multiply


# --- 5: vectors and constants ---


@na.launcher
@cuda.jit
def sum_rows(z: na.KernelOutput, x: na.KernelInput):
    lane, i = cuda.grid(2)
    if i < x.shape[0]:
        total = 0
        for j in range(lane, x.shape[1], 32):
            total += x[i, j]
        cuda.atomic.add(z, i, total)


@na.launcher
@cuda.jit
def sum_rows_by_16(z: na.KernelOutput, x: na.KernelInput):
    lane, i = cuda.grid(2)
    if i < x.shape[0]:
        total = 0
        for j in range(16 * lane, x.shape[1], 16 * 32):
            values = vectors.load(x, (i, j), 16)
            for k in range(16):
                total += values[k]
        cuda.atomic.add(z, i, total)


@na.launcher
@cuda.jit
def polynomial(z: na.KernelOutput, x: na.KernelInput, factors: na.KernelInput, n):
    i = cuda.grid(1)
    if i < z.shape[0]:
        total = float32(0)
        for k in range(n):
            total = total * x[i] + factors[k]
        z[i] = total


@na.launcher
@cuda.jit
def polynomial_of(z: na.KernelOutput, x: na.KernelInput, factors: na.KernelInput, n: na.Literal):
    i = cuda.grid(1)
    if i < z.shape[0]:
        total = float32(0)
        for k in range(n):
            total = total * x[i] + factors[k]
        z[i] = total


# --- measuring ---


class Steps:
    """The measured steps.

    Attributes:
        large: the device is a GPU, and the arrays are larger than its caches.
        pairs: by step, the names and the times of the kernel without it and with it.
        texts: what `explain` and `autotune` print, by name.
    """

    def __init__(self) -> None:
        self.large = na.default_device().kind == "cuda"
        self.pairs: dict[str, list[tuple[str, Timing]]] = {}
        self.texts: dict[str, str] = {}
        self._random = np.random.default_rng(0)

    def random(self, *shape: int) -> np.ndarray:
        return self._random.random(shape, np.float32)

    def pair(
        self, step: str, z: na.Tensor, expected: np.ndarray, before: tuple[str, Op],
        after: tuple[str, Op], tolerance: float = 0,
    ) -> None:  # fmt: skip
        """Compare what two kernels write to `z` with what is expected, and measure them in turns.

        Args:
            tolerance: relative to the largest expected value.
        """
        most = tolerance * expected.max()
        for name, op in (before, after):
            na.fill(z, 0).sync()
            op().sync()
            error = np.abs(z.to_host().sync() - expected).max()
            assert error <= most, f"{step}, {name}: an error of {error}"
        options: dict[str, Any] = {"seconds": 0.5} if self.large else {"repeats": 3, "flush": 0}
        times = do_bench_paired(before[1], after[1], **options)
        self.pairs[step] = [(before[0], times.first), (after[0], times.second)]
        print(
            f"{step}: {before[0]} {times.first.ms:.4f} ms, {after[0]} {times.second.ms:.4f} ms, "
            f"ratio {times.ratio:.2f}"
        )

    def text(self, name: str, text: str) -> None:
        self.texts[name] = text
        print(f"\n{name}:\n{text}\n")

    def save(self, path: Path) -> None:
        """Write the file from which the page is filled."""
        sys.path.append(str(Path(__file__).parents[1]))  # the checkout has the benchmarks
        from benchmarks import report
        from benchmarks.measure import Figure, Measured

        method = "Device times in turns, with cold caches; medians and quartiles."
        run = report.head("kernels guide", method, na.default_device())
        run["tables"] = []
        for step, pair in self.pairs.items():
            figures = [Figure.of(name, [1e3 * ms for ms in time.samples], 1) for name, time in pair]
            base = figures[-1].name
            run["tables"].append(report.table(step, method, Measured(figures, []), base, ()))
        run["texts"] = self.texts
        report.save(run, path)


def coalescing(steps: Steps) -> None:
    side = 8192 if steps.large else 64
    values = steps.random(side, side)
    x, z = na.from_host(values).sync(), na.zeros((side, side)).sync()
    steps.pair(
        "coalescing", z, A * values,
        ("threads down a column", lambda: scale_down(z, A, x)),
        ("threads along a row", lambda: scale_along(z, A, x)),
    )  # fmt: skip


def elements(steps: Steps) -> None:
    n = 2**27 if steps.large else 2**12
    values = steps.random(n)
    x, y, z = na.from_host(values).sync(), na.ones(n).sync(), na.zeros(n).sync()
    one, chosen = saxpy(1), saxpy(None)
    steps.pair(
        "elements a thread", z, A * values + 1,
        ("elements=1", lambda: one(z, A, x, y)),
        ("the launcher's choice", lambda: chosen(z, A, x, y)),
        1e-6,
    )  # fmt: skip
    steps.text("saxpy", repr(chosen.explain(z, A, x, y)))
    few = [na.meta(1000) for _ in range(3)]
    first, second, third, fourth = (na.meta((8192, 8192)) for _ in range(4))
    explained = {
        "own_index": own_index.explain(z, A, x, y),
        "polynomial": polynomial.explain(z, x, y, 32),
        "transpose_directly": transpose_directly.explain(first, second),
        "scale_down in tiles": na.launcher(scale_down.kernel).explain(
            third.partition((32, 8)), A, fourth
        ),
        "saxpy of 1,000 elements": chosen.explain(few[0], A, few[1], few[2]),
    }
    lines = [f"{name}: {each.why_not_wider}" for name, each in explained.items()]
    steps.text("why_not_wider", "\n".join(lines))


def shared_memory(steps: Steps) -> None:
    side = 8192 if steps.large else 256
    values = steps.random(side, side)
    x, z = na.from_host(values).sync(), na.zeros((side, side)).sync()

    def by_tiles(tile: int, rows: int) -> dict[str, Any]:
        grid = side // tile, side // tile
        return {"tile": tile, "rows": rows, "grid": grid, "block": (tile, rows)}

    kernels = {
        tile: transpose(tile, rows)[(side // tile, side // tile), (tile, rows)]
        for tile, rows in ((128, 2), (32, 8))
    }
    small = ("tiles of 32", lambda: kernels[32](z, x))
    direct = ("without", lambda: transpose_directly(z, x))
    large = ("tiles of 128", lambda: kernels[128](z, x))
    steps.pair("shared memory", z, values.T, direct, small)
    steps.pair("occupancy", z, values.T, large, small)
    explained = {f"tiles of {tile}": k.explain(z, x) for tile, k in kernels.items()}
    steps.text("occupancy of the transpose", occupancy(explained))

    sizes = ((128, 2), (128, 8), (64, 4), (64, 8), (32, 4), (32, 8))
    configs = [by_tiles(*n) for n in (sizes if steps.large else sizes[-2:])]
    tuned = na.autotune(transpose, configs, reference=lambda z, x: x.T)
    lines = []
    for result in tuned.tune(z, x).sync():
        time = "" if result.ms is None else f" {result.ms:.4f} ms"
        chosen = ", chosen" if result.chosen else ""
        lines.append(f"block {result.config['block']}: {result.status}{time}{chosen}")
    steps.text("autotune", "\n".join(lines))


def indices(steps: Steps) -> None:
    n = 4096 if steps.large else TILE
    left, right = steps.random(n, n), steps.random(n, n)
    a, b, c = na.from_host(left).sync(), na.from_host(right).sync(), na.zeros((n, n)).sync()
    config = (n // TILE, n // TILE), (TILE // PART, TILE // PART)
    signed, unsigned = matmul(np.int64)[config], matmul(np.uint32)[config]
    limited = matmul(np.uint32, max_registers=64)[config]
    product = left @ right
    plain = ("np.uint32", lambda: unsigned(c, a, b))
    steps.pair("indices", c, product, ("np.int64", lambda: signed(c, a, b)), plain, 1e-4)
    spilling = ("np.uint32, max_registers=64", lambda: limited(c, a, b))
    steps.pair("registers", c, product, spilling, plain, 1e-4)
    explained = {spilling[0]: limited.explain(c, a, b), plain[0]: unsigned.explain(c, a, b)}
    steps.text("occupancy of the product", occupancy(explained))


def loops(steps: Steps) -> None:
    side = 16384 if steps.large else 512
    values = np.random.default_rng(0).integers(0, 256, (side, side), np.uint8)
    x, z = na.from_host(values).sync(), na.zeros(side, np.int64).sync()
    config = (1, side // 8), (32, 8)
    steps.pair(
        "vectors", z, values.sum(axis=1, dtype=np.int64),
        ("x[i, j]", lambda: sum_rows[config](z, x)),
        ("vectors.load(x, (i, j), 16)", lambda: sum_rows_by_16[config](z, x)),
    )  # fmt: skip

    n, count = 2**25 if steps.large else 2**12, 32
    points, factors = steps.random(n), steps.random(count)
    x, f = na.from_host(points).sync(), na.from_host(factors).sync()
    results = na.zeros(n).sync()
    steps.pair(
        "constants", results, np.polyval(factors, points),
        ("n", lambda: polynomial(results, x, f, count)),
        ("n: na.Literal", lambda: polynomial_of(results, x, f, count)),
        1e-5,
    )  # fmt: skip


def occupancy(explained: dict[str, na.Explanation]) -> str:
    """What `explain` prints of registers, shared memory and occupancy."""
    words = ("registers", "local", "dynamic", "occupancy", "  bounded by")
    lines = []
    for name, explanation in explained.items():
        every = repr(explanation).split("\n")
        lines += [name, *(line for line in every if line.startswith(words))]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure each step of docs/kernels-guide.md.")
    parser.add_argument("--json", type=Path, help="a file to write the figures to")
    path = parser.parse_args().json
    steps = Steps()
    for step in (coalescing, elements, shared_memory, indices, loops):
        step(steps)
        if path is not None:
            steps.save(path)


if __name__ == "__main__":
    main()
