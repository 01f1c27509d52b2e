"""Arrays of records, records alone, nested fields, and constants that are records."""

import numpy as np
from numba import cuda, from_dtype

particle = np.dtype(
    [("mass", np.float64), ("position", np.float32, (3,)), ("kind", np.int16)], align=True
)
numba_particle = from_dtype(particle)


@cuda.jit
def move(particles, dt):
    i = cuda.grid(1)
    if i < particles.size:
        for c in range(3):
            particles[i].position[c] += dt * (c + 1)
        particles[i]["mass"] *= 2
        particles[i].kind = i


@cuda.jit
def swap_through_shared(particles):
    held = cuda.shared.array(8, numba_particle)
    t = cuda.threadIdx.x
    held[t] = particles[t]
    cuda.syncthreads()
    particles[7 - t] = held[t]


@cuda.jit
def change(record, total):
    total[0] = record.mass + record.position[1]
    record.mass = 99.5
    record.kind = 4


particles = np.zeros(8, particle)
particles["mass"] = np.arange(8)
move[1, 32](particles, 0.5)
np.testing.assert_array_equal(particles["position"], np.tile([0.5, 1.0, 1.5], (8, 1)))
np.testing.assert_array_equal(particles["mass"], 2.0 * np.arange(8))
np.testing.assert_array_equal(particles["kind"], np.arange(8))
d = cuda.to_device(particles)
swap_through_shared[1, 8](d)
np.testing.assert_array_equal(d.copy_to_host()["kind"], np.arange(8)[::-1])

total = np.zeros(1)
change[1, 1](particles[3], total)  # a part of an array: it changes
assert total[0] == 7.0 and particles[3]["mass"] == 99.5 and particles["kind"][3] == 4
as_record = np.rec.array(particles)[5]
change[1, 1](as_record, total)
assert as_record.mass == 99.5
one = np.zeros(1, particle)
one["position"] = 2
d_one = cuda.to_device(one[0])
change[1, 1](d_one, total)
assert total[0] == 2.0 and d_one.copy_to_host()["mass"] == 99.5
change[1, 1](d[0], total)
assert d.copy_to_host()["mass"][0] == 99.5
