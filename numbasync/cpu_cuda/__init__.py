"""Programs that are written for `numba.cuda` run on the CPU device, unchanged.

`python -m numbasync.cpu_cuda program.py`, `pytest --cuda-on-cpu`, `NUMBASYNC_CUDA_ON_CPU=1` for
programs that import numbasync, or

    with na.cuda_on_cpu():
        program()

make `numba.cuda` of this process use the CPU device: kernels are typed by Numba, compiled for the
processor, and checked as kernels of `na.launcher` are. Device arrays lie in the host's memory,
and every launch has ended when the call returns.
"""

from numbasync.cpu_cuda.replacing import cuda_on_cpu as cuda_on_cpu
from numbasync.cpu_cuda.replacing import is_on as is_on
from numbasync.cpu_cuda.replacing import switch as switch

__all__ = ["cuda_on_cpu", "is_on", "switch"]
