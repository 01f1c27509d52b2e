"""Many operations in flight over several streams.

The default policy gives operations to four streams in turn: what does not depend on each
other overlaps. What shares a tensor is put in the order of submission, on whatever streams
it is. `gather` waits for all; `spawn` starts one and leaves it.

    python examples/03_many_streams.py
"""

import time

import numpy as np
from numba import cuda

import numbasync as na


@na.launcher
@cuda.jit
def collatz(steps: na.KernelOutput, start):
    """How many steps each number from `start` on takes to reach 1: work of uneven length."""
    i = cuda.grid(1)
    if i < steps.shape[0]:
        n = start + i
        count = 0
        while n > 1:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            count += 1
        steps[i] = count


@na.launcher
@cuda.jit
def maximum(best: na.KernelOutput, steps: na.KernelInput):
    i = cuda.grid(1)
    if i < steps.shape[0]:
        cuda.atomic.max(best, 0, steps[i])


def expected(start: int, n: int) -> int:
    """The same in Python."""
    longest = 0
    for number in range(start, start + n):
        count = 0
        while number > 1:
            number = number // 2 if number % 2 == 0 else 3 * number + 1
            count += 1
        longest = max(longest, count)
    return longest


async def main() -> None:
    device = na.default_device()
    n, parts = 256, 8
    await collatz.compile(na.meta(n, np.int32).partition(128), 1)  # not in the measurement

    began = time.perf_counter()
    for part in range(parts):
        await collatz(na.zeros(n, np.int32).partition(128), 1 + part * n)
    one_by_one = time.perf_counter() - began

    began = time.perf_counter()
    results = await na.gather(
        *(
            collatz(na.zeros(n, np.int32).partition(128), 1 + part * n).output().unpartition()
            for part in range(parts)
        )
    )
    together = time.perf_counter() - began
    print(f"{parts} launches: {one_by_one * 1e3:.1f} ms one by one, {together * 1e3:.1f} together")

    # Eight launches on four streams write `best`: they are ordered, because they share it.
    best = await na.zeros(1, np.int32)
    futures = [
        na.spawn(maximum[-(-n // 128), 128](best, steps), na.LeastPending(device, 4))
        for steps in results
    ]
    await na.gather(*futures)
    longest = int((await best.to_host())[0])
    print(f"longest: {longest} steps below {n * parts + 1}")
    assert longest == expected(1, n * parts)


na.run(main())
