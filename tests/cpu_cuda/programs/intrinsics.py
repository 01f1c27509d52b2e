"""Functions of one instruction: bits, warps, fences, all atomic operations, libdevice."""

import math

import numpy as np
from numba import cuda, float32, uint32
from numba.cuda import libdevice


@cuda.jit
def bits(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i, 0] = cuda.popc(x[i])
        out[i, 1] = cuda.clz(x[i])
        out[i, 2] = cuda.ffs(x[i])
        out[i, 3] = cuda.brev(x[i])
        out[i, 4] = cuda.selp(x[i] % 2 == 0, 1, 0)


@cuda.jit
def of_warps(x, out):
    i = cuda.grid(1)
    lane = cuda.laneid
    full = 0xFFFFFFFF
    out[i, 0] = cuda.shfl_sync(full, x[i], 3)
    out[i, 1] = cuda.shfl_xor_sync(full, x[i], 1)
    out[i, 2] = cuda.shfl_up_sync(full, x[i], 1) if lane > 0 else 0
    out[i, 3] = cuda.all_sync(full, x[i] >= 0)
    out[i, 4] = cuda.match_any_sync(full, x[i] % 4)
    out[i, 5] = cuda.eq_sync(full, lane < 40)
    cuda.syncwarp()
    out[i, 6] = cuda.lanemask_lt()


@cuda.jit
def functions(x, out):
    i = cuda.grid(1)
    if i < x.size:
        v = x[i]
        out[i, 0] = math.exp(-v) + math.erf(v) + math.lgamma(v + 1)
        out[i, 1] = cuda.fma(v, v, 1.0)
        out[i, 2] = cuda.cbrt(v)
        out[i, 3] = libdevice.rsqrt(v + 1.0)
        out[i, 4] = math.atan2(v, 2.0) + math.copysign(v, -1.0) + math.fmod(v, 0.7)
        out[i, 5] = float32(v) + math.floor(v) + math.pow(v, 2.5) + (v // 0.3)


x = np.array([1, 2, 0x80000000, 0xF0F0], np.uint32)
found = np.zeros((4, 5), np.uint32)
bits[1, 32](x, found)
texts = [f"{v:032b}" for v in x]
np.testing.assert_array_equal(found[:, 0], [t.count("1") for t in texts])
np.testing.assert_array_equal(found[:, 1], [t.index("1") for t in texts])
np.testing.assert_array_equal(found[:, 2], [32 - t.rindex("1") for t in texts])
np.testing.assert_array_equal(found[:, 3], [int(t[::-1], 2) for t in texts])
np.testing.assert_array_equal(found[:, 4], x % 2 == 0)

values = np.random.default_rng(6).integers(0, 100, 32).astype(np.int32)
found = np.zeros((32, 7), np.uint32)
of_warps[1, 32](values, found)
lanes = np.arange(32)
assert (found[:, 0] == values[3]).all() and (found[:, 3] == 1).all() and (found[:, 5] == 1).all()
np.testing.assert_array_equal(found[:, 1], values[lanes ^ 1])
np.testing.assert_array_equal(found[1:, 2], values[:-1])
same = (values[:, None] % 4 == values[None] % 4) @ (1 << lanes)
np.testing.assert_array_equal(found[:, 4], same)
np.testing.assert_array_equal(found[:, 6], (1 << lanes) - 1)

a = np.zeros(11, np.uint32).astype(np.int32)
unsigned = np.zeros(11, np.uint32)
a[4] = 255


@cuda.jit
def unsigned_only(a):
    cuda.atomic.inc(a, 7, uint32(9))
    cuda.atomic.dec(a, 8, uint32(9))


@cuda.jit
def signed(a):
    i = cuda.grid(1)
    cuda.atomic.add(a, 0, 2)
    cuda.atomic.sub(a, 1, 1)
    cuda.atomic.max(a, 2, i)
    cuda.atomic.min(a, 3, -i)
    cuda.atomic.and_(a, 4, ~(1 << (i % 8)))
    cuda.atomic.or_(a, 5, 1 << (i % 8))
    cuda.atomic.xor(a, 6, 1)
    cuda.atomic.exch(a, 9, 77)
    cuda.atomic.cas(a, 10, 0, 5)
    cuda.threadfence()
    cuda.threadfence_block()
    cuda.threadfence_system()


signed[2, 32](a)
unsigned_only[2, 32](unsigned)
assert a.tolist() == [128, -64, 63, -63, 0, 255, 0, 0, 0, 77, 5], a
assert unsigned[7] == 64 % 10 and unsigned[8] == -64 % 10, unsigned

v = np.linspace(0.1, 3, 30)
found = np.zeros((30, 6))
functions[1, 32](v, found)
erf = np.array([math.erf(t) for t in v])
lgamma = np.array([math.lgamma(t + 1) for t in v])
expected = [
    np.exp(-v) + erf + lgamma, v * v + 1, np.cbrt(v), 1 / np.sqrt(v + 1),
    np.arctan2(v, 2) - v + np.fmod(v, 0.7),
    v.astype(np.float32) + np.floor(v) + v**2.5 + v // 0.3,
]  # fmt: skip
np.testing.assert_allclose(found.T, expected, rtol=1e-6)
