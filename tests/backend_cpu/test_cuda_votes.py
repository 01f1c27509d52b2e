"""Votes and matches of a warp, and masks of its lanes."""

from __future__ import annotations

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from tests.backend_cpu.values import FULL, bits, signed, values
from tests.common import full, host


# Others vote in tests of some lanes: int32, and what is compared.
@pytest.mark.parametrize("dtype", [np.int64, full(np.uint8)])
def test_votes(device: na.Device, dtype: type) -> None:
    @na.launcher
    @cuda.jit
    def vote(z: na.KernelOutput, x: na.KernelInput):
        i = cuda.grid(1)
        z[i, 0] = cuda.all_sync(FULL, x[i])
        z[i, 1] = cuda.any_sync(FULL, x[i])
        z[i, 2] = cuda.eq_sync(FULL, x[i])
        z[i, 3] = cuda.ballot_sync(FULL, x[i])

    x = np.random.default_rng(7).integers(0, 3, (4, 32)).astype(dtype)
    x[1], x[2] = 0, 2
    if dtype is np.int64:
        x[3] *= 2**40  # nonzero, though the low half is zero
    z = na.zeros((128, 4), np.int64).sync()
    vote[2, 64](z, x.ravel()).sync()
    flags = x != 0
    want = [[f.all(), f.any(), f.all() or not f.any(), signed(bits(f))] for f in flags]
    np.testing.assert_array_equal(
        host(z).reshape(4, 32, 4), np.repeat(want, 32, 0).reshape(4, 32, 4)
    )


