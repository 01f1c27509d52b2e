"""Two axes of a tensor changed for each other, at the speed of a copy.

Of a tensor of any rank five extents matter: those before, between and behind the two axes, as one
each, and the two themselves. What is behind both stays together: it is a run of `each` units, as
wide as runs and addresses permit. Runs of at least `SECTOR` bytes are copied as they are. Shorter
ones go through tiles in shared memory, so that neighbouring threads read and write neighbours; on
devices whose threads run one after the other, through tiles of the cache.
"""

from __future__ import annotations

import math
from functools import cache, partial
from typing import Any

import numpy as np

import numbasync as na
from numbasync.algorithms.launches import Launches
from numbasync.algorithms.operation import Algorithm, axes_of, contiguous
from numbasync.kernel_names import cuda, from_dtype, int64, uint32, uint64

SECTOR = 32  # bytes, which a GPU reads and writes together
WIDEST = 8  # bytes of a unit
WORD = 8  # bytes that a thread reads and writes, of narrower elements
THREADS = 256
MOVES = 4  # rows under way in a thread
UNITS: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.uint8), 2: np.dtype(np.uint16), 4: np.dtype(np.uint32),
    8: np.dtype(np.uint64),
}  # fmt: skip


def transpose(x: Any, axis1: int = -2, axis2: int = -1) -> na.DeviceOp[na.Tensor]:
    """Two axes changed for each other, in a new contiguous tensor; `x.mT` is a view without a copy.

    Args:
        x: a tensor or a NumPy array of any rank and dtype, or an operation that gives one.
        axis1, axis2: the axes; default: the last two.

    Reads and writes each element once; what is not contiguous is copied first. Exact.

    Raises:
        ShapeError: there is no such axis.

    Examples:
        >>> from numbasync_kernels import matrix
        >>> x = np.arange(6, dtype=np.int16).reshape(2, 3)
        >>> (await matrix.transpose(x).to_host()).tolist()
        [[0, 3], [1, 4], [2, 5]]
        >>> (await matrix.transpose(np.zeros((2, 3, 5, 7)), 0, 2)).shape
        (5, 3, 2, 7)
    """
    if isinstance(x, na.Tensor):
        serial = x.device is None or x.device.limits.loads_in_flight == 1
        return Algorithm("transpose", x, partial(_plan, axis1, axis2, x.is_aligned, serial))
    if isinstance(x, np.ndarray):
        _axes(axis1, axis2, x.ndim)
        x = na.from_host(x)
    elif not isinstance(x, na.DeviceOp):
        raise na.errors.OperationError(
            f"transpose takes a tensor, a NumPy array, or an operation that gives one, not "
            f"{type(x).__name__}."
        )
    made: na.DeviceOp[na.Tensor] = x.then(lambda t: transpose(t, axis1, axis2))
    return made


def transpose_reference(
    x: np.ndarray[Any, Any], axis1: int = -2, axis2: int = -1
) -> np.ndarray[Any, Any]:
    """What `transpose` writes."""
    return np.swapaxes(x, axis1, axis2)


def _axes(axis1: Any, axis2: Any, rank: int) -> tuple[int, int]:
    """Both axes, the lesser first."""
    if axis1 == axis2:
        (a,) = axes_of("transpose", axis1, rank)
        return a, a
    ((a,), (b,)) = (axes_of("transpose", axis, rank) for axis in (axis1, axis2))
    return min(a, b), max(a, b)


