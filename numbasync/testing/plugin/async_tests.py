"""Runs `async def` tests on uvloop, each in its own loop, which no task may outlive."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest

from numbasync.device.reactor import current as current_reactor
from numbasync.runtime import run as run_loop
from numbasync.testing.check.failures import KernelFailure

OTHERS = ("asyncio", "anyio", "trio")  # marks of tests that another plugin runs


class LoopLeft(KernelFailure):
    """A test has ended with unfinished tasks or awaits in its loop."""


def is_ours(item: pytest.Function) -> bool:
    """Whether `item` is an async test that no other plugin runs."""
    marked = any(item.get_closest_marker(name) for name in OTHERS)
    return not marked and inspect.iscoroutinefunction(_innermost(item.obj))


def run(item: pytest.Function, strict: bool) -> bool:
    """Run an async test. Returns False if pytest must call the test, which is wrapped to run.

    Args:
        strict: fail if tasks or awaits are left in the loop.
    """
    inner = _innermost(item.obj)
    if inner is not item.obj:  # Hypothesis calls the inner function once for each example
        item.obj.hypothesis.inner_test = in_a_loop(inner, strict)
        return False
    names = item._fixtureinfo.argnames
    in_a_loop(inner, strict)(**{name: item.funcargs[name] for name in names})
    return True


def in_a_loop(function: Callable[..., Any], strict: bool) -> Callable[..., None]:
    """A plain function that runs the coroutine function `function` in a new loop."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> None:
        __tracebackhide__ = True
        coroutine = function(*args, **kwargs)
        run_loop(_watched(coroutine) if strict else coroutine)

    return call


async def _watched(coroutine: Coroutine[Any, Any, Any]) -> None:
    await coroutine
    for _ in range(4):  # so that tasks which were just cancelled can end
        await asyncio.sleep(0)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    waiting = current_reactor().statistics().waiting
    if left or waiting:
        tasks = "".join(f"\n  {task!r:.200}" for task in left)
        raise LoopLeft(
            f"the test has ended, and {len(left)} tasks are not done, {waiting} awaits wait for "
            f"a device (--strict-leaks).{tasks}\nAwait them, or cancel them and await that."
        )


def _innermost(function: Any) -> Any:
    """The function inside a test that Hypothesis has wrapped; any other function itself."""
    return getattr(getattr(function, "hypothesis", None), "inner_test", function)
