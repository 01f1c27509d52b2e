"""Matrices are multiplied: an element a thread, and in tiles of shared memory."""

import math

import numpy as np
from numba import cuda, float32

TPB = 8


@cuda.jit
def matmul(A, B, C):
    i, j = cuda.grid(2)
    if i < C.shape[0] and j < C.shape[1]:
        tmp = 0.0
        for k in range(A.shape[1]):
            tmp += A[i, k] * B[k, j]
        C[i, j] = tmp


@cuda.jit
def matmul_tiled(A, B, C):
    sA = cuda.shared.array(shape=(TPB, TPB), dtype=float32)
    sB = cuda.shared.array(shape=(TPB, TPB), dtype=float32)
    x, y = cuda.grid(2)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    total = float32(0.0)
    for tile in range((A.shape[1] + TPB - 1) // TPB):
        sA[ty, tx] = 0
        sB[ty, tx] = 0
        if y < A.shape[0] and tx + tile * TPB < A.shape[1]:
            sA[ty, tx] = A[y, tx + tile * TPB]
        if x < B.shape[1] and ty + tile * TPB < B.shape[0]:
            sB[ty, tx] = B[ty + tile * TPB, x]
        cuda.syncthreads()
        for k in range(TPB):
            total += sA[ty, k] * sB[k, tx]
        cuda.syncthreads()
    if y < C.shape[0] and x < C.shape[1]:
        C[y, x] = total


def grid_for(rows, columns):
    return math.ceil(rows / TPB), math.ceil(columns / TPB)


rng = np.random.default_rng(2)
a = rng.random((37, 21), dtype=np.float32)
b = rng.random((21, 30), dtype=np.float32)

c = np.zeros((37, 30), np.float32)
matmul[grid_for(37, 30), (TPB, TPB)](a, b, c)
np.testing.assert_allclose(c, a @ b, rtol=1e-5)

d_c = cuda.device_array((37, 30), np.float32)
matmul_tiled[grid_for(30, 37), (TPB, TPB)](cuda.to_device(a), cuda.to_device(b), d_c)
np.testing.assert_allclose(d_c.copy_to_host(), a @ b, rtol=1e-5)

d_t = cuda.device_array((37, 30), np.float32)
b_by_columns = np.asfortranarray(b)
matmul[grid_for(37, 30), (TPB, TPB)](cuda.to_device(a), cuda.to_device(b_by_columns), d_t)
np.testing.assert_allclose(d_t.copy_to_host(), a @ b, rtol=1e-5)
