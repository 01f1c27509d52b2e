"""Kernels as numba-cuda types and lowers them, run a thread at a time."""

from __future__ import annotations

import enum
import itertools
import linecache
import re
from collections import namedtuple
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from llvmlite import binding, ir
from numba import cuda, int64
from numba.cuda import extending, types
from numba.cuda.core.errors import TypingError

from numbasync.backend.cpu.races.words import (
    ATOMIC,
    ATTEMPT,
    FENCE,
    FENCE_BLOCK,
    QUIET,
    READ,
    WRITE,
)
from numbasync.backend.cpu.record import OUT_OF_RANGE, OVERFLOWN, RAISED
from numbasync.backend.cpu.target import Options, lower
from numbasync.errors import UnsupportedKernelError
from tests.backend_cpu.threads_in_turn import Kernel, NoteError, keys_of
from tests.common import full

pytestmark = pytest.mark.usefixtures("cpu")

jit: Any = cuda.jit
TYPES = ["i1", "i2", "i4", "i8", "u1", "u4", "u8", "f4", "f8", "c8"]


def launched(kernel: Any, grid: Any, block: Any, *args: Any, **options: Any) -> Kernel:
    made = Kernel(kernel, keys_of(args), Options(**options) if options else None)
    made.launch(grid, block, *args)
    return made


def defined(source: str, **names: Any) -> Any:
    """The kernel `k` of a source, which Numba can read."""
    file = f"<{abs(hash(source))}>"
    linecache.cache[file] = len(source), None, source.splitlines(True), file
    scope: dict[str, Any] = {"cuda": cuda, **names}
    exec(compile(source, file, "exec"), scope)
    return scope["k"]


# --- names of several types ---


def pairs(kinds: Iterable[str]) -> list[str]:
    """Types in an order in which each follows each other one once."""
    left = {a: [b for b in kinds if b != a] for a in kinds}
    way, stack = [], [next(iter(left))]
    while stack:  # Hierholzer's algorithm
        if left[stack[-1]]:
            stack.append(left[stack[-1]].pop())
        else:
            way.append(stack.pop())
    return way[::-1]


@pytest.mark.parametrize("kinds", [["i8", "f4", "u1"], full(TYPES)], ids=["three", "all"])
@pytest.mark.parametrize("between", ["cuda.syncthreads()", "v = cuda.shfl_sync(-1, v, t)"])
def test_a_name_has_its_types_in_turn(kinds: list[str], between: str) -> None:
    order = pairs(kinds)
    assert len(set(itertools.pairwise(order))) == len(kinds) * (len(kinds) - 1)
    is_shuffle = "shfl" in between
    lines = ["@cuda.jit", f"def k(z, {', '.join('x' + k for k in kinds)}):",
             "    t = cuda.threadIdx.x"]  # fmt: skip
    for n, kind in enumerate(order):
        meets = "cuda.syncthreads()" if is_shuffle and kind not in ("i4", "i8", "f4") else between
        lines += [f"    v = x{kind}[t]", f"    {meets}", f"    z[{n}, t] = v * v"]
    count = 5
    x = {k: np.arange(3, 3 + count).astype(k) * np.dtype(k).type(7) for k in kinds}
    z = np.zeros((len(order), count), np.complex128)
    launched(defined("\n".join(lines)), 1, count, z, *[x[k] for k in kinds])
    for n, kind in enumerate(order):  # Numba multiplies integers as int64
        wide = x[kind].astype(np.int64) if np.dtype(kind).kind in "iu" else x[kind]
        np.testing.assert_array_equal(z[n], wide * wide, err_msg=f"{order[n - 1 : n + 1]}")


# --- values ---


class Colour(enum.IntEnum):
    RED = 3


Pair = namedtuple("Pair", "low, high")  # noqa: PYI024 - Numba has the plain ones


@jit
def mixed(z, record, pair, nothing, colour, nested):  # type: ignore[no-untyped-def]
    i = cuda.threadIdx.x
    kept = record[i]
    view = z[i]
    cuda.syncthreads()
    view[0] = kept.a + kept["b"]
    view[1] = pair.low + pair.high[i]
    if nothing is None and colour == Colour.RED:
        view[2] = nested[0][1] + nested[1]
    for k, v in enumerate(pair.high):
        cuda.syncthreads()
        view[3] += k * v


def test_records_tuples_enums_and_none_across_barriers() -> None:
    kind = np.dtype([("a", np.int32), ("b", np.float64)], align=True)
    record = np.array([(1, 0.5), (2, 0.25)], kind)
    z, high = np.zeros((2, 4)), np.array([5.0, 7.0])
    launched(mixed, 1, 2, z, record, Pair(2, high), None, Colour.RED, ((1, 2), 3.5))
    assert z.tolist() == [[1.5, 7, 5.5, 7], [2.25, 9, 5.5, 7]]


