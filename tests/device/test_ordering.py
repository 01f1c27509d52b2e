"""Order follows submission: what two streams share is ordered, what they do not is not."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import numbasync as na
from numbasync.device.stream import MANY_FOLLOWED
from numbasync.testing import Gate, settle
from tests.common import add_one, compiled, copy_to, saxpy


async def test_a_chain_over_three_streams(device: na.Device, stream: na.Stream, gate: Gate) -> None:
    compiled()
    two, three = device.new_stream(), device.new_stream()
    x, y, z = await na.zeros(8), await na.zeros(8), await na.zeros(8)
    gate.close()
    na.fill(x, 3).async_on(stream)
    copy_to(y, x).async_on(two)
    copy_to(z, y).async_on(three)
    na.fill(x, 9).async_on(three)
    await settle(device)
    assert not (two.query() or three.query())
    gate.open()
    await three.done()
    assert (await z.to_host()).tolist() == [3] * 8
    assert (await x.to_host()).tolist() == [9] * 8


def test_an_allocation_is_used_elsewhere_in_order(
    device: na.Device, stream: na.Stream, gate: Gate
) -> None:
    compiled()
    gate.close()
    z = na.full(8, 4).async_on(stream)
    other = device.new_stream()
    host = z.to_host().async_on(other)
    assert not other.query()
    gate.open()
    other.synchronize()
    assert host.tolist() == [4] * 8


# --- random programs: the result is what one op at a time gives ---

TENSORS, SIZE = 4, 8
steps = st.lists(
    st.tuples(
        st.sampled_from(["fill", "add", "copy", "axpy", "half"]),
        st.integers(0, TENSORS - 1),
        st.integers(0, TENSORS - 1),
        st.integers(0, 3),
        st.integers(-9, 9),
    ),
    min_size=1,
    max_size=25,
)


@given(program=steps, order=st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_random_programs(device: na.Device, program: list[Any], order: random.Random) -> None:
    compiled()
    streams = [device.new_stream() for _ in range(4)]
    tensors = [na.zeros(SIZE).sync() for _ in range(TENSORS)]
    arrays = [np.zeros(SIZE, np.float32) for _ in range(TENSORS)]
    gates = [Gate(s) for s in streams]
    order.shuffle(gates)
    for held in gates:
        held.close()
    try:
        submit(program, streams, tensors, arrays)
    finally:
        for held in gates:
            held.open()
    for tensor, array in zip(tensors, arrays, strict=True):
        np.testing.assert_allclose(tensor.to_host().sync(), array, rtol=1e-5)


def submit(program: list[Any], streams: list[na.Stream], tensors: list[Any], arrays: Any) -> None:
    """Every step on its stream, and on the host at once."""
    for kind, i, j, s, value in program:
        a, b, stream = tensors[i], tensors[j], streams[s]
        if kind == "fill":
            na.fill(a, value).async_on(stream)
            arrays[i][:] = value
        elif kind == "half":
            na.fill(a[: SIZE // 2], value).async_on(stream)
            arrays[i][: SIZE // 2] = value
        elif kind == "add" or i == j:
            add_one(a).async_on(stream)
            arrays[i] += 1
        elif kind == "copy":
            copy_to(a, b).async_on(stream)
            arrays[i][:] = arrays[j]
        else:
            saxpy(a, 0.5, b).async_on(stream)
            arrays[i][:] = np.float32(0.5) * arrays[j] + arrays[i]


def test_streams_that_have_ended_are_forgotten(device: na.Device) -> None:
    stream, kept = device.new_stream(), device.new_stream()
    na.zeros(3).async_on(kept)
    stream.wait_for(kept)
    for _ in range(3 * MANY_FOLLOWED):
        other = device.new_stream()
        stream.wait_for(other)
        assert stream.follows(other, other._sequence)
        del other
    assert len(stream._follows or ()) <= MANY_FOLLOWED
    assert stream.follows(kept, kept._sequence)
    assert not stream.follows(kept, kept._sequence + 1)
    assert [other for other, _ in stream._followed()] == [kept]
    stream.synchronize()