def _plan(
    axis1: Any, axis2: Any, is_aligned: bool, is_serial: bool, shape: tuple[int, ...],
    dtype: np.dtype[Any],
) -> Any:  # fmt: skip
    """What builds the operation of a tensor of this shape and dtype.

    Args:
        is_aligned: it begins at a multiple of 16 bytes.
        is_serial: of a device whose threads run one after the other.
    """
    a, b = _axes(axis1, axis2, len(shape))
    order = list(range(len(shape)))
    order[a], order[b] = b, a
    result = tuple(shape[axis] for axis in order)
    if not math.prod(shape):
        return lambda _: na.empty(result, dtype)
    before, between, behind = (
        math.prod(shape[:a]), math.prod(shape[a + 1 : b]), math.prod(shape[b + 1 :])
    )  # fmt: skip
    m, n = shape[a], shape[b]
    if a == b or m == n == 1 or (between == 1 and 1 in (m, n)):
        return lambda x: contiguous(x).reshape(result)
    launches = Launches((shape, dtype))
    run = behind * dtype.itemsize
    unit = UNITS[math.gcd(run, WIDEST if is_aligned else dtype.alignment)]
    each = run // unit.itemsize
    parts = WORD // unit.itemsize if is_aligned and each == 1 and not is_serial else 1
    if parts < 1 or m % parts or n % parts:
        parts = 1
    word = UNITS[unit.itemsize * parts]
    (x,) = launches.operands
    whole = launches.empty((math.prod(shape),), dtype)
    z, x = whole.reinterpret(word), x.reshape(whole.shape).reinterpret(word)
    if run >= SECTOR:
        rows = before * m * between * n
        lanes = min(32, 1 << (each - 1).bit_length())
        kernel = runs_kernel(word, lanes, rows < 2**31)
        blocks = -(-rows // (THREADS // lanes * MOVES))
        launches.launch(kernel[blocks, (lanes, THREADS // lanes)], z, x, m, between, n, each)
    else:
        down, across = tile_of(m, n, unit.itemsize, parts, each, is_serial)
        tiles = before * between * -(-m // down) * -(-n // across)
        if is_serial:
            kernel = serial_kernel(down, across, each)[-(-tiles // 32), 32]
        else:
            kernel = tiles_kernel(word, parts, down, across, each)[tiles, THREADS]
        launches.launch(kernel, z, x, m, between, n)
    launches.give(whole.reshape(result))
    return launches


def tile_of(
    m: int, n: int, unit: int, parts: int, each: int, is_serial: bool
) -> tuple[int, int]:  # fmt: skip
    """Rows and columns of a tile, powers of two, of which a thread has up to 16 words; along the
    longer axis if the other is short.
    """
    if is_serial or unit * each > 8:
        rows, columns = 16, 16
    elif each > 1:
        rows, columns = 32, 32
    elif parts > 1:
        rows, columns = 128, min(32 * parts, 128)
    else:
        rows, columns = (128, 32) if unit == WORD else (64, 64)
    area = rows * columns
    down, across = min(rows, 1 << (m - 1).bit_length()), min(columns, 1 << (n - 1).bit_length())
    return (area // across, across) if across < columns else (down, area // down)


@cache
def tiles_kernel(word: np.dtype[Any], parts: int, down: int, across: int, each: int) -> Any:
    """The launcher ``(z, x, m, q, n)`` of runs of `each` units, in tiles of `down` rows and
    `across` columns: ``z[p, j, k, i] = x[p, i, k, j]`` of shapes ``(p, n, q, m)`` and
    ``(p, m, q, n)``, both given as words in a row. A block has a tile.

    Args:
        parts: units of a word: neighbours along `n` become neighbours along `m` within words, so
            that both are a multiple of this. If there are several, `each` is 1.
    """
    kind = from_dtype(word)
    bits = 8 * word.itemsize // parts
    mask = kind((1 << bits) - 1)
    bands = down // parts  # rows, of which a word of the result has `parts` neighbours
    width, height = across // parts * each, bands * each  # words of a tile's row, and of a column
    pitch = width + 1  # so that words of a column are in different banks
    cells = down * pitch
    moves, stores = down * width // THREADS, bands * width // THREADS

    @na.launcher(may_alias=True)
    @cuda.jit
    def swap_in_tiles(z: na.KernelOutput, x: na.KernelInput, m: int, q: int, n: int) -> None:
        tile = cuda.shared.array(cells, kind)
        held = cuda.local.array(moves, kind)
        words = cuda.local.array(parts, kind)
        t = uint32(cuda.threadIdx.x)
        # A grid has less than 2**31 blocks, so that their numbers are divided in 32 bits.
        number = uint32(cuda.blockIdx.x)
        tiles_across = uint32((n + across - 1) // across)
        tiles_down = uint32((m + down - 1) // down)
        rest = uint32(number // tiles_across)
        left = int64(uint32(number - uint32(rest * tiles_across))) * across
        number = uint32(rest // tiles_down)
        top = int64(uint32(rest - uint32(number * tiles_down))) * down
        before = int64(uint32(number // uint32(q)))
        layer = int64(number) - before * q
        x_step = uint64(q * (n // parts) * each)
        z_step = uint64(q * (m // parts) * each)
        x_first = uint64((((before * m + top) * q + layer) * n + left) // parts * each)
        z_first = uint64((((before * n + left) * q + layer) * m + top) // parts * each)
        rows, columns = min(m - top, down), min(n - left, across)
        is_whole = rows == down and columns == across
        if is_whole:
            for k in range(moves):
                cell = uint32(t + uint32(k * THREADS))
                row, column = uint32(cell // uint32(width)), uint32(cell % uint32(width))
                held[k] = x[x_first + row * x_step + uint64(column)]
        else:
            for k in range(moves):
                cell = uint32(t + uint32(k * THREADS))
                row, column = uint32(cell // uint32(width)), uint32(cell % uint32(width))
                held[k] = kind(0)
                if row < rows and column < columns // parts * each:
                    held[k] = x[x_first + row * x_step + uint64(column)]
        for k in range(moves):
            cell = uint32(t + uint32(k * THREADS))
            row, column = uint32(cell // uint32(width)), uint32(cell % uint32(width))
            band = uint32(uint32(row % uint32(parts)) * uint32(bands) + row // uint32(parts))
            tile[uint32(band * uint32(pitch) + column)] = held[k]
        cuda.syncthreads()
        for k in range(stores):
            cell = uint32(t + uint32(k * THREADS))
            column, place = uint32(cell // uint32(height)), uint32(cell % uint32(height))
            band, unit = uint32(place // uint32(each)), uint32(place % uint32(each))
            at = uint32(band * uint32(pitch) + column * uint32(each) + unit)
            for s in range(parts):
                words[s] = tile[uint32(at + uint32(s * bands * pitch))]
            if is_whole or (band < rows // parts and column < columns // parts):
                to = z_first + (column * uint32(parts)) * z_step + uint64(place)
                for r in range(parts):
                    turned = kind(0)
                    for s in range(parts):
                        part = kind(kind(words[s] >> kind(r * bits)) & mask)
                        turned = kind(turned | kind(part << kind(s * bits)))
                    z[to + uint64(r) * z_step] = turned

    return swap_in_tiles


@cache
def serial_kernel(down: int, across: int, each: int) -> Any:
    """As `tiles_kernel`, of a tile a thread."""

    @na.launcher(may_alias=True)
    @cuda.jit
    def swap_by_threads(z: na.KernelOutput, x: na.KernelInput, m: int, q: int, n: int) -> None:
        tiles_across = (n + across - 1) // across
        tiles_down = (m + down - 1) // down
        number = int64(cuda.grid(1))
        left = number % tiles_across * across
        number = number // tiles_across
        top = number % tiles_down * down
        number = number // tiles_down
        layer = number % q
        before = number // q
        if before * m * q * n * each < x.shape[0]:
            for j in range(left, min(left + across, n)):
                to = ((before * n + j) * q + layer) * m * each
                for i in range(top, min(top + down, m)):
                    first = (((before * m + i) * q + layer) * n + j) * each
                    for part in range(each):
                        z[to + i * each + part] = x[first + part]

    return swap_by_threads


@cache
def runs_kernel(word: np.dtype[Any], lanes: int, is_short: bool) -> Any:
    """The launcher ``(z, x, m, q, n, each)`` of long runs of `each` units, otherwise as
    `tiles_kernel`: `lanes` threads copy some units of `MOVES` runs.

    Args:
        is_short: there are less than 2**31 runs, whose numbers are divided in 32 bits.
    """
    kind = from_dtype(word)
    number_type = uint32 if is_short else uint64
    teams = THREADS // lanes

    @na.launcher(may_alias=True)
    @cuda.jit
    def swap_runs(z: na.KernelOutput, x: na.KernelInput, m: int, q: int, n: int, each: int) -> None:
        first = int64(cuda.blockIdx.x) * (teams * MOVES) + cuda.threadIdx.y
        starts = cuda.local.array(MOVES, int64)
        held = cuda.local.array(MOVES, kind)
        runs = z.shape[0] // each
        for k in range(MOVES):
            run = number_type(min(first + k * teams, runs - 1))
            rest = number_type(run // number_type(m))
            i = int64(number_type(run - number_type(rest * number_type(m))))
            more = number_type(rest // number_type(q))
            layer = int64(number_type(rest - number_type(more * number_type(q))))
            before = number_type(more // number_type(n))
            j = int64(number_type(more - number_type(before * number_type(n))))
            starts[k] = (((int64(before) * m + i) * q + layer) * n + j) * each
        to = first * each
        for unit in range(cuda.threadIdx.x, each, lanes):
            for k in range(MOVES):  # all loads are under way before the first store
                held[k] = x[uint64(starts[k] + unit)]
            for k in range(MOVES):
                if first + k * teams < runs:
                    z[uint64(to + k * teams * each + unit)] = held[k]

    return swap_runs
