"""Running `async def` tests: on uvloop, each in a loop of its own, with nothing left behind."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest

from numbasync import runtime
from numbasync.device import reactor
from numbasync.testing.check.failures import KernelFailure

OTHERS = ("asyncio", "anyio", "trio")  # plugins whose marks say that they run the test


class LoopLeft(KernelFailure):
    """A test has ended, and something of it would go on in its loop."""


def is_ours(item: pytest.Function) -> bool:
    """Whether it is an async test that no other plugin is to run."""
    marked = any(item.get_closest_marker(name) for name in OTHERS)
    return not marked and inspect.iscoroutinefunction(_innermost(item.obj))


def run(item: pytest.Function, strict: bool) -> bool:
    """Run an async test; False if it is left to pytest to call, which then runs it.

    Args:
        strict: fail if tasks or awaits are left in the loop.
    """
    inner = _innermost(item.obj)
    if inner is not item.obj:  # Hypothesis calls it once for each example
        item.obj.hypothesis.inner_test = in_a_loop(inner, strict)
        return False
    names = item._fixtureinfo.argnames
    in_a_loop(inner, strict)(**{name: item.funcargs[name] for name in names})
    return True


def in_a_loop(function: Callable[..., Any], strict: bool) -> Callable[..., None]:
    """`function`, which is a coroutine function, as one to call."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> None:
        __tracebackhide__ = True
        coroutine = function(*args, **kwargs)
        runtime.run(_watched(coroutine) if strict else coroutine)

    return call


async def _watched(coroutine: Coroutine[Any, Any, Any]) -> None:
    await coroutine
    for _ in range(4):  # what has just been told to end may
        await asyncio.sleep(0)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    waiting = reactor.current().statistics().waiting
    if left or waiting:
        tasks = "".join(f"\n  {task!r:.200}" for task in left)
        raise LoopLeft(
            f"the test has ended, and {len(left)} tasks are not done, {waiting} awaits wait for "
            f"a device (--strict-leaks).{tasks}\nAwait them, or cancel them and await that."
        )


def _innermost(function: Any) -> Any:
    """What Hypothesis calls, of a test that it has wrapped."""
    return getattr(getattr(function, "hypothesis", None), "inner_test", function)
