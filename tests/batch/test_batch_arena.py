"""Placing buffers: what is needed at one time does not overlap, and little is wasted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from numbasync.batch.fusion.arena import ALIGNMENT, Life, place, rounded

lives = st.lists(
    st.tuples(st.integers(0, 5000), st.integers(0, 9), st.integers(0, 4)), max_size=24
).map(lambda drawn: [Life(k, size, at, at + more) for k, (size, at, more) in enumerate(drawn)])


@given(lives)
def test_buffers_that_live_together_do_not_overlap(lives: list[Life]) -> None:
    arena = place(lives)
    for k, a in enumerate(lives):
        begin, end = arena.offsets[a.key], arena.offsets[a.key] + rounded(a.nbytes)
        assert begin % ALIGNMENT == 0
        assert begin >= 0 and end <= arena.nbytes
        for b in lives[k + 1 :]:
            if a.first <= b.last and b.first <= a.last:
                other = arena.offsets[b.key]
                assert end <= other or other + rounded(b.nbytes) <= begin


@given(lives)
def test_it_never_exceeds_separate_buffers(lives: list[Life]) -> None:
    arena = place(lives)
    at_once = [sum(rounded(b.nbytes) for b in lives if b.first <= t <= b.last) for t in range(14)]
    assert max(at_once) <= arena.nbytes <= arena.naive


def test_a_chain_needs_two_buffers_at_a_time() -> None:
    arena = place([Life(k, 1000, k, k + 1) for k in range(10)])
    assert arena.nbytes == 2 * rounded(1000)
    assert arena.naive == 10 * rounded(1000)


def test_no_buffers() -> None:
    assert place([]).nbytes == 0
