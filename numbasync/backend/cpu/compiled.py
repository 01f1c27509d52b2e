"""Kernels compiled by Numba for the processor: blocks of threads as loops."""

from __future__ import annotations

import ast
import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit
from numba.core import compiler
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.core.typed_passes import type_inference_stage
from numba.np.numpy_support import from_dtype

from numbasync.backend.base import ArrayKey, Dim3
from numbasync.backend.cpu import meetings, native
from numbasync.backend.cpu.control import alone, counted, plain, threads
from numbasync.backend.cpu.names import UntranslatableError
from numbasync.backend.cpu.native import types
from numbasync.backend.cpu.program import ALL, HIDDEN, PLACE, Program
from numbasync.backend.cpu.regions import Pieces
from numbasync.backend.cpu.stored import Entry, key_of, store_of
from numbasync.backend.cpu.translate import translate
from numbasync.backend.cpu.uniform import Uniform
from numbasync.errors import BarrierDivergenceError, KernelError

if TYPE_CHECKING:
    from numbasync.backend.cpu.engine import Engine

# The blocks of a launch are shared out among the processors if it would take so long on one; the
# first launch, if it has so many threads.
SPREAD_SECONDS = 0.0005
SPREAD_THREADS = 1 << 15
INNER = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # called by compiled code only
NO_SITE = -1  # somewhere in the kernel
PARTS = 4  # for each of them: they need not take the same time

_SIZES = "_wx, _wy, _wz, _gx, _gy, _gz, _m, _d"
_WHERE = """
    _bx = _b % _gx
    _by = _b // _gx % _gy
    _bz = _b // _gx // _gy
"""


def type_of(key: Hashable) -> Any:
    """Numba's type of an argument, by its part of a variant's key."""
    if isinstance(key, ArrayKey):
        return types.Array(from_dtype(np.dtype(key.dtype)), key.ndim, key.order)
    if isinstance(key, tuple):
        return types.BaseTuple.from_types([type_of(k) for k in key])
    return key