@pytest.mark.full
def test_votes_of_some_lanes(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def vote(z: na.KernelOutput, x: na.KernelInput, low):
        i, lane = cuda.grid(1), cuda.laneid
        if lane < low:
            mask = (1 << low) - 1
            z[i, 0] = cuda.ballot_sync(mask, x[i] > 0)
            z[i, 1] = cuda.all_sync(mask, x[i] > 0)
        else:
            mask = FULL ^ ((1 << low) - 1)
            z[i, 0] = cuda.ballot_sync(mask, x[i] > 0)
            z[i, 1] = cuda.any_sync(mask, x[i] > 0)

    x = np.random.default_rng(8).integers(-1, 2, 32)
    for low in (1, 10, 31):
        z = na.zeros((32, 2), np.int64).sync()
        vote[1, 32](z, x, low).sync()
        flags, lane = x > 0, np.arange(32)
        head, tail = flags & (lane < low), flags & (lane >= low)
        want = np.where(lane < low, signed(bits(head)), signed(bits(tail)))
        np.testing.assert_array_equal(host(z)[:, 0], want)
        want = np.where(lane < low, flags[:low].all(), tail.any())
        np.testing.assert_array_equal(host(z)[:, 1], want)


@na.launcher
@cuda.jit
def vote_here(z: na.KernelOutput, x: na.KernelInput):
    t = cuda.threadIdx.x
    here = min(cuda.blockDim.x - t // 32 * 32, 32)
    mask = (1 << here) - 1
    z[t, 0] = cuda.ballot_sync(mask, x[t])
    z[t, 1] = cuda.shfl_sync(mask, x[t], here - 1)
    z[t, 2] = cuda.all_sync(mask, x[t] < 3)
    z[t, 3] = cuda.activemask()
    z[t, 4] = cuda.match_any_sync(mask, x[t])


@pytest.mark.parametrize("threads", [8, 40], ids="threads={}".format)
def test_a_warp_that_is_not_full(device: na.Device, threads: int) -> None:
    x = np.random.default_rng(9).integers(0, 3, threads).astype(np.int32)
    z = na.zeros((threads, 5), np.int64).sync()
    vote_here[1, threads](z, x).sync()
    want = []
    for t in range(threads):
        warp = x[t // 32 * 32 : t // 32 * 32 + 32]
        want.append([signed(bits(warp)), warp[-1], 1, (1 << len(warp)) - 1,
                     signed(bits(warp == x[t]))])  # fmt: skip
    assert host(z).tolist() == want


@pytest.mark.parametrize("dtype", [full(np.int64), np.float32, full(np.float64)])
def test_matches(device: na.Device, dtype: type) -> None:
    @na.launcher
    @cuda.jit
    def match(z: na.KernelOutput, x: na.KernelInput):
        i = cuda.grid(1)
        z[i, 0] = cuda.match_any_sync(FULL, x[i])
        mask, same = cuda.match_all_sync(FULL, x[i])
        z[i, 1] = mask
        z[i, 2] = same

    x = values(dtype, 4)[np.random.default_rng(10).integers(0, 4, 96)]
    x[32:64] = x[0]
    z = na.zeros((96, 3), np.int64).sync()
    match[1, 96](z, x).sync()
    for warp, got in zip(x.reshape(3, 32), host(z).reshape(3, 32, 3), strict=True):
        same = (warp == warp[0]).all()
        assert got[:, 0].tolist() == [signed(bits(warp == v)) for v in warp]
        assert (got[:, 1] == (-1 if same else 0)).all()
        assert (got[:, 2] == same).all()


@pytest.mark.full
def test_matches_of_some_lanes(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def match(z: na.KernelOutput, x: na.KernelInput):
        i, lane = cuda.grid(1), cuda.laneid
        if lane % 2 == 0:
            z[i, 0] = cuda.match_any_sync(0x55555555, x[i])
            mask, same = cuda.match_all_sync(0x55555555, x[i])
            z[i, 1] = mask + 10 * same

    x = np.random.default_rng(11).integers(0, 3, 64).astype(np.int32)
    x[32::2] = 7
    z = na.zeros((64, 2), np.int64).sync()
    match[1, 64](z, x).sync()
    even = np.arange(32) % 2 == 0
    for warp, got in zip(x.reshape(2, 32), host(z).reshape(2, 32, 2), strict=True):
        same = (warp[::2] == warp[0]).all()
        any_of = [bits((warp == v) & even) if e else 0 for v, e in zip(warp, even, strict=True)]
        assert got[:, 0].tolist() == any_of
        assert got[:, 1].tolist() == [0x5555555F if same and e else 0 for e in even]


# --- masks ---


def test_masks_of_lanes(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def masks(z: na.KernelOutput):
        i = cuda.grid(1)
        z[i, 0] = cuda.lanemask_lt()
        z[i, 1] = cuda.activemask()
        z[i, 2] = cuda.popc(cuda.lanemask_lt())

    z = na.zeros((64, 3), np.int64).sync()
    masks[1, 64](z).sync()
    lane = np.arange(64) % 32
    np.testing.assert_array_equal(host(z).T, [(1 << lane) - 1, np.full(64, FULL), lane])


def test_active_lanes_are_among_those_of_the_branch(device: na.Device) -> None:
    """CUDA does not say which lanes of a branch run together: not fewer than one, no others."""

    @na.launcher
    @cuda.jit
    def active(z: na.KernelOutput):
        t = cuda.threadIdx.x
        if t % 3 == 0:
            z[t] = cuda.activemask()
        else:
            z[t] = cuda.activemask()

    z = na.zeros(32, np.int64).sync()
    active[1, 32](z).sync()
    third = np.arange(32) % 3 == 0
    for t, mask in enumerate(host(z).tolist()):
        assert mask >> t & 1
        assert mask & ~bits(third == third[t]) == 0


def test_compaction_by_ballots(device: na.Device) -> None:
    @na.launcher
    @cuda.jit
    def compact(z: na.KernelOutput, x: na.KernelInput, counts: na.KernelInput):
        i = cuda.grid(1)
        keep = x[i] > 0
        mask = np.uint32(cuda.ballot_sync(FULL, keep))
        if keep:
            z[counts[i // 32] + cuda.popc(mask & cuda.lanemask_lt())] = x[i]

    x = np.random.default_rng(12).integers(-5, 6, 128)
    per_warp = (x.reshape(4, 32) > 0).sum(1)
    z = na.zeros(int(per_warp.sum()), np.int64).sync()
    compact[2, 64](z, x, per_warp.cumsum() - per_warp).sync()
    np.testing.assert_array_equal(host(z), x[x > 0])


def test_lanes_ask_leaders_while_others_go_on(device: na.Device) -> None:
    """Who wait have the number of their round, who are ahead another one."""

    @na.launcher
    @cuda.jit
    def ask(z: na.KernelOutput, x: na.KernelInput):
        i = cuda.grid(1)
        value, own = x[i], x[i] - i
        for _ in range(3):
            mask = cuda.ballot_sync(FULL, value > own)
            if value > own:
                value = cuda.shfl_sync(mask, own, cuda.ffs(mask) - 1)
        z[i] = value

    for seed in range(5):
        x = np.random.default_rng(seed).integers(0, 40, 64)
        z = na.zeros(64, np.int64).sync()
        ask[1, 64](z, x).sync()
        value, own = x.copy(), x - np.arange(64)
        for _ in range(3):
            asks = value > own
            for warp in (slice(0, 32), slice(32, 64)):
                if asks[warp].any():
                    value[warp][asks[warp]] = own[warp][asks[warp].argmax()]
        np.testing.assert_array_equal(host(z), value)
