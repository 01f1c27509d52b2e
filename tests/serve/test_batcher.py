"""`MicroBatcher`: when batches start, and what their callers get."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync import errors
from numbasync.serve import MicroBatcher
from numbasync.serve.batcher import FAIR
from tests import virtual_time, waiting
from tests.common import saxpy
from tests.serve.service import HOUR, Service, calls, in_virtual_time, settled, turns


@in_virtual_time
async def test_a_batch_starts_when_full_or_waited_for() -> None:
    f, now = Service(), asyncio.get_running_loop().time
    f.go.set()
    async with MicroBatcher(f, max_batch=3, max_wait=0.5) as batcher:
        await asyncio.gather(*calls(batcher, 1, 2, 3))
        assert now() == 0
        first = calls(batcher, 4)
        await virtual_time.passes(0.4)
        await asyncio.gather(*first, *calls(batcher, 5))
        assert now() == pytest.approx(0.5) and f.batches == [[1, 2, 3], [4, 5]]


@in_virtual_time
async def test_the_next_batch_gathers_while_one_works() -> None:
    f = Service()
    async with MicroBatcher(f, max_batch=4, max_wait=0) as batcher:
        tasks = calls(batcher, 1)
        await virtual_time.passes(1)
        tasks += calls(batcher, 2)
        await virtual_time.passes(1)
        tasks += calls(batcher, 3, 4, 5, 6)
        await turns()
        assert f.batches == [[1]]
        f.go.set()
        assert await asyncio.gather(*tasks) == [10, 20, 30, 40, 50, 60]
        assert f.batches == [[1], [2, 3, 4, 5], [6]]


@in_virtual_time
async def test_several_batches_at_once_and_buckets() -> None:
    f = Service()
    key: Callable[[int], int] = lambda item: item % 2  # noqa: E731
    async with MicroBatcher(f, 2, HOUR, key=key, max_running=2) as batcher:
        tasks = calls(batcher, 1, 2, 3, 5, 7, 4)
        await turns()
        assert f.batches == [[1, 3], [5, 7]] and batcher.statistics().running == 4
        f.go.set()
        await asyncio.gather(*tasks)
        assert f.batches[2:] == [[2, 4]]


@in_virtual_time
async def test_priorities_go_first_and_nobody_waits_for_ever() -> None:
    f = Service()
    async with MicroBatcher(f, max_batch=1, max_wait=0) as batcher:
        begun = calls(batcher, 1)
        await turns()
        low = calls(batcher, 0, priority=-1)
        high = calls(batcher, *range(2, 40), priority=9)
        await turns()
        f.go.set()
        await asyncio.gather(*begun, *low, *high)
    order = [item for batch in f.batches for item in batch]
    assert order.index(0) == FAIR - 1 and [i for i in order if i] == list(range(1, 40))


@in_virtual_time
async def test_overload_is_refused_by_the_lowest_priority_first() -> None:
    f = Service()
    async with MicroBatcher(f, max_batch=1, max_wait=0, max_queue=2) as batcher:
        begun = calls(batcher, 1)
        await turns()
        low, middle = calls(batcher, 2, priority=-2), calls(batcher, 3, priority=0)
        await turns()
        assert batcher.is_full
        with pytest.raises(errors.OverloadedError, match="2 requests wait for Service") as caught:
            await batcher(4, priority=-2)
        assert caught.value.waiting == 2
        high = calls(batcher, 5, priority=1)
        (refused,) = await settled(low)
        assert isinstance(refused, errors.OverloadedError)
        f.go.set()
        assert await asyncio.gather(*begun, *high, *middle) == [10, 50, 30]
        assert f.batches == [[1], [5], [3]] and batcher.statistics().overloaded == 2


@in_virtual_time
async def test_a_full_queue_waits_for_nobody() -> None:
    f = Service()
    f.go.set()
    async with MicroBatcher(f, max_batch=8, max_wait=HOUR, max_queue=2) as batcher:
        assert await asyncio.gather(*calls(batcher, 1, 2)) == [10, 20]
        assert asyncio.get_running_loop().time() == 0


@in_virtual_time
async def test_a_cancelled_caller_takes_its_item_along() -> None:
    f = Service()
    async with MicroBatcher(f, max_batch=2, max_wait=1) as batcher:
        (gone,) = calls(batcher, 1)
        await turns()
        (stays,) = calls(batcher, 2)
        gone.cancel()  # in the turn in which its batch is made
        await turns()
        (late,) = calls(batcher, 3)
        await turns()
        late.cancel()
        await turns()
        (last,) = calls(batcher, 4)
        f.go.set()
        results = await settled([gone, stays, late, last])
    assert [type(r) for r in results] == [asyncio.CancelledError, int, asyncio.CancelledError, int]
    assert f.batches == [[2], [4]]


@in_virtual_time
async def test_f_is_cancelled_with_the_last_caller() -> None:
    f = Service()
    async with MicroBatcher(f, max_batch=2) as batcher:
        tasks = calls(batcher, 1, 2)
        await turns()
        tasks[0].cancel()
        await turns()
        assert batcher.statistics().running == 1
        tasks[1].cancel()  # f would wait for ever
        await settled(tasks)
    assert batcher.statistics().cancelled == 2


@in_virtual_time
async def test_deadlines() -> None:
    f = Service()
    now = asyncio.get_running_loop().time
    async with MicroBatcher(f, max_batch=8, max_wait=HOUR) as batcher:
        begun = calls(batcher, 1, deadline=4)
        await virtual_time.passes(3)
        assert f.batches == [[1]]  # at half of its deadline
        waits = calls(batcher, 2, deadline=0.5)
        with pytest.raises(errors.DeadlineError, match=r"0\.5 s has passed, and its item still w"):
            await waits[0]
        assert now() == pytest.approx(3.5)
        with pytest.raises(TimeoutError, match="4 s has passed, and Service was still at work"):
            await begun[0]
        assert now() == pytest.approx(4)
        with pytest.raises(errors.DeadlineError, match="before the call"):
            await batcher(3, deadline=0)
    assert batcher.statistics().expired == 3 and f.batches == [[1]]


@in_virtual_time
async def test_a_deadline_during_a_blocked_loop_is_seen() -> None:
    seen = []

    def hold_up(items: list[int]) -> list[int]:
        seen.extend(items)
        virtual_time.is_held_up(5)
        return items

    async with MicroBatcher(hold_up, max_batch=1, max_wait=0) as batcher:
        first, second = *calls(batcher, 1), *calls(batcher, 2, deadline=1)
        assert await first == 1
        with pytest.raises(errors.DeadlineError, match="its item still waited"):
            await second
    assert seen == [1]


class Interrupt(BaseException):
    """As a signal's."""


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (ValueError("no"), ValueError), (StopIteration(3), RuntimeError),
        (asyncio.CancelledError(), errors.BatchAbortedError),
        (Interrupt(), errors.BatchAbortedError),
        (errors.DeviceLostError("gone"), errors.DeviceLostError),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)  # fmt: skip
