"""Device arrays: all that programs do with them on the host."""

import numpy as np
from numba import cuda


@cuda.jit
def add_one(a):
    i = cuda.grid(1)
    if i < a.size:
        a[i] += 1


host = np.arange(24.0).reshape(2, 3, 4)
d = cuda.to_device(host)
assert d.shape == (2, 3, 4) and d.ndim == 3 and d.size == 24 and d.dtype == np.float64
assert d.strides == (96, 32, 8) and d.itemsize == 8 if hasattr(d, "itemsize") else True
assert d.nbytes == 192 and len(d) == 2 and d.is_c_contiguous() and not d.is_f_contiguous()
assert d.flags["C_CONTIGUOUS"] and d.alloc_size == 192
np.testing.assert_array_equal(d.copy_to_host(), host)
np.testing.assert_array_equal(np.asarray(d), host)
np.testing.assert_array_equal(np.array(d, dtype=np.float32), host.astype(np.float32))
np.testing.assert_array_equal(d[1].copy_to_host(), host[1])
np.testing.assert_array_equal(d[:, 1:, ::2].copy_to_host(), host[:, 1:, ::2])
np.testing.assert_array_equal(d[0].T.copy_to_host(), host[0].T)
np.testing.assert_array_equal(d[0].transpose().copy_to_host(), host[0].T)
np.testing.assert_array_equal(d.reshape(4, 6).copy_to_host(), host.reshape(4, 6))
np.testing.assert_array_equal(d.reshape((24,)).copy_to_host(), host.ravel())
np.testing.assert_array_equal(d.ravel().copy_to_host(), host.ravel())
np.testing.assert_array_equal(d.view(np.int64).copy_to_host(), host.view(np.int64))
np.testing.assert_array_equal(d.reshape(1, 24).squeeze().copy_to_host(), host.ravel())
assert d.shape[-1] == 4 and d.strides[-1] == 8 and hash(d) == hash(d) and d == d
assert isinstance(d, cuda.cudadrv.devicearray.DeviceNDArray) and not hasattr(d, "sum")
assert d[1, 2, 3] == 23 and float(d[0, 0, 1]) == 1 and isinstance(d[1, 2, 3], float)
d[0, 0, 0] = 100
d[1] = 7
d[0, 1] = np.arange(4)
d[0, 2, :2] = cuda.to_device(np.array([5.0, 6.0]))
host[0, 0, 0], host[1], host[0, 1], host[0, 2, :2] = 100, 7, np.arange(4), [5, 6]
np.testing.assert_array_equal(d.copy_to_host(), host)
back = np.empty_like(host)
assert d.copy_to_host(back) is back
np.testing.assert_array_equal(back, host)
pinned = cuda.pinned_array((2, 3, 4))
d.copy_to_host(pinned, stream=cuda.stream())
d.copy_to_device(pinned * 2)
np.testing.assert_array_equal(d.copy_to_host(), host * 2)
other = cuda.device_array_like(d)
other.copy_to_device(d)
np.testing.assert_array_equal(other.copy_to_host(), host * 2)
cuda.to_device(host, to=other)
np.testing.assert_array_equal(other.copy_to_host(), host)
line = cuda.to_device(np.arange(10, dtype=np.int32))
parts = list(line.split(4))
assert [len(p) for p in parts] == [4, 4, 2]
for part in parts:
    add_one[1, 32](part)
np.testing.assert_array_equal(line.copy_to_host(), np.arange(1, 11))
add_one[1, 32](line[::2])
np.testing.assert_array_equal(line.copy_to_host(), np.arange(1, 11) + (np.arange(10) % 2 == 0))
described = line.__cuda_array_interface__
assert described["shape"] == (10,) and described["typestr"] == "<i4" and described["version"] >= 2
assert isinstance(described["data"][0], int) and described["data"][1] is False


class Foreign:
    """An array of another library, which only says where it lies."""

    def __init__(self, array):
        self.__cuda_array_interface__ = array.__cuda_array_interface__
        self.owner = array


view = cuda.as_cuda_array(Foreign(line))
assert cuda.is_cuda_array(line) and cuda.is_cuda_array(Foreign(line)) and not cuda.is_cuda_array([])
add_one[1, 32](view)
add_one[1, 32](Foreign(line))
assert line[1] == 4
zero = cuda.to_device(np.array(5.0))
assert zero.shape == () and zero.copy_to_host() == 5
empty = cuda.device_array((0, 3))
assert empty.size == 0 and empty.copy_to_host().shape == (0, 3)
fortran = cuda.device_array((3, 4), np.complex64, order="F")
assert fortran.strides == (8, 24) and fortran.is_f_contiguous()
frozen = np.arange(4.0)
frozen.flags.writeable = False
assert cuda.to_device(frozen).copy_to_host().sum() == 6
for wrong in (
    lambda: d.copy_to_device(np.zeros(3)),
    lambda: line.copy_to_host(np.zeros(3)),
    lambda: d[5],
    lambda: d.reshape(7),
    lambda: d.T,  # of three axes
    lambda: d[0, 0, ::-1].copy_to_host(),
    lambda: d + d,
    lambda: hash(d) and {d: 1}[line],
):
    try:
        wrong()
    except (ValueError, IndexError, KeyError, TypeError, NotImplementedError) as error:
        print(type(error).__name__)
    else:
        raise SystemExit("not refused")
print(type(line).__name__, line.dtype, line.stream if hasattr(line, "stream") else None)
print("arrays", line.copy_to_host().tolist())
