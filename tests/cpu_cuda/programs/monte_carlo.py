"""Random numbers: pi, and the price of an option, by generators of their own for each thread."""

import math

import numpy as np
from numba import cuda
from numba.cuda.random import (
    create_xoroshiro128p_states,
    xoroshiro128p_normal_float64,
    xoroshiro128p_uniform_float32,
)


@cuda.jit
def compute_pi(rng_states, iterations, out):
    thread_id = cuda.grid(1)
    inside = 0
    for _ in range(iterations):
        x = xoroshiro128p_uniform_float32(rng_states, thread_id)
        y = xoroshiro128p_uniform_float32(rng_states, thread_id)
        if x**2 + y**2 <= 1.0:
            inside += 1
    out[thread_id] = 4.0 * inside / iterations


@cuda.jit
def price(states, s0, strike, rate, sigma, years, paths, out):
    i = cuda.grid(1)
    total = 0.0
    for _ in range(paths):
        z = xoroshiro128p_normal_float64(states, i)
        end = s0 * math.exp((rate - 0.5 * sigma**2) * years + sigma * math.sqrt(years) * z)
        total += max(end - strike, 0.0)
    out[i] = math.exp(-rate * years) * total / paths


threads, blocks = 64, 8
states = create_xoroshiro128p_states(threads * blocks, seed=1)
out = np.zeros(threads * blocks, dtype=np.float32)
compute_pi[blocks, threads](states, 500, out)
assert abs(out.mean() - math.pi) < 0.02, out.mean()
again = np.zeros_like(out)
compute_pi[blocks, threads](create_xoroshiro128p_states(threads * blocks, seed=1), 500, again)
np.testing.assert_array_equal(out, again)

values = np.zeros(threads * blocks)
price[blocks, threads](states, 100.0, 105.0, 0.05, 0.2, 1.0, 400, values)
d1 = (math.log(100 / 105) + 0.05 + 0.02) / 0.2
phi = lambda t: 0.5 * (1 + math.erf(t / math.sqrt(2)))  # noqa: E731
exact = 100 * phi(d1) - 105 * math.exp(-0.05) * phi(d1 - 0.2)
assert abs(values.mean() - exact) < 0.2, (values.mean(), exact)
