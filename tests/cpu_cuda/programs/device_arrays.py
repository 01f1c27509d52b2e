"""What device arrays can do: made from lists and scalars, read and written by element, viewed."""

import numpy as np
from numba import cuda


@cuda.jit
def add_scalar(a, value):
    i = cuda.grid(1)
    if i < a.size:
        a[i] += value


@cuda.jit
def write_all(a, nothing, pairs):
    if nothing is None:
        for i in range(a.shape[0]):
            a[i] = pairs[0][0][i] * pairs[1][1] + pairs[1][0]


d = cuda.to_device([1, 2, 3])
add_scalar[1, 4](d, 10)
assert d.copy_to_host().tolist() == [11, 12, 13] and d[1] == 12 and list(d) == [11, 12, 13]
d.setitem(0, 5)
assert d.getitem(0) == 5 and d.dtype == np.int64 and d.size == 3 and d.shape == (3,)
assert d.alloc_size == 24 and str(d.copy_to_host()) == "[ 5 12 13]"

zero = cuda.to_device(np.float32(4.5))
assert zero.copy_to_host() == np.float32(4.5)
empty = cuda.to_device(np.zeros(0))
add_scalar[1, 32](empty, 1.0)
assert empty.copy_to_host().size == 0

bits = cuda.to_device(np.ones(4, np.float32)).view(np.uint32)
assert bits.copy_to_host()[0] == 0x3F800000
cube = cuda.to_device(np.arange(24).reshape(2, 1, 3, 4))
assert cube.squeeze().shape == (2, 3, 4)
assert cube.reshape(6, 4).transpose((1, 0)).shape == (4, 6)
np.testing.assert_array_equal(cube[1, 0, :, 2].copy_to_host(), [14, 18, 22])
np.testing.assert_array_equal(cube[-1, 0, 0, ::3].copy_to_host(), [12, 15])
cube[0, 0, 1] = -1
cube[1, 0, :, 1:3] = cuda.to_device(np.full((3, 2), 9))
host = cube.copy_to_host()
assert (host[0, 0, 1] == -1).all() and (host[1, 0, :, 1:3] == 9).all()
try:
    cube[0, 0, 5]
except IndexError:
    pass
else:
    raise SystemExit("an index out of range")
try:
    cuda.device_array(3).copy_to_device(np.zeros(4))
except (ValueError, TypeError):
    pass
else:
    raise SystemExit("a copy of another shape")

target = cuda.device_array(6, np.float64)
part = target[2:5]
add_scalar[1, 32](part, 0.0)
cuda.to_device(np.arange(6.0), to=target)
add_scalar[1, 32](part, 100.0)
np.testing.assert_array_equal(target.copy_to_host(), [0, 1, 102, 103, 104, 5])

out = np.zeros(3)
write_all[1, 1](out, None, ((np.arange(3.0), np.ones(1)), (0.5, 2)))
np.testing.assert_array_equal(out, [0.5, 2.5, 4.5])
