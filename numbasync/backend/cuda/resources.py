"""The use of a GPU's multiprocessors by compiled kernels, the GPU's highest rates, and the code."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Any

from cuda import pathfinder

from numbasync import cache_folder
from numbasync.backend.cuda.compiled_kernel import CompiledKernel
from numbasync.backend.cuda.driver import enter
from numbasync.backend.cuda.gpu import Gpu
from numbasync.backend.cuda.ptx_flops import count_flops
from numbasync.backend.executables import Language, Resources
from numbasync.backend.protocols import Dim3, Peaks
from numbasync.errors import MissingExtraError

# Registers are given to warps in units, by each of a multiprocessor's four parts; shared memory
# is given to blocks in units of bytes.
REGISTER_UNIT, PARTS, SHARED_UNIT = 256, 4, 128
# The driver does not report how many float32 operations a multiprocessor begins in a cycle. By
# major version, or by version where it differs; after NVIDIA's CUDA programming guide, "compute
# capabilities".
_CORES: dict[int | tuple[int, int], int] = {
    (6, 0): 64, 6: 128, 7: 64, (8, 0): 64, 8: 128, 9: 128, 10: 128, 11: 128, 12: 128,
}  # fmt: skip
# The tools that disassemble a cubin, with their options.
_DISASSEMBLERS = (("nvdisasm", "-c"), ("cuobjdump", "-sass"))
_REMEDY = (
    "Write: pip install --upgrade nvidia-cuda-nvdisasm; or put nvdisasm of a CUDA toolkit on PATH."
)


def use_of(device: Gpu, compiled: CompiledKernel, block: Dim3, shared_bytes: int) -> Resources:
    """The needs of a launch.

    Args:
        shared_bytes: dynamic shared memory a block.
    """
    enter(device)
    threads = block[0] * block[1] * block[2]
    attributes = compiled.kernel.attributes
    registers, static = int(attributes.num_regs), int(attributes.shared_size_bytes)
    properties = device.core.properties
    flops, are_least = count_flops(assembly_of(device, compiled, "ptx"))
    occupancy = compiled.kernel.occupancy
    blocks = occupancy.max_active_blocks_per_multiprocessor(threads, shared_bytes)
    return Resources(
        registers=registers,
        local_bytes=int(attributes.local_size_bytes),
        static_shared_bytes=static,
        constant_bytes=int(attributes.const_size_bytes),
        blocks_per_multiprocessor=int(blocks),
        threads_per_multiprocessor=properties.max_threads_per_multiprocessor,
        block_limits=block_limits(properties, threads, registers, static + shared_bytes),
        flops=flops,
        flops_are_least=are_least,
    )


def block_limits(
    properties: Any, threads: int, registers: int, shared_bytes: int
) -> dict[str, int]:
    """The active blocks of a multiprocessor for which each resource alone suffices.

    The driver says how many blocks are active, but not why: this is the same arithmetic.

    Args:
        properties: of the device, as cuda.core names them.
        registers: a thread.
        shared_bytes: a block.
    """
    p = properties
    warps = -(-threads // p.warp_size)
    limits = {"threads": p.max_threads_per_multiprocessor // (warps * p.warp_size)}
    of_a_warp = _rounded_up(registers * p.warp_size, REGISTER_UNIT)
    if of_a_warp:
        of_a_part = p.max_registers_per_multiprocessor // PARTS // of_a_warp
        limits["registers"] = of_a_part * PARTS // warps
    of_a_block = _rounded_up(shared_bytes + p.reserved_shared_memory_per_block, SHARED_UNIT)
    if of_a_block:
        limits["shared memory"] = p.max_shared_memory_per_multiprocessor // of_a_block
    limits["blocks"] = p.max_blocks_per_multiprocessor
    return limits


def _rounded_up(n: int, unit: int) -> int:
    return -(-n // unit) * unit


def peaks_of(properties: Any, compute_capability: tuple[int, int]) -> Peaks:
    """The highest rates that follow from a device's clocks.

    Args:
        properties: of the device, as cuda.core names them.
    """
    memory_khz = _known(properties, "memory_clock_rate")
    bus_bits = _known(properties, "global_memory_bus_width")
    khz = _known(properties, "clock_rate")
    ratio = _known(properties, "single_to_double_precision_perf_ratio")
    multiprocessors = _known(properties, "multiprocessor_count")
    cores = _CORES.get(compute_capability) or _CORES.get(compute_capability[0], 0)
    bandwidth, flops, source = None, {}, []
    if memory_khz and bus_bits:
        bandwidth = 2e3 * memory_khz * bus_bits / 8  # two transfers a cycle
        source.append(f"memory: 2 x {memory_khz / 1000:,.0f} MHz x {bus_bits} bits")
    else:
        source.append("memory: unknown, the driver does not report its clock")
    if khz and cores:
        flops["float32"] = 2e3 * khz * cores * multiprocessors  # an fma is two operations
        source.append(
            f"arithmetic: 2 x {khz / 1000:,.0f} MHz x {cores} cores x {multiprocessors} "
            "multiprocessors"
        )
        if ratio:
            flops["float64"] = flops["float32"] / ratio
            source.append(f"float64 1/{ratio} of float32")
    else:
        missing = "the driver does not report the clock" if cores else "its cores are not known"
        source.append(f"arithmetic: unknown, {missing}")
    return Peaks(bandwidth, flops, "; ".join(source))


def _known(properties: Any, name: str) -> int:
    """A property of a device; 0 where the driver does not report it."""
    try:
        return int(getattr(properties, name))
    except Exception:  # cuda.core raises a class of its own
        return 0


def assembly_of(device: Gpu, compiled: CompiledKernel, language: Language) -> str:
    """The code of a compiled kernel for this device.

    Raises:
        MissingExtraError: no disassembler is installed, or it does not know the device.
    """
    enter(device)  # the compilers look up the current device
    if language == "ptx":
        return compiled.ptx()
    return _disassembled(compiled.cubin())


def _disassembled(cubin: bytes) -> str:
    reason = "neither nvdisasm nor cuobjdump is installed"
    with cache_folder.temporary() as folder:
        file = os.path.join(folder, "kernel.cubin")
        with open(file, "wb") as out:
            out.write(cubin)
        for tool, option in _DISASSEMBLERS:
            path = shutil.which(tool) or pathfinder.find_nvidia_binary_utility(tool)
            if path is None:
                continue
            result = subprocess.run([path, option, file], capture_output=True, text=True)  # noqa: S603
            if result.returncode == 0:
                return result.stdout
            reason = f"{path} cannot read the code: {result.stderr.strip()[:300]}"
    raise MissingExtraError(f"SASS needs a disassembler: {reason}.\n{_REMEDY}")
