"""Random numbers for kernels: states for Numba's generators, and Philox, which is stateless.

`random_states` creates the states that the functions of `numba.cuda.random` draw from. The
functions `philox_*` are called in kernels and keep no state: a number depends on a seed, on an
index (of the thread, of a particle) and on its position among the draws of that index. So results
depend neither on the grid, nor on the order of the threads, nor on other draws. Seed, index and
draw are 64-bit integers.

Philox4x32-10 is by J. Salmon, M. Moraes, R. Dror and D. Shaw, "Parallel random numbers: as easy as
1, 2, 3", SC11. The key is the seed; words 0 and 1 of the counter are the number of the block of
four words, words 2 and 3 the index, low halves first. cuRAND uses the same counter: its Philox
generator after `curand_init(seed, index, 4 * block)` returns the same four words.

Draws of different functions with the same seed and index share their bits: the caller must give
each use its own seed, or its own range of draws.

Examples:
    >>> from numbasync import random
    >>> @na.launcher
    ... @cuda.jit
    ... def draw(floats: na.KernelOutput, words: na.KernelOutput, seed):
    ...     i = cuda.grid(1)
    ...     if i < words.shape[0]:
    ...         floats[i, 0] = random.philox_uniform_float32(seed, i, 0)
    ...         floats[i, 1] = random.philox_uniform_float64(seed, i, 2)
    ...         floats[i, 2] = random.philox_normal_float32(seed, i, 4)
    ...         floats[i, 3] = random.philox_normal_float64(seed, i, 6)
    ...         words[i, 0] = random.philox_uint32(seed, i, 8)
    ...         words[i, 1] = random.philox_4x32((i, 0, 0, 0), (seed, 0))[3]
    >>> floats, words = await na.gather(na.zeros((2, 4)), na.zeros((2, 2), np.uint32))
    >>> _ = await draw.forall(2)(floats, words, 7)
    >>> (await floats.to_host()).round(3)
    array([[ 0.955,  0.795, -0.376, -1.069],
           [ 0.495,  0.85 , -0.287,  0.934]], dtype=float32)
    >>> await words.to_host()
    array([[  26092480,  367897730],
           [1243979962, 4113952422]], dtype=uint32)
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from numbasync.arguments import as_whole, shown
from numbasync.errors import DTypeError, ShapeError
from numbasync.kernel_names import cuda
from numbasync.ops.op import DeviceOp
from numbasync.random import xoroshiro
from numbasync.tensors.array_spec import contiguous
from numbasync.tensors.create_ops import Generated
from numbasync.tensors.tensor import Tensor

MOST_SUBSEQUENCE = 2**64 - 1  # a jump is 2**64 states of 2**128


def random_states(n: int, seed: int, subsequence_start: int = 0) -> DeviceOp[Tensor]:
    """States for `n` generators of `numba.cuda.random`, equal to those that its
    `create_xoroshiro128p_states` creates.

    The operation returns a tensor of shape (n,) of structures of two uint64, `s0` and `s1`. A
    kernel passes the tensor to functions such as `xoroshiro128p_uniform_float32(states, i)`, which
    write to it: the tensor is an output of the kernel. Each state is 2**64 numbers after the
    previous one.

    Args:
        n: number of states, 0 or more.
        seed: the lowest 64 bits are used.
        subsequence_start: the first state is `subsequence_start * 2**64` numbers later.

    Raises:
        ShapeError: `n` or `subsequence_start` is negative.
        DTypeError: an argument is no whole number.

    Examples:
        >>> from numba.cuda.random import xoroshiro128p_uniform_float32
        >>> @na.launcher
        ... @cuda.jit
        ... def draw(z: na.KernelOutput, states):
        ...     i = cuda.grid(1)
        ...     if i < z.shape[0]:
        ...         z[i] = xoroshiro128p_uniform_float32(states, i)
        >>> result = await draw(na.zeros(4), na.random_states(4, seed=1))
        >>> (await result.z.to_host()).round(3)
        array([0.133, 0.876, 0.871, 0.936], dtype=float32)
    """
    count, bits, start = (
        _whole(*named)
        for named in (("n", n), ("seed", seed), ("subsequence_start", subsequence_start))
    )
    for name, value in (("n", count), ("subsequence_start", start)):
        if value < 0:
            raise ShapeError(f"random_states with {name}={shown(value)}; write 0 or more.")
    if start > MOST_SUBSEQUENCE:
        raise ShapeError(
            f"random_states with subsequence_start={shown(start)}; write at most 2**64 - 1, the "
            "last subsequence."
        )
    spec = contiguous(count, xoroshiro.STATE, records=True)
    return Generated(spec, partial(xoroshiro.states, count, bits, start), "random_states")


def _whole(name: str, value: Any) -> int:
    number = as_whole(value)
    if number is None:
        raise DTypeError(f"random_states with {name}={shown(value)}; write a whole number.")
    return number


# --- in kernels -------------------------------------------------------------------------

# Numba's rules for mixing uint32 and int64 differ between its targets; those for uint64 alone do
# not. Products of 32-bit numbers are exact in uint64.
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_1, _2, _3, _11 = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(11)

_TO_32, _TO_24, _TO_53 = np.float32(2**-32), np.float32(2**-24), np.float64(2**-53)
_HALF_STEP = np.float32(2**-33)
_TURN_32, _TURN_64 = np.float32(2 * math.pi), np.float64(2 * math.pi)


@cuda.jit(device=True)
def philox_4x32(counter: Any, key: Any) -> Any:
    """Four random uint32 words: Philox4x32-10.

    Args:
        counter: a tuple of four integers, whose lowest 32 bits are used.
        key: a tuple of two integers, whose lowest 32 bits are used.
    """
    c0, c1 = np.uint64(counter[0]) & _LOW, np.uint64(counter[1]) & _LOW
    c2, c3 = np.uint64(counter[2]) & _LOW, np.uint64(counter[3]) & _LOW
    k0, k1 = np.uint64(key[0]) & _LOW, np.uint64(key[1]) & _LOW
    for _ in range(10):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c2 = (p1 >> _HALF) ^ c1 ^ k0, (p0 >> _HALF) ^ c3 ^ k1
        c1, c3 = p1 & _LOW, p0 & _LOW
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    return np.uint32(c0), np.uint32(c1), np.uint32(c2), np.uint32(c3)


@cuda.jit(device=True)
def _block(seed: Any, index: Any, block: Any) -> Any:
    """The four words of a block of draws."""
    s, i, b = np.uint64(seed), np.uint64(index), np.uint64(block)
    return philox_4x32((b, b >> _HALF, i, i >> _HALF), (s, s >> _HALF))


@cuda.jit(device=True)
def _pair(seed: Any, index: Any, pair: Any) -> Any:
    """The two words of a pair; each block has two pairs."""
    p = np.uint64(pair)
    w0, w1, w2, w3 = _block(seed, index, p >> _1)
    if p & _1:
        return w2, w3
    return w0, w1


@cuda.jit(device=True)
def philox_uint32(seed: Any, index: Any, draw: Any) -> Any:
    """A random uint32: word `draw % 4` of block `draw // 4`."""
    d = np.uint64(draw)
    first, second = _pair(seed, index, d >> _1)
    return second if d & _1 else first


@cuda.jit(device=True)
def philox_uniform_float32(seed: Any, index: Any, draw: Any) -> Any:
    """A float32 in [0, 1), of the upper 24 bits of `philox_uint32`."""
    return np.float32(philox_uint32(seed, index, draw) >> np.uint32(8)) * _TO_24


@cuda.jit(device=True)
def philox_uniform_float64(seed: Any, index: Any, draw: Any) -> Any:
    """A float64 in [0, 1), of 53 bits. Draws 2n and 2n + 1 use words 0 and 1, and words 2 and 3, of
    block n, as the lower and the upper half.
    """
    low, high = _pair(seed, index, draw)
    return np.float64((np.uint64(high) << _HALF | np.uint64(low)) >> _11) * _TO_53


@cuda.jit(device=True)
def philox_normal_float32(seed: Any, index: Any, draw: Any) -> Any:
    """A normal float32 of mean 0 and standard deviation 1, by Box and Muller: draws 2n and 2n + 1
    are the cosine and the sine of the two words that `philox_uint32` returns for these draws.

    The absolute error is below 4e-6, and values of two devices may differ by as much. The absolute
    value is at most 6.8.
    """
    d = np.uint64(draw)
    first, second = _pair(seed, index, d >> _1)
    u = np.float32(first) * _TO_32 + _HALF_STEP  # in (0, 1]
    radius = math.sqrt(np.float32(-2) * math.log(u))
    angle = (np.float32(second) * _TO_32 - np.float32(0.5)) * _TURN_32
    return radius * math.sin(angle) if d & _1 else radius * math.cos(angle)


@cuda.jit(device=True)
def philox_normal_float64(seed: Any, index: Any, draw: Any) -> Any:
    """A normal float64 of mean 0 and standard deviation 1, by Box and Muller: draws 2n and 2n + 1
    are the cosine and the sine of the two numbers of `philox_uniform_float64` for these draws.

    The absolute error is below 1e-14, and values of two devices may differ by as much. The absolute
    value is at most 8.6.
    """
    d = np.uint64(draw)
    u = philox_uniform_float64(seed, index, d & ~_1) + _TO_53  # in (0, 1]
    angle = (philox_uniform_float64(seed, index, d | _1) - np.float64(0.5)) * _TURN_64
    radius = math.sqrt(np.float64(-2) * math.log(u))
    return radius * math.sin(angle) if d & _1 else radius * math.cos(angle)
