"""Policies answer one question; they are asked with streams that are names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import numbasync as na
from numbasync.errors import CallerError


class Source:
    """Makes numbered streams."""

    def __init__(self) -> None:
        self.made = 0

    def new_stream(self, priority: int = 0) -> Any:
        self.made += 1
        return SimpleNamespace(number=self.made, pending=0)


def numbers(policy: na.SchedulingPolicy, n: int) -> list[int]:
    return [policy.next_stream().number for _ in range(n)]  # type: ignore[attr-defined]


def test_round_robin_wraps_round() -> None:
    assert numbers(na.StreamPoolRoundRobin(Source(), 4), 9) == [1, 2, 3, 4, 1, 2, 3, 4, 1]


def test_a_single_stream_is_always_the_same() -> None:
    source = Source()
    assert numbers(na.SingleStream(source), 5) == [1] * 5
    assert source.made == 1


def test_least_pending_takes_the_emptiest() -> None:
    policy = na.LeastPending(Source(), 3)
    for stream, load in zip(policy.streams, (5, 0, 2), strict=True):
        stream.pending = load  # type: ignore[misc]
    assert numbers(policy, 2) == [2, 2]


@pytest.mark.parametrize("policy", [na.StreamPoolRoundRobin, na.LeastPending])
def test_a_pool_of_no_streams_is_refused(policy: Any) -> None:
    with pytest.raises(CallerError, match="whole number from 1 to 1,024"):
        policy(Source(), 0)


def test_policies_show_themselves() -> None:
    assert repr(na.StreamPoolRoundRobin(Source(), 2)) == "<StreamPoolRoundRobin of 2 streams>"