@pytest.mark.parametrize("how", ["plain", "async", "one"])
def test_an_error_reaches_each_of_its_callers(raised: Any, told: type, how: str) -> None:
    def plain(items: list[int]) -> Any:
        raise raised

    async def later(items: list[int]) -> Any:
        await asyncio.sleep(0)
        return plain(items)

    def one(items: list[int]) -> list[Any]:
        return [raised if item == 1 else item for item in items]

    async def main() -> None:
        f: Any = {"plain": plain, "async": later, "one": one}[how]
        async with MicroBatcher(f, max_batch=3) as batcher:
            results = await settled(calls(batcher, 1, 2, 3))
        kinds = [type(result) for result in results]
        assert kinds == ([told, int, int] if how == "one" else [told] * 3)
        assert batcher.statistics().failed == kinds.count(told)

    if how == "async" and isinstance(raised, StopIteration):
        return  # Python's own RuntimeError
    virtual_time.run(main())


@pytest.mark.parametrize(
    ("results", "said"),
    [([1], "gave 1 results for 2 items"), (None, "gave NoneType"), ("ab", "gave str"),
     ({1, 2}, "gave set"), ({0: 1, 1: 2}, "gave dict"), (np.array(3), "gave ndarray")],
)  # fmt: skip
def test_only_one_result_for_each_item_is_accepted(results: Any, said: str) -> None:
    async def main() -> None:
        async with MicroBatcher(lambda items: results, max_batch=2) as batcher:
            for error in await settled(calls(batcher, 1, 2)):
                assert isinstance(error, errors.CallerError) and said in str(error)

    virtual_time.run(main())


def test_f_has_the_context_of_the_block() -> None:
    async def device_of(items: list[int]) -> list[na.Device]:
        return [na.default_device() for _ in items]

    async def main() -> None:
        one, two = na.devices("cpu")[:2]
        with na.use_device(two):
            batcher = await MicroBatcher(device_of).__aenter__()
        with na.use_device(one):
            assert await batcher(1) is two
            await batcher.close()

    asyncio.run(main())


@waiting.loops
def test_kernels_answer_many_callers(loop: str, device: na.Device) -> None:
    def add(rows: np.ndarray[Any, Any]) -> na.DeviceOp[Any]:
        return saxpy(na.zeros(rows.size), 2.0, rows.reshape(-1)).output().to_host().map(
            lambda z: z.reshape(rows.shape)
        )  # fmt: skip

    async def main() -> None:
        async with MicroBatcher(add, 16, collate=np.stack, max_running=2) as batcher:
            rows = [np.full(4, i, np.float32) for i in range(200)]
            answers = await asyncio.gather(*map(batcher, rows))
            assert all((a == 2 * r).all() for a, r in zip(answers, rows, strict=True))
            seen = batcher.statistics()
        assert seen.answered == 200 and 13 <= seen.batches < 100
        assert seen.answer_seconds.quantile(0.5) <= seen.answer_seconds.largest

    with na.use_device(device):
        waiting.run(loop, main())


@in_virtual_time
async def test_nothing_is_kept_of_requests_that_have_ended() -> None:
    class Item:
        pass

    async with MicroBatcher(lambda items: [None] * len(items), key=lambda item: None) as batcher:
        await asyncio.gather(*map(batcher, [Item() for _ in range(40)]))
        await turns()
        gc.collect()
        assert not [one for one in gc.get_objects() if isinstance(one, Item)]