# --- operations in which threads meet ---


@jit
def met(z, x, n):  # type: ignore[no-untyped-def]
    i = cuda.threadIdx.x
    z[0, i] = cuda.shfl_up_sync(-1, x[i], 3)
    z[1, i] = cuda.shfl_xor_sync(-1, int64(x[i]), 5)
    z[2, i] = cuda.ballot_sync(-1, x[i] > n) & 0xFFFFFFFF
    z[3, i] = cuda.match_any_sync(-1, x[i] % 3) & 0xFFFFFFFF
    z[4, i] = cuda.syncthreads_count(int(x[i] > n))
    z[5, i] = cuda.syncthreads_and(int(x[i] > n)) + 2 * cuda.syncthreads_or(int(x[i] > n))
    if i % 2:
        z[6, i] = cuda.any_sync(0xAAAAAAAA, x[i] == 5)
    else:
        z[6, i] = cuda.activemask()


@pytest.mark.parametrize("count", [45, full(64), full(1)])
def test_threads_that_meet(count: int) -> None:
    x = np.arange(count, dtype=np.int32)[::-1].copy()
    z = np.zeros((7, count), np.int64)
    launched(met, 1, count, z, x, 20)
    for first in range(0, count, 32):
        lanes = list(range(first, min(first + 32, count)))
        for i in lanes:
            up, across = i - 3, first + ((i - first) ^ 5)
            assert z[0, i] == x[up if up >= first else i]
            assert z[1, i] == x[across if across < count else i]
            assert z[2, i] == sum(1 << (j - first) for j in lanes if x[j] > 20)
            assert z[3, i] == sum(1 << (j - first) for j in lanes if x[j] % 3 == x[i] % 3)
            even = sum(1 << (j - first) for j in lanes if not j % 2)
            assert z[6, i] == (any(x[j] == 5 for j in lanes if j % 2) if i % 2 else even)
    assert set(z[4]) == {(x > 20).sum()}
    assert set(z[5]) == {(x > 20).all() + 2 * (x > 20).any()}


# --- what goes wrong ---


@jit
def outside(z, x, how, i):  # type: ignore[no-untyped-def]
    if cuda.threadIdx.x == 2:
        if how == 0:
            z[i] = 1
        elif how == 1:
            cuda.atomic.add(z, i, 1)
        elif how == 2:
            z[0] = x[0][1, i]
        elif how == 3:
            x[0][:, i] = 0
        elif how == 4 and i < 0:
            raise ValueError("negative", 3)


@pytest.mark.parametrize(
    ("how", "what", "axis", "extent"),
    [(0, "z", 0, 4), (1, "z", 0, 4), (2, "x[0]", 1, 3), (3, "x[0]", 1, 3)],
)
@pytest.mark.parametrize("i", [7, -8])
def test_an_index_out_of_range_is_noted(
    how: int, what: str, axis: int, extent: int, i: int
) -> None:
    made = Kernel(outside, keys_of(arguments := (np.zeros(4), (np.zeros((2, 3)),), how, i)))
    with pytest.raises(NoteError) as caught:
        made.launch((1, 2), 4, *arguments)
    kind, number, *numbers, block, thread = caught.value.args
    assert (kind, numbers, block, thread) == (OUT_OF_RANGE, [axis, i, extent], (0, 0, 0), (2, 0, 0))
    site = made.module.sites[number]
    assert (site.function, site.file, site.what) == ("outside", __file__, what)
    assert site.line == outside.py_func.__code__.co_firstlineno + 4 + 2 * how


def test_what_a_kernel_raises_is_noted() -> None:
    made = Kernel(outside, keys_of(arguments := (np.zeros(4), (np.zeros((2, 3)),), 4, -1)))
    with pytest.raises(NoteError) as caught:
        made.launch(1, 4, *arguments)
    kind, number, which, *_ = caught.value.args
    assert (kind, made.module.exceptions[which]) == (RAISED, (ValueError, ("negative", 3)))
    assert made.module.sites[number].line == outside.py_func.__code__.co_firstlineno + 12


def test_a_refusal_is_numba_cudas() -> None:
    @jit
    def kernel(z):  # type: ignore[no-untyped-def]
        z[0] = z.no_such_thing

    with pytest.raises(TypingError, match=r"Unknown attribute 'no_such_thing' of type array"):
        lower(kernel, (types.float64[::1],))


def test_gpu_only_features_are_refused_by_name() -> None:
    intrinsic: Any = extending.intrinsic

    @intrinsic
    def own(typingctx: Any):  # type: ignore[no-untyped-def]
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = ir.FunctionType(ir.IntType(32), [])
            return builder.call(ir.Function(builder.module, kind, "llvm.nvvm.nowhere"), [])

        return types.int32(), emit

    @jit
    def kernel(z):  # type: ignore[no-untyped-def]
        z[0] = own()

    said = rf"kernel uses a call of llvm\.nvvm\.nowhere, which only a GPU has .*{__file__}"
    with pytest.raises(UnsupportedKernelError, match=said):
        lower(kernel, (types.int32[::1],))


