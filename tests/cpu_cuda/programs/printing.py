"""Kernels that print."""

import numpy as np
from numba import cuda


@cuda.jit
def hello(a):
    i = cuda.grid(1)
    if i < a.size:
        print("thread", cuda.blockIdx.x, cuda.threadIdx.x, "value", a[i], a[i] > 1.0)


@cuda.jit
def once(n):
    if cuda.grid(1) == 0:
        print("n =", n)


hello[2, 2](np.array([0.5, 1.5, 2.5]))
cuda.synchronize()
once[4, 32](np.int32(7))
cuda.synchronize()
