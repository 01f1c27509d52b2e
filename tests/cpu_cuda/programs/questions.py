"""What programs ask of devices and kernels before they choose a grid."""

import numpy as np
from numba import cuda


@cuda.jit
def rotate(a):
    grid = cuda.cg.this_grid()
    i = cuda.grid(1)
    for _ in range(3):
        before = a[(i + 1) % a.size]
        grid.sync()
        a[i] = before
        grid.sync()


device = cuda.get_current_device()
for name in (
    "MAX_THREADS_PER_BLOCK",
    "WARP_SIZE",
    "MULTIPROCESSOR_COUNT",
    "MAX_GRID_DIM_X",
    "MAX_SHARED_MEMORY_PER_BLOCK",
    "TOTAL_CONSTANT_MEMORY",
    "L2_CACHE_SIZE",
    "CLOCK_RATE",
):
    assert getattr(device, name) > 0, name
assert device.ECC_ENABLED in (0, 1) and isinstance(device.ASYNC_ENGINE_COUNT, int)
assert not hasattr(device, "NUMBER_OF_WHEELS")
a = np.arange(256)
rotate[4, 64](a)
np.testing.assert_array_equal(a, np.roll(np.arange(256), -3))
overload = rotate.overloads[rotate.signatures[0]]
assert overload.max_cooperative_grid_blocks(64) >= 4
assert overload.max_cooperative_grid_blocks((16, 4), 0) == overload.max_cooperative_grid_blocks(64)
assert all(n >= 64 for n in rotate.get_max_threads_per_block().values())
assert cuda.gpus.lst[0] is not None and len(cuda.gpus.lst) == len(cuda.gpus)


@cuda.jit
def unreadable(a):
    first, *_ = (1, 2, 3)
    a[0] = first


try:
    unreadable[1, 1](a)
except Exception as error:
    assert type(error).__name__ == "UnsupportedBytecodeError" and "UNPACK_EX" in str(error)
else:
    raise SystemExit("a star in an assignment is compiled")
print("asked")
