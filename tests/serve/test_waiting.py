"""Which requests make the next batch: with numbers, beside a plain list that is searched."""

from __future__ import annotations

import random

import pytest

from numbasync.serve.waiting import Request, Waiting

MOST = 3


def expected(waiting: list[Request], now: float, is_all_due: bool, by_age: bool) -> list[Request]:
    """The next batch, by looking through all requests."""

    def rank(request: Request) -> tuple[int, int]:
        return (0 if by_age else -request.priority), request.number

    def may_start(key: object) -> bool:
        own = [r for r in waiting if r.key == key]
        return is_all_due or len(own) >= MOST or min(r.due for r in own) <= now

    ready = [r for r in waiting if may_start(r.key)]
    if not ready:
        return []
    key = min(ready, key=rank).key
    return sorted((r for r in ready if r.key == key), key=rank)[:MOST]


@pytest.mark.parametrize("seed", range(20))
def test_batches_are_those_of_an_exhaustive_search(seed: int) -> None:
    rng = random.Random(seed)
    queue, model = Waiting(MOST), list[Request]()
    batches = 0
    for number in range(300):
        now = number / 10
        request = Request(
            None, rng.randrange(3), rng.randrange(3), number, now, now + rng.choice([1, 5, 30])
        )
        assert queue.add(request) == (sum(r.key == request.key for r in model) + 1 >= MOST)
        model.append(request)
        if rng.random() < 0.3:
            gone = rng.choice(model)
            queue.remove(gone)
            model.remove(gone)
        given = now, rng.random() < 0.05, rng.random() < 0.2
        if rng.random() < 0.4:
            taken = queue.take(*given)
            assert taken == expected(model, *given)
            model = [r for r in model if r not in taken]
            batches += bool(taken)
        assert len(queue) == len(model) and sorted(queue, key=lambda r: r.number) == model
        assert queue.due() == min((r.due for r in model), default=float("inf"))
        priority = rng.randrange(4)
        lower = [r for r in model if r.priority < priority]
        last = max(lower, key=lambda r: (-r.priority, r.number), default=None)
        assert queue.last_below(priority) is last
    assert batches > 20
