"""Records: launches prepared for the compiled call, complete but for their arguments."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from numbasync.backend.counters import counters
from numbasync.backend.cuda import fast_calls
from numbasync.backend.cuda.driver import cu, enter, fail
from numbasync.backend.protocols import Work
from numbasync.memo import Memo
from numbasync.native import core

if TYPE_CHECKING:
    from numbasync.backend.cuda.gpu import Gpu
    from numbasync.backend.cuda.kernels import CudaExecutable

MOST = 1024  # records of one stream; a program that always launches new shapes starts over

_DESCRIPTION = fast_calls.RECORD_WORDS  # index of the five words that describe the buffer
_SIZE = _DESCRIPTION + 5
_ARGUMENTS = _SIZE + 1
_ATTRIBUTE = {"s": ".packed", "m": ".packed_memref"}  # of an array, by `Passing.array`


class Record:
    """The prepared launch of one `Work` on one stream. The driver copies the arguments, so all
    launches share the record's memory, and the caller must serialise them.

    Attributes:
        run: launches with the given arguments, arrays of this device and numbers. Returns the
            driver's result.
    """

    __slots__ = ("run",)

    def __init__(self, work: Work, stream: int, calls: fast_calls.Calls) -> None:
        executable: CudaExecutable = work.executable  # type: ignore[assignment]  # of this backend
        buffer = executable.buffer_layout
        assert buffer is not None  # see `record`
        layout = struct.Struct(buffer.format)
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
        # One expression for this kernel's arguments: a loop over them costs more than the packing.
        parts = buffer.parts[: -len(work.constants) or None]
        args = [f", a[{i}]{_ATTRIBUTE.get(code, '')}" for i, (code, _) in enumerate(parts) if code]
        args += [f", {constant}" for constant in work.constants]
        run = f"lambda a: pack(words, {8 * _ARGUMENTS}{''.join(args)}) or launch({start})"
        names = {"pack": layout.pack_into, "words": words, "launch": calls.launch}
        self.run: Callable[[Sequence[Any]], int] = eval(run, names)  # noqa: S307 - of positions


def record(work: Work, stream: int) -> Any:
    """A record for launches of `work`; None if they cannot use one, for now or at all."""
    executable: Any = work.executable
    buffer = executable.buffer_layout
    if buffer is None:
        return None
    if core is not None and core.is_on() and len(buffer.parts) <= core.MOST_ARGUMENTS:
        return core.LaunchRecord(
            executable.function, work.grid, work.block, work.shared_bytes, stream, buffer.nbytes,
            buffer.parts, work.constants,
        )  # fmt: skip
    calls = fast_calls.calls()
    return None if calls is None else Record(work, stream, calls)


def launch_at(
    device: Gpu, records: Memo[tuple[Work, int], Any], number: int, work: Work, args: list[Any]
) -> bool:
    """Launch by a record, which is kept in `records`, on another library's stream; whether there
    can be such a record, and the arguments fit. The caller serialises launches.
    """
    enter(device)
    prepared = records.get((work, number))
    if prepared is None:
        prepared = record(work, number)
        if prepared is None:
            return False
        records[work, number] = prepared
    try:
        result = prepared.run(args)
    except (struct.error, OverflowError):
        return False
    if result:
        fail(cu.CUresult(result), "cuLaunchKernel")
    counters.launches += 1
    return True


@cache
def connect() -> None:
    """Hand the driver's functions to the core, if it is there, once there is a driver."""
    if core is None:
        return
    library = ctypes.CDLL("libcuda.so.1")
    names = (
        "cuLaunchKernel", "cuStreamQuery", "cuStreamSynchronize", "cuStreamWriteValue32_v2",
        "cuMemsetD8Async", "cuMemsetD16Async", "cuMemsetD32Async", "cuMemcpyHtoDAsync_v2",
        "cuMemcpyDtoHAsync_v2", "cuMemcpyPeerAsync", "cuGraphLaunch", "cuCtxGetCurrent",
        "cuCtxSetCurrent", "cuEventRecord", "cuStreamWaitEvent", "cuStreamIsCapturing",
    )  # fmt: skip
    addresses = {n: ctypes.cast(getattr(library, n), ctypes.c_void_p).value for n in names}
    core.use_driver(addresses, _fail, counters)


def _fail(result: int, call: str) -> None:
    fail(cu.CUresult(result), call)
