"""Driver copies of contiguous rows at equal distances, without a kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numbasync.backend.cuda.driver import cu, fail

if TYPE_CHECKING:
    from numbasync.backend.cuda.arrays import CudaArray

# Bytes. The driver guarantees copies within the device only for pitches that it allocates
# itself, which are multiples of this.
PITCH = 512


def copies_rows(dst: CudaArray, src: CudaArray) -> bool:
    """Whether `copy_rows` can copy `src` to `dst`, which have the same shape."""
    if dst.dtype != src.dtype or dst.rows[:2] != src.rows[:2]:
        return False
    return dst.rows.height > 1 and dst.rows.pitch % PITCH == src.rows.pitch % PITCH == 0


def copy_rows(dst: CudaArray, src: CudaArray, stream: Any) -> None:
    """Copy the rows of one device array into those of another."""
    _copy(_end("dst", dst) | _end("src", src), dst, stream)


def upload_rows(dst: CudaArray, address: int, stream: Any) -> None:
    """Copy contiguous host memory into the rows of a device array."""
    _copy(_end("dst", dst) | _host("src", address, dst), dst, stream)


def download_rows(address: int, src: CudaArray, stream: Any) -> None:
    """Copy the rows of a device array into contiguous host memory."""
    _copy(_host("dst", address, src) | _end("src", src), src, stream)


def _end(side: str, array: CudaArray) -> dict[str, Any]:
    return {
        f"{side}MemoryType": cu.CUmemorytype.CU_MEMORYTYPE_DEVICE,
        f"{side}Device": array.pointer,
        f"{side}Pitch": array.rows.pitch,
    }


def _host(side: str, address: int, array: CudaArray) -> dict[str, Any]:
    return {
        f"{side}MemoryType": cu.CUmemorytype.CU_MEMORYTYPE_HOST,
        f"{side}Host": address,
        f"{side}Pitch": array.rows.width,
    }


def _copy(ends: dict[str, Any], like: CudaArray, stream: Any) -> None:
    parameters = cu.CUDA_MEMCPY2D()
    parameters.WidthInBytes = like.rows.width
    parameters.Height = like.rows.height
    for name, value in ends.items():
        setattr(parameters, name, value)
    (result,) = cu.cuMemcpy2DAsync(parameters, stream)
    if result:
        fail(result, "cuMemcpy2DAsync")
