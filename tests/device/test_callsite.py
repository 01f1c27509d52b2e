"""Where a program is: the innermost line outside of the package."""

from __future__ import annotations

import asyncio
import sys
import types
from typing import Any

from numbasync.device import callsite
from numbasync.device.callsite import CallSite, call_site


def here() -> int:
    return sys._getframe(1).f_lineno


def module(name: str, source: str, **names: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    vars(made).update(names)
    exec(compile(source, f"/{name}.py", "exec"), vars(made))
    return made


def test_the_line_that_asks() -> None:
    site, line = call_site(0), here()
    assert site is not None
    assert (site.line, site.code.co_filename) == (line, __file__)
    assert str(site) == f'"{__file__}", line {line}, in test_the_line_that_asks'


def test_a_line_far_down_in_a_function() -> None:
    sites = [
        call_site(0)
        for _ in range(2)
    ]  # fmt: skip
    last, line = call_site(0), here()
    assert last is not None and last.line == line
    assert sites[0] is not None and abs(sites[0].line - line) <= 5


def test_own_modules_and_task_runners_are_skipped() -> None:
    inner = module("numbasync.inner", "def ask(n): return call_site(n)", call_site=call_site)
    outer = module("asyncio.outer", "def ask(n): return inner.ask(n)", inner=inner)
    for above in range(4):
        site, line = outer.ask(above), here()
        assert site is not None
        if above <= 2:  # our module, asyncio's, this one
            assert (site.line, site.code.co_name) == (line, sys._getframe().f_code.co_name)


def test_asking_deeper_than_the_stack_is_answered() -> None:
    assert call_site(10_000) is not None


async def test_in_a_task_it_is_the_coroutines() -> None:
    async def ask() -> tuple[CallSite | None, int]:
        return call_site(0), here()

    site, line = await asyncio.create_task(ask())
    assert site is not None and site.line == line


def test_it_keeps_no_variables() -> None:
    site = call_site(0)
    assert site is not None
    assert all(isinstance(part, types.CodeType | int) for part in site)
    assert not any(isinstance(key, types.CodeType) for key in callsite._is_between)
