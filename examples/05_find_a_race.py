"""Find what a GPU hides.

Two sums of a block, one with a barrier that is missing. On a GPU it may be right a thousand times.
On the CPU device a checked kernel says which two threads meet in which two lines; and
`find_race` says whether a result depends on the order of threads.

    python examples/05_find_a_race.py
"""

import numpy as np
from numba import cuda, float32

import numbasync as na
from numbasync.testing import checked, find_race

THREADS = 128


@na.launcher
@cuda.jit
def sums(z: na.KernelOutput, x: na.KernelInput):
    held = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    held[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    step = THREADS // 2
    while step > 0:
        if t < step:
            held[t] += held[t + step]
        cuda.syncthreads()
        step //= 2
    if t == 0:
        z[cuda.blockIdx.x] = held[0]


@na.launcher
@cuda.jit
def hasty_sums(z: na.KernelOutput, x: na.KernelInput):
    held = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    held[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    step = THREADS // 2
    while step > 0:
        if t < step:
            held[t] += held[t + step]
        step //= 2
    cuda.syncthreads()
    if t == 0:
        z[cuda.blockIdx.x] = held[0]


def main() -> None:
    x = np.random.default_rng(0).random(4 * THREADS, np.float32)
    args = [np.zeros(4, np.float32), x]
    cpu = na.devices("cpu")[0]

    for kernel in (sums, hasty_sums):
        print(f"{kernel.name}: {find_race(kernel[4, THREADS], args) or 'no race'}\n")

    with na.use_device(cpu), checked(cpu):
        try:
            hasty_sums[4, THREADS](na.zeros(4), x).sync()
        except na.errors.DataRaceError as error:
            print("checked:", error)


if __name__ == "__main__":
    main()
