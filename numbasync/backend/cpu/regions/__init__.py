"""Kernels cut at their barriers, below the types: each part a loop over the threads of a block."""

from numbasync.backend.cpu.regions.build import build
from numbasync.backend.cpu.regions.llvm_types import UnknownFormError
from numbasync.backend.cpu.regions.machine_code import Code
from numbasync.backend.cpu.regions.region import Settings

__all__ = ["Code", "Settings", "UnknownFormError", "build"]
