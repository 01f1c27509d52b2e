"""Arrays of the names around a kernel: the host's are constants, the device's are used in place."""

import numpy as np
from numba import cuda

TABLE = np.arange(10) ** 2
PAIR = (3, 4.5)
held = cuda.to_device(np.arange(8.0))


@cuda.jit
def look_up(out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = TABLE[i] + PAIR[0] * PAIR[1]


@cuda.jit
def from_device(out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = held[i]
        held[i] = -1


def around(state):
    @cuda.jit
    def step(by):
        i = cuda.grid(1)
        if i < state.size:
            state[i] += by

    return step


out = np.zeros(10)
look_up[1, 32](out)
np.testing.assert_array_equal(out, np.arange(10) ** 2 + 13.5)
got = np.zeros(8)
from_device[1, 8](got)
np.testing.assert_array_equal(got, np.arange(8))
assert (held.copy_to_host() == -1).all()
first, second = cuda.to_device(np.zeros(5)), cuda.to_device(np.zeros((3, 4))[0])
advance, other = around(first), around(second)
for k in range(3):
    advance[1, 32](k)
    other[1, 32](10)
assert (first.copy_to_host() == 3).all() and (second.copy_to_host() == 30).all()
first[:] = 0
advance[1, 32](1)
assert (first.copy_to_host() == 1).all()
print("captured")
