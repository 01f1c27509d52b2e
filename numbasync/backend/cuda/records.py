"""Records: a launch made ready for the compiled call, all but its arguments."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from numbasync.backend.base import Work
from numbasync.backend.cuda import native

if TYPE_CHECKING:
    from numbasync.backend.cuda.kernels import CudaExecutable

MOST = 1024  # of one stream; a program that launches ever new shapes starts over

_DESCRIPTION = native.RECORD_WORDS  # where the five words begin that describe the buffer
_SIZE = _DESCRIPTION + 5
_ARGUMENTS = _SIZE + 1


class Record:
    """One kind of launch on one stream. The driver copies the arguments, so the memory serves
    launch after launch; who packs must be alone.

    Attributes:
        address: of the record, for `native.Calls.launch`.
        call: that.
        pack: writes the arguments: arrays as bytes, numbers.
        arrays: which arguments are arrays.
    """

    __slots__ = ("_memory", "address", "arrays", "call", "pack")

    def __init__(self, work: Work, stream: int, calls: native.Calls) -> None:
        executable: CudaExecutable = work.executable  # type: ignore[assignment]  # of this backend
        layout = struct.Struct(executable.buffer_format)
        words = (ctypes.c_int64 * (_ARGUMENTS + -(-layout.size // 8)))()
        start = ctypes.addressof(words)
        words[:_DESCRIPTION] = [
            executable.function, *work.grid, *work.block, work.shared_bytes, stream,
            start + 8 * _DESCRIPTION,
        ]  # fmt: skip
        # CU_LAUNCH_PARAM_BUFFER_POINTER, the buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, the address of
        # its size, CU_LAUNCH_PARAM_END.
        words[_DESCRIPTION:_SIZE] = [1, start + 8 * _ARGUMENTS, 2, start + 8 * _SIZE, 0]
        words[_SIZE] = layout.size
        self._memory = words
        self.address = start
        self.call = calls.launch
        self.pack: Callable[..., None] = partial(layout.pack_into, words, 8 * _ARGUMENTS)
        self.arrays: Sequence[int] = executable.array_positions


def record(work: Work, stream: int) -> Record | None:
    """The record of such launches; None if they must be made another way, now or always."""
    calls = native.calls()
    executable: Any = work.executable
    if calls is None or not executable.buffer_format:
        return None
    return Record(work, stream, calls)
