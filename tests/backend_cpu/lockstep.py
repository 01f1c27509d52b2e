"""Runs the source of a kernel as Python, a greenlet for each CUDA thread: no compiler has a part in
it. Numbers are Python's, so kernels that are judged by it compute exactly.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import greenlet
import numpy as np

WARP = 32


class Elements:
    """An array whose elements are Python's numbers, and those of records too."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __getitem__(self, index: Any) -> Any:
        found = self._array[index]
        if isinstance(found, np.void):
            return Record(self._array, index)
        return Elements(found) if isinstance(found, np.ndarray) else found.item()

    def __setitem__(self, index: Any, value: Any) -> None:
        self._array[index] = value.array[value.index] if isinstance(value, Record) else value

    def __len__(self) -> int:
        return len(self._array)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._array, name)


class Record:
    """One record of an array; by fields, which are Python's numbers."""

    def __init__(self, array: Any, index: int) -> None:
        self.__dict__.update(array=array, index=index)

    def __getitem__(self, field: str) -> Any:
        return self.array[field][self.index].item()

    def __setitem__(self, field: str, value: Any) -> None:
        self.array[field][self.index] = value

    __getattr__, __setattr__ = __getitem__, __setitem__


class _Axes:
    def __init__(self, x: int, y: int = 0) -> None:
        self.x, self.y = x, y