class Compiled:
    """A kernel, ready to be run on the CPU device by any worker thread."""

    engine = "compiled"
    why = ""

    def __init__(self, dispatcher: Any, keys: tuple[Hashable, ...], max_threads: int) -> None:
        self.function: FunctionType = dispatcher.py_func
        self.name = self.function.__name__
        self.max_threads_per_block = max_threads
        kinds = tuple(type_of(k) for k in keys)
        self.program = translate(self.function)
        wishes = dispatcher.targetoptions
        options = {**native.OPTIONS, "fastmath": bool(wishes.get("fastmath"))}
        if wishes.get("debug"):
            # Divisions by zero raise, so that every thread leaves a note of who it is.
            options["error_model"] = "python"
            self.program.prologue = f"_note(_m, {NO_SITE}, {PLACE})"
        store = store_of(dispatcher)
        key = None if store is None else key_of(self.program, kinds, options)
        kept = None if store is None or key is None else store.load(key)
        self.from_disk = kept is not None
        entry = _entry(self.program, kinds, options) if kept is None else kept
        if store is not None and key is not None and kept is None:
            store.save(key, entry)
        self.source = entry.source
        self._result = entry.result  # which the code's memory belongs to
        self._entry: Callable[..., None] = entry.result.entry_point
        self._bytes = entry.fixed_bytes
        self._cost: float | None = None  # seconds a block, as it was the last time

    @property
    def max_shared_bytes(self) -> int:
        from numbasync.backend.cpu.device import LIMITS  # which imports this module

        return LIMITS.max_shared_bytes

    def suggested_threads(self) -> int:
        return 256

    # --- running ---

    def run(
        self, grid: Dim3, block: Dim3, shared_bytes: int, args: Sequence[Any], engine: Engine
    ) -> None:
        """Run every block. Called on a worker thread."""
        used = sum(nbytes for _, nbytes in self.program.shared) + shared_bytes
        if used > self.max_shared_bytes:
            raise KernelError(
                f"kernel {self.name}: a block needs {used} bytes of shared memory, dynamic and "
                f"static together; the device has {self.max_shared_bytes}."
            )
        values = [_value(a) for a in args]
        blocks = grid[0] * grid[1] * grid[2]
        threads = blocks * block[0] * block[1] * block[2]
        is_large = (
            threads >= SPREAD_THREADS if self._cost is None
            else self._cost * blocks >= SPREAD_SECONDS
        )  # fmt: skip
        began = time.perf_counter()
        # What is stepped does the same each time.
        if is_large and blocks > 1 and workers() > 1 and engine.stepper is None:
            self._spread(blocks, grid, block, shared_bytes, values, engine)
            self._cost = (time.perf_counter() - began) * workers() / blocks
        else:
            self._run(0, blocks, grid, block, shared_bytes, values)
            self._cost = (time.perf_counter() - began) / blocks

    def _spread(
        self, blocks: int, grid: Dim3, block: Dim3, shared_bytes: int, values: list[Any],
        engine: Engine,
    ) -> None:  # fmt: skip
        parts = min(blocks, workers() * PARTS)
        bounds = [blocks * i // parts for i in range(parts + 1)]
        turn = itertools.count()
        failed: list[tuple[int, BaseException]] = []

        def work() -> None:
            while (part := next(turn)) < parts and not failed and not engine.stopping:
                try:
                    self._run(bounds[part], bounds[part + 1], grid, block, shared_bytes, values)
                except BaseException as error:
                    failed.append((part, error))

        others = []
        with contextlib.suppress(RuntimeError):  # at interpreter exit there are no new threads
            others += [_helpers().submit(work) for _ in range(workers() - 1)]
        work()
        for other in others:
            other.result()
        if failed:
            raise min(failed, key=lambda f: f[0])[1]

    def _run(
        self, first: int, end: int, grid: Dim3, block: Dim3, shared_bytes: int, values: list[Any]
    ) -> None:
        memory = _memory(self._bytes + shared_bytes + 64)
        record = memory[: 8 * len(native.FIELDS)].view(np.int64)
        record[0] = 0
        # What nobody has written is no number: a NaN, or -1.
        for at, nbytes in (*self.program.shared, (self._bytes, shared_bytes)):
            memory[at : at + nbytes].fill(0xFF)
        try:
            self._entry(first, end, *block, *grid, memory.ctypes.data, shared_bytes, *values)
        except Exception as error:
            raise self._error(record.tolist(), error) from (
                None if record[0] != native.RAISED else error
            )

    # --- messages ---

    def _error(self, record: list[int], error: Exception) -> Exception:
        kind, number, axis, index, extent, bx, by, bz, tx, ty, tz = record
        if kind == 0:
            return KernelError(f"kernel {self.name}: {type(error).__name__}: {error}")
        where = f"kernel {self.name}, block ({bx}, {by}, {bz}), thread ({tx}, {ty}, {tz}): "
        if number == NO_SITE:
            return KernelError(f"{where}{type(error).__name__}: {error}")
        site = self.program.sites[number]
        at = f" ({site.file}:{site.line})"
        if kind == native.DIVERGED:
            return BarrierDivergenceError(
                f"kernel {self.name}, block ({bx}, {by}, {bz}): {index} of {extent} threads wait "
                f"at {site.what}, line {site.line}, but thread ({tx}, {ty}, {tz}) has returned or "
                "gone another way.\n"
                "Guard the work between barriers, not the barriers: if i < n: ...; then "
                f"{site.what}() outside the if."
            )
        if kind == native.RAISED:
            return KernelError(f"{where}{type(error).__name__}: {error}{at}")
        return KernelError(
            f"{where}IndexError: index {index} is out of bounds for axis {axis} of {site.what}, "
            f"which has {extent}{at}"
        )


def _value(argument: Any) -> Any:
    array = getattr(argument, "array", None)
    if array is not None:
        return array
    if type(argument) is tuple:
        return tuple(_value(a) for a in argument)
    return argument


# --- processors ---

_pool: ThreadPoolExecutor | None = None
_pool_lock = threading.Lock()
_own = threading.local()


def workers() -> int:
    """Threads that share the blocks of one launch."""
    return min(os.cpu_count() or 1, 64)


def _helpers() -> ThreadPoolExecutor:
    global _pool
    with _pool_lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(workers() - 1, thread_name_prefix="numbasync-blocks")
        return _pool


def after_fork() -> None:
    """A forked child has none of the threads."""
    global _pool, _pool_lock
    _pool, _pool_lock = None, threading.Lock()


def _memory(nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Memory of this thread for the block that it runs; aligned for every type."""
    found = getattr(_own, "memory", None)
    if found is None or len(found) < nbytes:
        raw = np.empty(nbytes + 64, np.uint8)
        skip = -raw.ctypes.data % 64
        found = _own.memory = raw[skip : skip + nbytes]
    memory: np.ndarray[Any, np.dtype[np.uint8]] = found[:nbytes]
    return memory


# --- source ---


def _entry(program: Program, kinds: tuple[Any, ...], options: dict[str, Any]) -> Entry:
    source, names = _generated(program, kinds, options)
    signature = types.void(*[types.int64] * 10, *kinds)
    made = njit(signature, **options, no_cfunc_wrapper=True)(_defined(source, names, "_blocks"))
    (result,) = made.overloads.values()
    return Entry(result, source, program.fixed_bytes)


def _generated(
    program: Program, kinds: tuple[Any, ...], options: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """The source of the loop over blocks, and what its names stand for."""
    if len(kinds) != len(program.parameters):
        raise UntranslatableError("arguments that do not fit the parameters")
    names = program.names
    names.update(meetings.NAMES)
    names["__name__"] = __name__  # of the generated functions: what is kept on disk asks for it
    names.setdefault("_fixed", 0)  # of its type, until it is known
    for source in program.functions:
        name = source.split("(", 1)[0].removeprefix("def ").strip()
        names[name] = None
    for source in program.functions:
        name = source.split("(", 1)[0].removeprefix("def ").strip()
        names[name] = njit(**options, **INNER)(_defined(source, names, name))
    parameters = "".join(f", {p}" for p in program.parameters)
    by_itself = None if program.meets else alone(program)
    if by_itself is not None:
        names["_fixed"] = program.fixed_bytes
        body = _indented(_text(by_itself, 0), 2)
    elif not program.meets:
        thread = f"def _thread({ALL}{parameters}):\n    {program.prologue}\n"
        names["_fixed"] = program.fixed_bytes
        names["_thread"] = njit(**{**options, **INNER, "forceinline": True})(
            _defined(thread + _text(program.body), names, "_thread")
        )
        call = ast.parse(f"_thread({ALL}{parameters})").body
        body = _indented(_text(threads(call, "pass"), 0), 2)
    else:
        uniform = Uniform(program)
        if counted(program, uniform):
            uniform = Uniform(program)
        seen = _types(program, kinds, names)
        written = Pieces(program, uniform, seen).write()
        names["_fixed"] = program.fixed_bytes
        body = _indented(_text(written, 0), 2)
    where = _indented(_WHERE.strip("\n"))
    source = (
        f"def _blocks(_lo, _hi, {_SIZES}{parameters}):\n"
        f"    for _b in range(_lo, _hi):\n{where}\n{body}\n"
    )
    return source, names


def _types(program: Program, kinds: tuple[Any, ...], names: dict[str, Any]) -> dict[str, Any]:
    """Numba's type of every variable."""
    parameters = "".join(f", {p}" for p in program.parameters)
    source = f"def _plain({ALL}{parameters}):\n" + _text(plain(program))
    function = _defined(source, names, "_plain")
    context: Any = cpu_target.typing_context
    target: Any = cpu_target.target_context
    arguments = (*[types.int64] * len(HIDDEN), *kinds)
    with global_compiler_lock:
        context.refresh()
        target.refresh()
        code = compiler.run_frontend(function)
        found, *_ = type_inference_stage(context, target, code, arguments, None)
    return dict(found)


def _defined(source: str, names: dict[str, Any], name: str) -> Any:
    space = names if name in names else dict(names)
    held = names.get(name)
    # Made of a syntax tree whose names have all been replaced.
    exec(compile(source, f"<numbasync {name}>", "exec"), names)  # noqa: S102
    made = names[name]
    if held is None and space is not names:
        names.pop(name)
    return made


def _text(statements: list[ast.stmt], levels: int = 1) -> str:
    tree = ast.fix_missing_locations(ast.Module(statements, []))
    return _indented(ast.unparse(tree), levels)


def _indented(text: str, levels: int = 1) -> str:
    pad = "    " * levels
    return "\n".join(pad + line if line else line for line in text.splitlines())
