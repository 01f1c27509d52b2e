"""Machine code in memory, in a process most of whose addresses are taken, as drivers take them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HOLES = """
import ctypes, mmap
import numbasync as na
from numba import cuda

@na.launcher
@cuda.jit
def add(z: na.KernelOutput, x):
    i = cuda.grid(1)
    if i < z.size:
        z[i] = x[i] + 1.5

libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
PAGE, FAR = mmap.PAGESIZE, 3 << 30

def take(size):
    return libc.mmap(None, size, 0, FLAGS, -1, 0)

x, z = na.ones(100).sync(), na.zeros(100).sync()
for _ in range(2000):  # a free page every 3 GiB, and no other
    libc.munmap(take(FAR), PAGE)
last, far = take(PAGE), 0
while far < 5:
    place = take(PAGE)
    far += abs(place - last) > FAR // 2
    last = place
add(z, x).sync()
print(z.to_host().sync()[0])
"""


def test_its_parts_may_lie_far_apart(tmp_path: Path) -> None:
    program = tmp_path / "holes.py"
    program.write_text(HOLES, encoding="utf-8")
    made = subprocess.run(
        [sys.executable, program], capture_output=True, text=True,
        env={**os.environ, "NUMBASYNC_DEVICE": "cpu"},
    )  # fmt: skip
    assert (made.stdout, made.returncode) == ("2.5\n", 0), made.stderr
