"""Indices of blocks and threads, and places in a kernel's code."""

from __future__ import annotations

import functools
import sys
from collections.abc import Hashable
from types import CodeType
from typing import NamedTuple, TypeAlias

# A call in a kernel: the code object, and the offset of its first instruction. Two calls on one
# line have two places; a call of which the bytecode has copies, as of a loop's condition or in
# `finally`, has one.
Place: TypeAlias = tuple[CodeType, int]


class Index3(NamedTuple):
    """An index or an extent of three axes."""

    x: int
    y: int
    z: int


def place_of_call(depth: int = 2) -> Place:
    """The place of the call `depth` frames up."""
    frame = sys._getframe(depth)
    return frame.f_code, _first_copies(frame.f_code)[frame.f_lasti // 2]


@functools.lru_cache(maxsize=256)
def _first_copies(code: CodeType) -> list[int]:
    """For each instruction, the offset of the first one of the same lines and columns; its own,
    where columns are not kept (`python -X no_debug_ranges`).
    """
    first: dict[Hashable, int] = {}
    return [
        first.setdefault(at if at[2] is not None else i, 2 * i)
        for i, at in enumerate(code.co_positions())
    ]


def line_of(place: Place) -> int | None:
    code, offset = place
    return list(code.co_positions())[offset // 2][0]


@functools.lru_cache(maxsize=1024)
def text_of(name: str, place: Place) -> str:
    """A call, for messages."""
    return f"{name}, line {line_of(place)}"
