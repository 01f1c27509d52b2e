"""Random programs over overlapping parts of one foreign array give what NumPy gives; and with a
rule switched off that keeps their order, they do not.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import numbasync as na
from numbasync.device import address_map
from numbasync.device.storage import BorrowedOwner, Storage
from numbasync.ops.context import Context
from numbasync.testing import Gate, seeded
from tests.lenders import lend, seen
from tests.stress.programs import axpy, bump, compiled

SIZE, STREAMS = 16, 3

cut = st.builds(
    lambda start, length, step: slice(start, min(start + length, SIZE), step),
    st.integers(0, SIZE - 1), st.integers(1, SIZE), st.sampled_from([1, 1, 2]),
)  # fmt: skip
programs = st.lists(
    st.tuples(
        st.sampled_from(["fill", "add", "axpy", "copy", "read"]), cut, cut,
        st.integers(0, STREAMS - 1), st.booleans(), st.integers(-9, 9),
    ),
    min_size=1,
    max_size=20,
)  # fmt: skip


def check(device: na.Device, program: list[Any], seed: int) -> None:
    order = random.Random(seed)
    with seeded(device, seed):
        x = lend(device, np.arange(SIZE, dtype=np.int32))
        want = np.arange(SIZE, dtype=np.int32)
        streams = [device.new_stream() for _ in range(STREAMS)]
        gates = [Gate(stream) for stream in streams]
        for gate in gates:
            gate.close()
        try:
            reads = submit(program, x, want, streams)
        finally:
            for gate in order.sample(gates, STREAMS):
                gate.open()
        for stream in streams:
            stream.synchronize()
        for got, expected in reads:
            np.testing.assert_array_equal(got, expected)
        np.testing.assert_array_equal(seen(x), want)


def submit(program: list[Any], x: Any, want: np.ndarray, streams: list[na.Stream]) -> list[Any]:
    """Every step on its stream, and on the host at once; what was read, and what must be."""
    reads: list[Any] = []
    for kind, a, b, s, keeps, value in program:
        stream, one, two = streams[s], want[a], want[b]
        n = min(len(one), len(two))
        if kind == "fill":
            na.fill(na.as_tensor(x[a]), value).async_on(stream)
            one[...] = value
        elif kind == "read":
            reads.append((na.as_tensor(x[a]).to_host().async_on(stream), one.copy()))
        elif kind == "copy":
            dst, src = na.as_tensor(x[a])[:n], na.as_tensor(x[b])[:n]
            na.memcpy(dst, src).async_on(stream)
            one[:n] = two[:n].copy()
        elif kind == "axpy" and not np.may_share_memory(one[:n], two[:n]):
            z = na.as_tensor(x[a])[:n] if keeps else x[a][:n]
            y = na.as_tensor(x[b])[:n] if keeps else x[b][:n]
            if keeps and np.may_share_memory(one, two):
                continue
            axpy(z, value, y).async_on(stream)
            one[:n] += value * two[:n]
        else:
            bump(x[a]).async_on(stream)
            one += 1
    return reads


def run(device: na.Device, examples: int, *phases: Phase) -> None:
    compiled()

    @given(program=programs, seed=st.integers(0, 2**32 - 1))
    @settings(
        max_examples=examples, database=None, phases=phases or tuple(Phase),
        suppress_health_check=(HealthCheck.too_slow,), report_multiple_bugs=False,
    )  # fmt: skip
    def test(program: list[Any], seed: int) -> None:
        check(device, program, seed)

    test()


def test_programs_over_parts_of_one_array(device: na.Device) -> None:
    run(device, 300 if device.kind == "cpu" else 60)


# --- planted bugs: each must be caught ---------------------------------------------------


def _writers_only(after: Callable[..., None]) -> Callable[..., None]:
    return lambda self, storage, name, readers: after(self, storage, name, readers=False)


PLANTED: dict[str, tuple[Any, str, Callable[[Any], Any]]] = {
    "every use has a record of its own": (
        address_map, "storage_of",
        lambda _: lambda device, memory: Storage(BorrowedOwner(device), memory),
    ),
    "what overlaps is not linked": (Storage, "add_overlap", lambda _: lambda self, other: None),
    "a link works one way": (
        Storage, "overlapping",
        lambda all_: lambda self: (s for s in all_(self) if id(s) < id(self)),
    ),
    "readers of what overlaps are not waited for": (Context, "_after_linked", _writers_only),
}  # fmt: skip


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU device, where seeds choose the interleavings."""
    (device, *_) = na.devices("cpu")
    with na.use_device(device):
        owner, name, planted = PLANTED[bug]
        monkeypatch.setattr(owner, name, planted(getattr(owner, name)))
        with pytest.raises((AssertionError, BaseExceptionGroup)) as caught:
            run(device, 3000, Phase.generate)
    assert "Arrays are not equal" in "".join(traceback.format_exception(caught.value))
