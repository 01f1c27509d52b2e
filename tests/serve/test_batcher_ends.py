"""`MicroBatcher`: how it ends, and calls that it refuses."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from numbasync import errors
from numbasync.serve import MicroBatcher
from tests import virtual_time
from tests.serve.service import HOUR, Service, calls, in_virtual_time, settled, turns


@in_virtual_time
async def test_closing_answers_those_that_wait_and_refuses_others() -> None:
    f = Service()
    batcher = MicroBatcher(f, max_batch=2, max_wait=HOUR)
    async with batcher:
        tasks = calls(batcher, 1, 2, 3)
        await turns()
        closing = [asyncio.ensure_future(batcher.close()) for _ in range(2)]
        await turns()
        assert not batcher.is_open
        with pytest.raises(errors.BatcherClosedError):
            await batcher(4)
        f.go.set()
        await asyncio.gather(*closing)
        assert await asyncio.gather(*tasks) == [10, 20, 30]
    assert asyncio.get_running_loop().time() == 0
    with pytest.raises(errors.StateError, match="opened before"):
        await batcher.__aenter__()


@pytest.mark.parametrize("how", ["an error", "without drain", "timeout", "cancelled"])
def test_who_still_waits_at_the_end_is_refused(how: str) -> None:
    async def main() -> None:
        f = Service()
        batcher = MicroBatcher(f, max_batch=1)
        error: Any = None
        try:
            async with batcher:
                tasks = calls(batcher, 1, 2)
                await turns()
                if how == "an error":
                    asyncio.get_running_loop().call_later(1, f.go.set)
                    raise ValueError(how)
                if how == "without drain":
                    asyncio.get_running_loop().call_later(1, f.go.set)
                    await batcher.close(drain=False)
                elif how == "timeout":
                    await batcher.close(timeout=4)
                else:
                    closing = asyncio.ensure_future(batcher.close())
                    await turns()
                    closing.cancel()
                    await asyncio.wait([closing])
        except ValueError as caught:
            error = caught
        first, second = await settled(tasks)
        assert isinstance(second, errors.BatcherClosedError)
        if how in ("an error", "without drain"):
            assert first == 10 and (error is not None) == (how == "an error")
        else:
            assert isinstance(first, errors.BatchAbortedError)
        assert batcher.statistics().requests == 2

    virtual_time.run(main())


@in_virtual_time
async def test_a_batcher_called_by_its_f_is_refused() -> None:
    later: list[asyncio.Task[int]] = []

    async def f(items: list[int]) -> list[int]:
        if items == [5]:
            return items
        later.append(asyncio.ensure_future(after()))
        return [await batcher(item) for item in items]

    async def after() -> int:
        """A task of f that outlives its batch."""
        await virtual_time.passes(1)
        return await batcher(5)

    async with MicroBatcher(f) as batcher:
        with pytest.raises(errors.ReentrancyError, match="f has called the batcher"):
            await batcher(1)
        assert await later[0] == 5


def test_a_batcher_needs_one_loop_and_be_open() -> None:
    batcher = MicroBatcher(lambda items: items)

    async def use() -> None:
        with pytest.raises(errors.StateError, match="another event loop"):
            await batcher(1)
        with pytest.raises(errors.StateError, match="another event loop"):
            await batcher.close()

    async def main() -> None:
        with pytest.raises(errors.StateError, match="is not open: write async with"):
            await batcher(1)
        async with batcher:
            await asyncio.to_thread(lambda: asyncio.run(use()))
            assert await batcher(3) == 3

    asyncio.run(main())
