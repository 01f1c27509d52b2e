"""Breadth-first search in a graph of compressed rows, level by level, with a flag of the host."""

import numpy as np
from numba import cuda


@cuda.jit
def level_of(rows, columns, level, current, changed):
    node = cuda.grid(1)
    if node >= rows.size - 1 or level[node] != current:
        return
    for e in range(rows[node], rows[node + 1]):
        other = columns[e]
        if level[other] == -1:
            level[other] = current + 1
            changed[0] = True


@cuda.jit
def frontier_step(rows, columns, visited, now, count, later, later_count):
    i = cuda.grid(1)
    if i < count:
        node = now[i]
        for e in range(rows[node], rows[node + 1]):
            other = columns[e]
            if cuda.atomic.cas(visited, other, 0, 1) == 0:
                at = cuda.atomic.add(later_count, 0, 1)
                later[at] = other


n = 300
rng = np.random.default_rng(7)
pairs = np.unique(rng.integers(0, n, (900, 2)), axis=0)
rows = np.searchsorted(pairs[:, 0], np.arange(n + 1)).astype(np.int32)
columns = pairs[:, 1].astype(np.int32)
expected = np.full(n, -1)
expected[0] = 0
front = [0]
while front:
    found = []
    for v in front:
        for w in columns[rows[v] : rows[v + 1]]:
            if expected[w] < 0:
                expected[w] = expected[v] + 1
                found.append(w)
    front = found
level = np.full(n, -1, np.int32)
level[0] = 0
d_rows, d_columns, d_level = (cuda.to_device(a) for a in (rows, columns, level))
changed = cuda.to_device(np.ones(1, np.bool_))
current = 0
while changed[0]:
    changed[0] = False
    level_of[(n + 127) // 128, 128](d_rows, d_columns, d_level, current, changed)
    current += 1
np.testing.assert_array_equal(d_level.copy_to_host(), expected)
visited = np.zeros(n, np.int32)
visited[0] = 1
d_visited = cuda.to_device(visited)
now, later = cuda.to_device(np.zeros(n, np.int32)), cuda.device_array(n, np.int32)
size, reached = 1, 1
while size:
    more = cuda.to_device(np.zeros(1, dtype=np.int32))
    frontier_step[(size + 63) // 64, 64](d_rows, d_columns, d_visited, now, size, later, more)
    now, later = later, now
    size = int(more.copy_to_host()[0])
    reached += size
assert reached == (expected >= 0).sum()
print("levels", current)
