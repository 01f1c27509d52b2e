"""The functions of `fast_calls.Calls`, compiled by Numba on import. The driver's library must be
loaded before.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from numbasync.backend.checked_caches import kept

_address, _number = types.intp, types.uint32

_launch_kernel = types.ExternalFunction(
    "cuLaunchKernel",
    types.int32(_address, *[_number] * 7, _address, _address, _address),
)
_write_value = types.ExternalFunction(
    "cuStreamWriteValue32_v2", types.int32(_address, _address, _number, _number)
)
_query = types.ExternalFunction("cuStreamQuery", types.int32(_address))
NOT_READY = 600  # CUDA_ERROR_NOT_READY
_synchronize = types.ExternalFunction("cuStreamSynchronize", types.int32(_address))
# Patterns of 8 and 16 bits are passed as 32 bits: the caller extends them.
_memset = types.int32(_address, _number, types.uintp, _address)
_fill_8 = types.ExternalFunction("cuMemsetD8Async", _memset)
_fill_16 = types.ExternalFunction("cuMemsetD16Async", _memset)
_fill_32 = types.ExternalFunction("cuMemsetD32Async", _memset)
_memcpy = types.int32(_address, _address, types.uintp, _address)
_upload = types.ExternalFunction("cuMemcpyHtoDAsync_v2", _memcpy)
_download = types.ExternalFunction("cuMemcpyDtoHAsync_v2", _memcpy)

_graph_launch = types.ExternalFunction("cuGraphLaunch", types.int32(_address, _address))


_intrinsic: Any = intrinsic


@_intrinsic
def _word(typing: Any, address: Any, index: Any) -> Any:
    """The 64-bit number at position `index` of the array at `address`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], cgutils.intp_t.as_pointer())
        return builder.load(builder.gep(pointer, [args[1]]))

    return types.intp(types.intp, types.intp), generate


@kept(types.int32(_address))
def launch(r: Any) -> Any:
    return _launch_kernel(
        _word(r, 0), _word(r, 1), _word(r, 2), _word(r, 3), _word(r, 4), _word(r, 5), _word(r, 6),
        _word(r, 7), _word(r, 8), 0, _word(r, 9),
    )  # fmt: skip


@kept(types.int32(_address, _address, types.int64))
def write_word(stream: Any, word: Any, number: Any) -> Any:
    return _write_value(stream, word, number & 0xFFFFFFFF, 0)


@kept(types.int32(_address))
def query(stream: Any) -> Any:
    return _query(stream)


# One query takes 0.4 to 1.5 us; a small kernel is done 5 to 10 us after its launch.
LOOKS = 32


@kept(types.int32(_address))
def spin_poll(stream: Any) -> Any:
    status = _query(stream)
    for _ in range(LOOKS):
        if status != NOT_READY:
            break
        status = _query(stream)
    return status


@kept(types.int32(_address))
def synchronize(stream: Any) -> Any:
    return _synchronize(stream)


@kept(types.int32(_address, types.int64, types.int64, types.int64, _address))
def fill(dst: Any, unit: Any, number: Any, count: Any, stream: Any) -> Any:
    if unit == 1:
        return _fill_8(dst, number & 0xFF, count, stream)
    if unit == 2:
        return _fill_16(dst, number & 0xFFFF, count, stream)
    return _fill_32(dst, number & 0xFFFFFFFF, count, stream)


@kept(types.int32(_address, _address, types.int64, _address))
def upload(dst: Any, src: Any, nbytes: Any, stream: Any) -> Any:
    return _upload(dst, src, nbytes, stream)


@kept(types.int32(_address, _address, types.int64, _address))
def download(dst: Any, src: Any, nbytes: Any, stream: Any) -> Any:
    return _download(dst, src, nbytes, stream)


@kept(types.int32(_address, _address))
def replay(graph: Any, stream: Any) -> Any:
    return _graph_launch(graph, stream)
