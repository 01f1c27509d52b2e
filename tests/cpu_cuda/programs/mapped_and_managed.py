"""Memory of host and device: mapped and managed arrays, slices, copies between device arrays."""

import numpy as np
from numba import cuda


@cuda.jit
def increment(a):
    i = cuda.grid(1)
    if i < a.size:
        a[i] += 1


@cuda.jit
def fill_rows(a):
    i, j = cuda.grid(2)
    if i < a.shape[0] and j < a.shape[1]:
        a[i, j] = 10 * i + j


mapped = cuda.mapped_array(100, dtype=np.int32)
mapped[:] = 5
increment[4, 32](mapped)
cuda.synchronize()
assert mapped.sum() == 600 and isinstance(mapped, np.ndarray) and cuda.is_cuda_array(mapped)
like = cuda.mapped_array_like(np.zeros((3, 4), np.float32))
assert like.shape == (3, 4) and like.dtype == np.float32

managed = cuda.managed_array(50, dtype=np.float64)
managed[:] = 1.0
increment[2, 32](managed)
cuda.synchronize()
assert managed[7] == 2.0 and managed.sum() == 100

d = cuda.device_array((6, 8), np.int64)
fill_rows[(2, 2), (4, 4)](d)
expected = 10 * np.arange(6)[:, None] + np.arange(8)
np.testing.assert_array_equal(d.copy_to_host(), expected)
np.testing.assert_array_equal(d[2].copy_to_host(), expected[2])
np.testing.assert_array_equal(d[1:5:2, ::3].copy_to_host(), expected[1:5:2, ::3])
np.testing.assert_array_equal(d.T.copy_to_host(), expected.T)
np.testing.assert_array_equal(d.reshape(8, 6).copy_to_host(), expected.reshape(8, 6))
np.testing.assert_array_equal(d.ravel().copy_to_host(), expected.ravel())
d[3] = np.zeros(8, np.int64)
d[0, 1:3] = 7
assert d.copy_to_host()[3].sum() == 0 and d[0, 2] == 7
increment[1, 64](d.ravel()[:8])
copied = cuda.device_array_like(d)
copied.copy_to_device(d)
np.testing.assert_array_equal(copied.copy_to_host(), d.copy_to_host())
copied.copy_to_device(np.ones((6, 8), np.int64))
assert copied.copy_to_host().sum() == 48
parts = list(copied.ravel().split(12))
assert len(parts) == 4 and parts[0].size == 12
assert d.nbytes == 6 * 8 * 8 and d.ndim == 2 and d.is_c_contiguous() and len(d) == 6
assert cuda.is_cuda_array(d) and not cuda.is_cuda_array(expected)
assert cuda.as_cuda_array(d).shape == d.shape
strided = cuda.device_array((4, 5), np.float32, order="F")
assert strided.is_f_contiguous() and strided.strides == (4, 16)
