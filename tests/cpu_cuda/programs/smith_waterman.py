"""Local alignment of many pairs of sequences, a thread each; and of one, by anti-diagonals."""

import numpy as np
from numba import cuda, int32

MATCH, MISMATCH, GAP = 2, -1, -2
LENGTH = 24
ROW = LENGTH + 1


@cuda.jit
def align(first, second, best):
    pair = cuda.grid(1)
    if pair >= best.size:
        return
    row = cuda.local.array(ROW, int32)
    for j in range(LENGTH + 1):
        row[j] = 0
    top = int32(0)
    for i in range(LENGTH):
        corner = int32(0)
        for j in range(1, LENGTH + 1):
            above = row[j]
            score = MATCH if first[pair, i] == second[pair, j - 1] else MISMATCH
            value = max(0, corner + score, above + GAP, row[j - 1] + GAP)
            corner = above
            row[j] = value
            top = max(top, value)
    best[pair] = top


@cuda.jit
def diagonals(first, second, table):
    t = cuda.threadIdx.x + 1
    for d in range(2, 2 * LENGTH + 1):
        j = d - t
        if t <= LENGTH and 1 <= j <= LENGTH:
            score = MATCH if first[t - 1] == second[j - 1] else MISMATCH
            table[t, j] = max(
                0, table[t - 1, j - 1] + score, table[t - 1, j] + GAP, table[t, j - 1] + GAP
            )
        cuda.syncthreads()


def reference(a, b):
    table = np.zeros((len(a) + 1, len(b) + 1), int)
    for i in range(1, len(a) + 1):
        for j in range(1, len(b) + 1):
            score = MATCH if a[i - 1] == b[j - 1] else MISMATCH
            table[i, j] = max(
                0, table[i - 1, j - 1] + score, table[i - 1, j] + GAP, table[i, j - 1] + GAP
            )
    return table


rng = np.random.default_rng(8)
letters = np.frombuffer(b"ACGT", np.uint8)
first, second = letters[rng.integers(0, 4, (2, 50, LENGTH))]
best = np.zeros(50, np.int32)
align[2, 32](first, second, best)
assert best.tolist() == [reference(a, b).max() for a, b in zip(first, second)]
table = np.zeros((LENGTH + 1, LENGTH + 1), np.int32)
diagonals[1, 32](first[0], second[0], table)
np.testing.assert_array_equal(table, reference(first[0], second[0]))
print("alignments", int(best.sum()))
