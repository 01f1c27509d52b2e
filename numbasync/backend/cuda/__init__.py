"""NVIDIA GPUs: the only package that imports cuda.core, cuda.bindings or Numba's CUDA driver.

`find` initialises the driver and creates no context; the first stream creates the context. It
says, too, what is missing where there is no GPU: the driver, a device, or a device's memory pools.
"""

from __future__ import annotations

from numbasync.backend.cuda.device import CudaDevice
from numbasync.backend.cuda.driver import cu, name_of
from numbasync.backend.cuda.stream_exchange import LEGACY, identity_of, ordinal_of


def find() -> tuple[tuple[CudaDevice, ...], str]:
    """The usable GPUs, and the reason if there is none."""
    try:
        (result,) = cu.cuInit(0)
    except Exception as error:  # the loader raises a class of its own without a driver
        return (), (
            f"no NVIDIA driver is installed here ({error}).\n"
            "Install the driver for your GPU, https://www.nvidia.com/drivers"
        )
    if result:
        return (), f"the NVIDIA driver cannot be initialised: {name_of(result)}; try nvidia-smi."
    result, count = cu.cuDeviceGetCount()
    if result or count == 0:
        return (), "the NVIDIA driver sees no GPU; check nvidia-smi and CUDA_VISIBLE_DEVICES."
    gpus = [CudaDevice(ordinal) for ordinal in range(count)]
    usable = tuple(d for d in gpus if d.has_memory_pools)
    if not usable:
        return (), f"{gpus[0].name} has no stream-ordered memory pools; update its driver."
    return usable, ""


__all__ = ["LEGACY", "find", "identity_of", "ordinal_of"]
