"""Kernels of `numba.cuda` as LLVM code for the processor: numba-cuda's own typing and lowering.

`lower` runs numba-cuda's compiler on a kernel as it is written, up to LLVM. What that calls of a
GPU's (positions of threads, barriers, operations of a warp, libdevice, atomic operations) is given
the processor's code, or a call that `regions` replaces. Nothing has a meaning of its own here.
"""

from numbasync.backend.cpu.target.lower import lower as lower
from numbasync.backend.cpu.target.module import Module as Module
from numbasync.backend.cpu.target.module import Options as Options