# --- checked kernels, and printing ---


@jit
def accessing(z, x):  # type: ignore[no-untyped-def]
    z[1] = x[0]
    z[1] = x[0]
    cuda.atomic.add(z, 0, 1)
    cuda.atomic.cas(z, 0, 1, 5)
    cuda.atomic.cas(z, 0, 1, 6)
    cuda.threadfence()
    cuda.threadfence_block()
    z[2:] = 3
    z[-1] += 1
    for v in x:
        z[1] = v


def test_checked_kernels_tell_each_access() -> None:
    z, x = np.zeros(4, np.int64), np.full(1, 7, np.int64)
    made = launched(accessing, 1, 1, z, x, checked=True)
    assert z.tolist() == [5, 7, 3, 4]
    places: dict[Any, str] = {
        x.ctypes.data: "x",
        **{z.ctypes.data + 8 * k: f"z{k}" for k in range(4)},
        None: "",
    }
    seen = [(mode, places[address], nbytes) for mode, _, address, nbytes in made.accesses]
    assert seen == [
        (READ, "x", 8), (WRITE, "z1", 8), (READ, "x", 8), (QUIET, "z1", 8), (ATOMIC, "z0", 8),
        (ATOMIC, "z0", 8), (ATTEMPT, "z0", 8), (FENCE, "", 0), (FENCE_BLOCK, "", 0),
        (WRITE, "z2", 8), (WRITE, "z3", 8), (READ, "z3", 8), (WRITE, "z3", 8),
        (READ, "x", 8), (QUIET, "z1", 8),
    ]  # fmt: skip
    lines = [made.module.sites[site].line for _, site, *_ in made.accesses]
    first = accessing.py_func.__code__.co_firstlineno
    assert [n - first for n in lines] == [2, 2, 3, 3, 4, 5, 6, 7, 8, 9, 9, 10, 10, 11, 12]
    assert "na.access" not in lower(accessing, (types.int64[::1],) * 2).text


@jit
def cut(z, far):  # type: ignore[no-untyped-def]
    i = np.int32(far) - 1
    other = np.int32(far)
    z[i] = other


def test_checked_kernels_note_indices_that_do_not_fit() -> None:
    made = launched(cut, 1, 1, z := np.zeros(4), 3, checked=True)
    assert z.tolist() == [0, 0, 3, 0]
    with pytest.raises(NoteError) as caught:
        made.launch(1, 1, z, 2**32 + 3)
    kind, site, *numbers = caught.value.args[:5]
    assert (kind, numbers) == (OVERFLOWN, [0, 2**32 + 3, 0])
    assert made.module.sites[site].what == "np.int32"
    assert made.module.sites[site].line == cut.py_func.__code__.co_firstlineno + 2
    launched(cut, 1, 1, z, 2**32 + 3)  # as on a GPU


def test_fast_arithmetic_is_that_of_gpu_compilers() -> None:
    @jit
    def kernel(z, x, y):  # type: ignore[no-untyped-def]
        z[0] = x * y + z[1] if x < y else x / y

    arguments = (types.float32[::1], types.float32, types.float32)
    fast = lower(kernel, arguments, Options(fastmath=True)).text
    binding.parse_assembly(fast).verify()
    assert re.search(r"fmul (?=.*contract)(?=.*arcp)(?=.*afn)", fast)
    assert not re.search("nnan|ninf|reassoc|fast ", fast)
    assert "contract" not in lower(kernel, arguments).text


def test_printing() -> None:
    @jit
    def kernel(x):  # type: ignore[no-untyped-def]
        print("x is", x[0], np.uint8(200), cuda.threadIdx, x[0] > 0, (1, -2))  # noqa: T201

    made = launched(kernel, 1, 1, np.array([1.5]))
    assert made.printed == ["x is 1.500000 200 (0, 0, 0) True (1, -2)\n"]


def test_what_is_known_of_a_kernel() -> None:
    @jit
    def straight(z):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        if i < z.shape[0]:
            z[i] += 1

    @jit
    def loops(z):  # type: ignore[no-untyped-def]
        cuda.threadfence()
        for i in range(z.shape[0]):
            cuda.atomic.max(z, i, 1)
        cuda.cg.this_grid().sync()

    plain, other = (lower(k, (types.int64[::1],)) for k in (straight, loops))
    facts = ("is_straight", "is_cooperative", "has_atomics", "has_fences")
    assert [getattr(plain, fact) for fact in facts] == [True, False, False, False]
    assert [getattr(other, fact) for fact in facts] == [False, True, True, True]
    assert plain.arguments == ("ptr", "ptr", "i64", "i64", "ptr", "i64", "i64")
