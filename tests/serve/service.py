"""What the tests of batchers share: an `f` that works until it is let go, and virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from numbasync.serve import MicroBatcher
from tests import virtual_time

HOUR = 3600.0


class Service:
    """An `f` that notes its batches, and works until it is let go."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.go = asyncio.Event()

    async def __call__(self, items: list[Any]) -> list[Any]:
        self.batches.append(items)
        await self.go.wait()
        return [10 * item for item in items]


def calls(batcher: MicroBatcher[Any, Any], *items: Any, **given: Any) -> list[asyncio.Task[Any]]:
    return [asyncio.ensure_future(batcher(item, **given)) for item in items]


async def settled(tasks: list[asyncio.Task[Any]]) -> list[Any]:
    """Results and errors."""
    return await asyncio.gather(*tasks, return_exceptions=True)


async def turns(most: int = 5) -> None:
    for _ in range(most):
        await asyncio.sleep(0)


def in_virtual_time(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test that is a coroutine."""

    def run() -> None:
        async def main() -> None:
            await test()

        virtual_time.run(main())

    run.__name__ = test.__name__
    return run
