"""Runs a kernel by its regions, without the engine: for tests of `regions` alone."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
from numba.core import types

from numbasync.backend.cpu.record import RECORD_BYTES, WAITS_AT
from numbasync.backend.cpu.regions import Code, Settings, build
from numbasync.backend.cpu.regions.blocks_code import MASKED_STATE
from numbasync.backend.cpu.target import lower
from numbasync.backend.declared_signatures import type_of

Dim = int | tuple[int, ...]
RECORD = 11  # words
BEHIND = 1 << 14  # bytes behind a launch's memory, which it must leave as they are


class RecordError(Exception):
    """What a launch left in its record: kind, site, three numbers, block, thread."""

    def __init__(self, status: int, words: list[int]) -> None:
        super().__init__(f"status {status}: {words}")
        self.kind, self.site, self.numbers = words[0], words[1], tuple(words[2:5])
        self.block, self.thread = tuple(words[5:8]), tuple(words[8:11])


class ApartError(Exception):
    """Blocks that wait at different barriers: the last one's site, and each one's barrier."""


class Blocks:
    """A kernel lowered and cut, with memory to run in."""

    def __init__(self, kernel: Any, args: tuple[Any, ...], **options: Any) -> None:
        from numba.cuda.typing.typeof import typeof

        keys = [types.none if a is None else typeof(a) for a in args]
        self.types = tuple(type_of(k) for k in keys)
        self.module = lower(kernel, self.types)
        self.code: Code = build(self.module.text, self.module.name, Settings(**options))
        self.run = entry_of(self.code)

    def launch(self, grid: Dim, block: Dim, *args: Any, dynamic_bytes: int = 0) -> None:
        """Run every block in this thread."""
        keep: list[Any] = []
        packed = [p for a, t in zip(args, self.types, strict=True) for p in words_of(a, t, keep)]
        launch_code(self.code, self.run, grid, block, packed, dynamic_bytes)


def entry_of(code: Code) -> Any:
    """The code as a function of Python's."""
    integer, wide, place = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p
    kinds = [place, place, wide, wide, *[integer] * 6, wide, place]
    return ctypes.CFUNCTYPE(integer, *kinds)(code.load())


def launch_code(
    code: Code, run: Any, grid: Dim, block: Dim, words: list[int], dynamic_bytes: int = 0
) -> None:
    extents = [(*((d,) if isinstance(d, int) else d), 1, 1)[:3] for d in (grid, block)]
    grid, block = extents
    blocks = math.prod(grid)
    nbytes = code.memory_bytes(math.prod(block), dynamic_bytes)
    end = nbytes * (blocks if code.cooperative else 1)
    memory = np.full(end + 64 + BEHIND, 0xAB, np.uint8)
    start = -memory.ctypes.data % 64
    for b in range(blocks if code.cooperative else 1):
        memory[start + b * nbytes :][:RECORD_BYTES] = 0
    arguments = np.array([w % 2**64 for w in words] or [0], np.uint64)
    status, meeting = 0, 1
    while meeting and not status:
        status = run(
            arguments.ctypes.data, memory[start:].ctypes.data, 0, blocks, *block, *grid,
            dynamic_bytes, None,
        )  # fmt: skip
        meeting = 0
        if code.cooperative and not status:
            waits = (
                memory[start : start + end].view(np.int64)[WAITS_AT :: nbytes // 8] % MASKED_STATE
            )
            meeting = int(waits.max())
            if (waits != meeting).any():
                raise ApartError(code.sites[meeting], waits.tolist())
    if (memory[start + end :] != 0xAB).any():
        raise AssertionError("something is written behind the memory")
    if status:
        records = (memory[start + b * nbytes :][: RECORD * 8].view(np.int64) for b in range(blocks))
        record = next((r for r in records if r[0]), memory[start:][: RECORD * 8].view(np.int64))
        raise RecordError(status, record.tolist())


def words_of(value: Any, numba_type: Any, keep: list[Any]) -> list[int]:
    """An argument as Numba flattens it, each part in 8 bytes."""
    if isinstance(numba_type, types.Array):
        parts = [0, 0, value.size, value.itemsize, value.ctypes.data, *value.shape, *value.strides]
        return [int(p) % 2**64 for p in parts]
    if isinstance(numba_type, types.BaseTuple):
        return [p for v, t in zip(value, numba_type, strict=True) for p in words_of(v, t, keep)]
    if isinstance(numba_type, types.NoneType):
        return [0]
    if isinstance(numba_type, types.EnumMember):
        value = value.value
    if isinstance(numba_type, types.Float):
        bits = np.array(value, f"f{numba_type.bitwidth // 8}")
        return [int(bits.view(f"u{numba_type.bitwidth // 8}"))]
    return [int(value) % 2**64]
