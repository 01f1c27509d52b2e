"""Vectors are added: a guard, a loop by the size of the grid, and `forall`."""

import numpy as np
from numba import cuda


@cuda.jit
def add(x, y, out):
    i = cuda.threadIdx.x + cuda.blockIdx.x * cuda.blockDim.x
    if i < out.size:
        out[i] = x[i] + y[i]


@cuda.jit
def add_in_strides(x, y, out):
    start = cuda.grid(1)
    stride = cuda.gridsize(1)
    for i in range(start, x.shape[0], stride):
        out[i] = x[i] + y[i]


def main():
    n = 10_007
    rng = np.random.default_rng(1)
    x, y = rng.random(n), rng.random(n)
    d_x, d_y = cuda.to_device(x), cuda.to_device(y)
    d_out = cuda.device_array(n, dtype=np.float64)

    threads = 256
    blocks = (n + threads - 1) // threads
    add[blocks, threads](d_x, d_y, d_out)
    np.testing.assert_array_equal(d_out.copy_to_host(), x + y)

    device = cuda.get_current_device()
    add_in_strides[4 * device.MULTIPROCESSOR_COUNT, 128](d_x, d_y, d_out)
    host = np.empty(n)
    d_out.copy_to_host(host)
    np.testing.assert_array_equal(host, x + y)

    out = np.zeros(n)
    add.forall(n)(x, y, out)  # arrays of the host are copied to and fro
    cuda.synchronize()
    np.testing.assert_array_equal(out, x + y)
    print("sum:", out.sum())


if __name__ == "__main__":
    main()
