"""Running a program: an event loop that is as quick as there is one."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

from numbasync.errors import CallerError, StateError

T = TypeVar("T")


def run(main: Awaitable[T], *, debug: bool | None = None) -> T:
    """`asyncio.run` on uvloop, or on asyncio's own loop where uvloop is not installed.

    uvloop takes half the time a turn that asyncio does, and a turn is what an await costs.

    Args:
        main: a coroutine, an operation, or something else to await.

    Raises:
        CallerError: it cannot be awaited.
        StateError: an event loop runs on this thread already, as in a notebook.
    """
    if not inspect.isawaitable(main):
        raise CallerError(
            f"na.run takes something to await, not {type(main).__name__} ({main!r:.60}); call the "
            "function: na.run(main())."
        )
    if _loop_is_running():
        if inspect.iscoroutine(main):
            main.close()  # or Python warns that it was never awaited, too
        raise StateError(
            "an event loop runs on this thread already, as in a notebook: write `await main()` "
            "instead of na.run(main())."
        )
    coroutine: Coroutine[Any, Any, T] = main if inspect.iscoroutine(main) else _awaiting(main)
    if sys.platform == "win32":
        return asyncio.run(coroutine, debug=debug)
    try:
        import uvloop
    except ImportError:
        return asyncio.run(coroutine, debug=debug)
    with asyncio.Runner(debug=debug, loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(coroutine)


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _awaiting(main: Awaitable[T]) -> T:
    return await main