class _Thread:
    """Where a thread is, and what it waits for: ("block", value), ("warp", mask, name, rest) or
    ("grid",).
    """

    def __init__(self, block: int, number: int, shape: tuple[int, ...], call: Any) -> None:
        self.block, self.number = block, number
        self.axes = _Axes(number % shape[0], number // shape[0])
        self.code = greenlet.greenlet(call)
        self.waits: Any = ()
        self.answer: Any = None


def _fresh(nbytes: int) -> np.ndarray:
    """Memory that nothing is written to yet: numbers that no kernel computes."""
    return np.full(nbytes, 0x4B, np.uint8)


class _Memory:
    """`cuda.shared` and `cuda.local`."""

    def __init__(self, grid: Lockstep, is_shared: bool) -> None:
        self._grid, self._is_shared = grid, is_shared

    def array(self, shape: Any, dtype: Any) -> Elements:
        dtype = getattr(dtype, "dtype", dtype)
        if self._is_shared and shape == 0:
            return Elements(self._grid.dynamic[self._grid.current.block].view(dtype))
        fresh = _fresh(math.prod(np.atleast_1d(shape)) * np.dtype(dtype).itemsize)
        fresh = fresh.view(dtype).reshape(shape)
        if not self._is_shared:
            return Elements(fresh)
        frame = sys._getframe(1)
        key = self._grid.current.block, frame.f_code, frame.f_lasti
        return self._grid.arrays.setdefault(key, Elements(fresh))


class _Atomic:
    def add(self, array: Any, index: Any, value: Any) -> None:
        array[index] += value

    def max(self, array: Any, index: Any, value: Any) -> None:
        array[index] = max(array[index], value)


class Number:
    """Numba's type of a number, as a conversion."""

    def __init__(self, name: str) -> None:
        self.dtype = np.dtype(name)

    def __call__(self, value: Any) -> Any:
        return self.dtype.type(int(value) if self.dtype.kind not in "fc" else value).item()


class Lockstep:
    """What `cuda` is for a kernel that runs as Python, and what runs it."""

    def __init__(self) -> None:
        self.arrays: dict[Any, Elements] = {}  # in shared memory
        self.shared, self.local = _Memory(self, True), _Memory(self, False)
        self.dynamic: list[np.ndarray] = []  # shared memory of each block
        self.atomic = _Atomic()
        self.current: Any = None

    # --- what kernels use ---

    def __getattr__(self, name: str) -> Any:
        thread = self.current
        match name:
            case "threadIdx":
                return thread.axes
            case "blockIdx":
                return _Axes(thread.block)
            case "blockDim":
                return _Axes(*self._shape, 1) if len(self._shape) == 1 else _Axes(*self._shape)
            case "gridDim":
                return _Axes(self._blocks, 1)
            case "cg":
                return self
        return self._collective(name)

    def this_grid(self) -> Any:
        return self

    def sync(self) -> None:
        self._wait("grid")

    def gridsize(self, axes: int) -> int:
        return int(self._blocks * self._shape[0])

    def popc(self, value: int) -> int:
        return (value & 0xFFFFFFFF).bit_count()

    def ffs(self, value: int) -> int:
        return (value & -value).bit_length()

    def jit(self, *args: Any, **options: Any) -> Callable[[Any], Any]:
        return lambda function: function

    def _collective(self, name: str) -> Any:
        if name.startswith("syncthreads"):
            return lambda value=0: self._wait("block", name, value)
        if name == "syncwarp":
            return lambda mask=-1: self._wait("warp", mask, name, ())
        if name.endswith("_sync"):
            return lambda mask, *rest: self._wait("warp", mask, name, rest)
        raise AttributeError(name)

    def _wait(self, *what: Any) -> Any:
        thread = self.current
        thread.waits = what
        self._main.switch()
        return thread.answer

    # --- what runs them ---

    def launch(
        self, kernel: Any, blocks: int, shape: tuple[int, ...], *args: Any, dynamic_bytes: int = 0
    ) -> None:
        """Run a kernel whose global `cuda` is this; all blocks are there at the same time."""
        self._main, self._blocks, self._shape = greenlet.getcurrent(), blocks, shape
        self.arrays = {}
        self.dynamic = [_fresh(dynamic_bytes) for _ in range(blocks)]
        given = [Elements(a) if isinstance(a, np.ndarray) else a for a in args]
        call = lambda: kernel(*given)  # noqa: E731
        size = math.prod(shape)
        threads = [_Thread(b, t, shape, call) for b in range(blocks) for t in range(size)]
        ready = list(threads)
        while ready:
            for thread in ready:
                self.current = thread
                thread.waits = ()
                thread.code.switch()
            threads = [t for t in threads if not t.code.dead]
            ready = self._that_go_on(threads)
            if threads and not ready:
                raise AssertionError(f"no thread can go on: {[t.waits for t in threads]}")

    def _that_go_on(self, threads: list[_Thread]) -> list[_Thread]:
        found: list[_Thread] = []
        by_block: dict[int, list[_Thread]] = {}
        by_warp: dict[Any, list[_Thread]] = {}
        for t in threads:
            by_block.setdefault(t.block, []).append(t)
            by_warp.setdefault((t.block, t.number // WARP), []).append(t)
        for warp in by_warp.values():
            found += self._warp_goes_on(warp)
        for block in by_block.values():
            if all(t.waits[0] == "block" for t in block):
                name, values = block[0].waits[1], [t.waits[2] for t in block]
                assert all(t.waits[1] == name for t in block)
                answer = {
                    "syncthreads_count": sum(map(bool, values)),
                    "syncthreads_and": int(all(values)), "syncthreads_or": int(any(values)),
                }.get(name)  # fmt: skip
                for t in block:
                    t.answer = answer
                found += block
        return found or (threads if all(t.waits[0] == "grid" for t in threads) else [])

    def _warp_goes_on(self, warp: list[_Thread]) -> list[_Thread]:
        for thread in warp:
            if thread.waits[0] != "warp":
                continue
            _, mask, name, _ = thread.waits
            lanes = {t.number % WARP: t for t in warp if mask >> t.number % WARP & 1}
            if all(t.waits[:3] == ("warp", mask, name) for t in lanes.values()):
                _answer(name, {lane: t.waits[3] for lane, t in lanes.items()}, lanes)
                return list(lanes.values())
        return []


def _answer(name: str, given: dict[int, Any], lanes: dict[int, _Thread]) -> None:
    votes = {lane: bool(rest[0]) for lane, rest in given.items() if rest}
    for lane, thread in lanes.items():
        match name:
            case "syncwarp":
                thread.answer = None
            case "ballot_sync":
                bits = sum(1 << k for k, vote in votes.items() if vote)
                thread.answer = bits - (1 << 32) if bits >> 31 else bits
            case "any_sync" | "all_sync":
                thread.answer = (any if name == "any_sync" else all)(votes.values())
            case _:
                value, other = given[lane]
                source = {
                    "shfl_sync": other % WARP, "shfl_xor_sync": lane ^ other,
                    "shfl_up_sync": lane - other, "shfl_down_sync": lane + other,
                }[name]  # fmt: skip
                thread.answer = given.get(source, (value,))[0]
