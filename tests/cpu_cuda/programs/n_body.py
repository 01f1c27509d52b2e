"""Bodies attract each other: positions in tiles of shared memory, local arrays, vectors."""

import math

import numpy as np
from numba import cuda, float32

TILE = 32
SOFTENING = 1e-2


@cuda.jit(device=True, inline=True)
def pull(ax, ay, az, dx, dy, dz, mass):
    d2 = dx * dx + dy * dy + dz * dz + float32(SOFTENING)
    inv = float32(1.0) / math.sqrt(d2 * d2 * d2)
    return ax + mass * inv * dx, ay + mass * inv * dy, az + mass * inv * dz


@cuda.jit(fastmath=True)
def accelerate(bodies, acc):
    tile = cuda.shared.array((TILE, 4), float32)
    own = cuda.local.array(3, float32)
    i = cuda.grid(1)
    n = bodies.shape[0]
    for c in range(3):
        own[c] = bodies[min(i, n - 1), c]
    ax = ay = az = float32(0)
    for first in range(0, n, TILE):
        j = first + cuda.threadIdx.x
        for c in range(4):
            tile[cuda.threadIdx.x, c] = bodies[j, c] if j < n else float32(0)
        cuda.syncthreads()
        for k in range(TILE):
            ax, ay, az = pull(
                ax,
                ay,
                az,
                tile[k, 0] - own[0],
                tile[k, 1] - own[1],
                tile[k, 2] - own[2],
                tile[k, 3],
            )
        cuda.syncthreads()
    if i < n:
        acc[i, 0], acc[i, 1], acc[i, 2] = ax, ay, az


@cuda.jit
def step(bodies, velocity, acc, dt):
    i, c = cuda.grid(2)
    if i < bodies.shape[0] and c < 3:
        velocity[i, c] += acc[i, c] * dt
        bodies[i, c] += velocity[i, c] * dt


rng = np.random.default_rng(5)
bodies = rng.random((100, 4), dtype=np.float32)
velocity = np.zeros((100, 3), np.float32)
d_bodies, d_velocity = cuda.to_device(bodies), cuda.to_device(velocity)
d_acc = cuda.device_array((100, 3), np.float32)
x, v = bodies.astype(float), velocity.astype(float)
for _ in range(5):
    accelerate[(100 + TILE - 1) // TILE, TILE](d_bodies, d_acc)
    step[(13, 1), (8, 4)](d_bodies, d_velocity, d_acc, np.float32(0.01))
    d = x[None, :, :3] - x[:, None, :3]
    r2 = (d**2).sum(2) + SOFTENING
    v += 0.01 * (d * (x[None, :, 3:] * r2[:, :, None] ** -1.5)).sum(1)
    x[:, :3] += 0.01 * v
np.testing.assert_allclose(d_bodies.copy_to_host(), x, rtol=1e-4)
