"""A kernel for the first compilation of a process, which imports the compilers."""

from numba import cuda

from numbasync.launch.launcher import launcher
from numbasync.launch.parameters import KernelOutput


@launcher
@cuda.jit  # type: ignore[untyped-decorator]
def first_kernel(z: KernelOutput):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] += 1
