"""Combine the values of a block's threads: mean, peak and pulses of each channel of a recording.

    python examples/18_threads_together.py

Each block of one kernel has a channel: its mean, its highest sample with its time, and the times
of all pulses, side by side. Each answer is compared with NumPy's.
"""

import numpy as np
from numba import cuda, float32

import numbasync as na

CHANNELS, SAMPLES, THREADS, MOST = 64, 3000, 128, 100


@cuda.jit(device=True)
def higher(a, b):
    """Of two samples with their times, the higher one, and of equal ones the first."""
    return b if b[0] > a[0] or (b[0] == a[0] and b[1] < a[1]) else a


@na.launcher
@cuda.jit
def look_at_channels(
    means: na.KernelOutput, peaks: na.KernelOutput, counts: na.KernelOutput,
    pulses: na.KernelOutput, x: na.KernelInput, level,
):  # fmt: skip
    channel, t = cuda.blockIdx.x, cuda.threadIdx.x
    own, best = float32(0), (x[channel, t], t)
    for i in range(t, SAMPLES, THREADS):
        own += x[channel, i]
        best = higher(best, (x[channel, i], i))
    mean = na.block.sum(own) / float32(SAMPLES)
    best = na.block.reduce(best, higher)

    found = 0
    for first in range(0, SAMPLES, THREADS):  # all threads go round as often: they meet within
        i = first + t
        is_begin = 0 < i < SAMPLES and x[channel, i] > level and x[channel, i - 1] <= level
        place = found + na.block.scan(is_begin, exclusive=True)
        if is_begin and place < pulses.shape[1]:
            pulses[channel, place] = i
        found += na.block.sum(is_begin)
    if t == 0:
        means[channel], peaks[channel], counts[channel] = mean, best[1], found


async def main() -> None:
    x = np.random.default_rng(18).standard_normal((CHANNELS, SAMPLES)).astype(np.float32)
    out = await na.gather(
        na.zeros(CHANNELS), na.zeros(CHANNELS, np.int64), na.zeros(CHANNELS, np.int64),
        na.zeros((CHANNELS, MOST), np.int64),
    )  # fmt: skip
    await look_at_channels[CHANNELS, THREADS](*out, na.from_host(x), 2.0)
    means, peaks, counts, pulses = await na.gather(*(t.to_host() for t in out))

    # A sample is rounded at most 24 times in its thread, 8 between threads, and once as a quotient.
    bound = 33 * 2.0**-24 * abs(x).mean(axis=1, dtype=np.float64)
    assert (abs(means - x.mean(axis=1, dtype=np.float64)) <= bound).all()
    np.testing.assert_array_equal(peaks, x.argmax(axis=1))
    is_begin = (x[:, 1:] > 2) & (x[:, :-1] <= 2)
    np.testing.assert_array_equal(counts, is_begin.sum(axis=1))
    for channel in range(CHANNELS):
        times = np.flatnonzero(is_begin[channel]) + 1
        np.testing.assert_array_equal(pulses[channel, : len(times)], times[:MOST])
    print(f"channel 0: mean {means[0]:.3f}, highest at {peaks[0]}, {counts[0]} pulses")
    print(f"the first ones at {pulses[0, :3].tolist()}; {counts.sum():,} in all channels")


if __name__ == "__main__":
    na.run(main())
