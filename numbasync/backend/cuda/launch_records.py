"""Records: launches that the compiled core makes, complete but for their arguments; and the
driver's functions, which it calls. Without the core, kernels are launched by `cuda.bindings`.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING, Any

from numbasync.backend.counters import counters
from numbasync.backend.cuda.driver import cu, enter, fail
from numbasync.backend.protocols import Work
from numbasync.errors import DTypeError
from numbasync.memo import Memo
from numbasync.native import core

if TYPE_CHECKING:
    from numbasync.backend.cuda.gpu import Gpu
    from numbasync.backend.cuda.kernels import CudaExecutable

MOST = 1024  # records of one stream; a program that always launches new shapes starts over


def record(work: Work, stream: int) -> Any:
    """A record of the core for launches of `work` on the stream of that handle; None without the
    core, or if the launches cannot use one.
    """
    executable: Any = work.executable
    buffer = executable.buffer_layout
    if core is None or not core.is_on() or buffer is None:
        return None
    if len(buffer.parts) > core.MOST_ARGUMENTS:
        return None
    return core.LaunchRecord(
        executable.function, work.grid, work.block, work.shared_bytes, stream, buffer.nbytes,
        buffer.parts, work.constants,
    )  # fmt: skip


def launch_at(
    device: Gpu, records: Memo[tuple[Work, int], Any], number: int, work: Work, args: list[Any]
) -> bool:
    """Launch on another library's stream; whether the kernel can be launched so, and the arguments
    fit. A record is kept in `records`, by which the core makes the next launch itself. The caller
    serialises launches.
    """
    executable: CudaExecutable = work.executable  # type: ignore[assignment]  # of this backend
    if executable.buffer_layout is None:
        return False
    enter(device)
    if (work, number) not in records:
        prepared = record(work, number)
        if prepared is not None:
            records[work, number] = prepared
    try:
        executable.launch_packed(
            cu.CUstream(number), work.grid, work.block, work.shared_bytes, [*args, *work.constants]
        )
    except DTypeError:
        return False
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
