"""Operations that are taken for their values, awaited in vain, or not awaited at all."""

from __future__ import annotations

import linecache
import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import CallerError, OperationError, StateError
from tests.common import add_one, waited


@pytest.mark.parametrize("other", [3, 0.5, True, [1.0], (1.0,), np.float32(1), np.ones(4)])
def test_an_operation_is_not_compared_with_values(device: na.Device, other: Any) -> None:
    op = na.zeros(4).to_host().shared()
    for compare in (lambda: op == other, lambda: op != other, lambda: other == op):
        with pytest.raises(OperationError, match=r"\(await op\) == other"):
            compare()
    op.suppress_warning()


def test_an_operation_has_no_truth_and_no_elements(device: na.Device) -> None:
    op: Any = na.value((1, 2)).shared()
    with pytest.raises(OperationError, match="if await op"):
        bool(op)
    with pytest.raises(OperationError, match=r"\(await op\)\[0\]"):
        op[0]
    with pytest.raises(OperationError, match="no elements yet"):
        list(op)
    for read in (np.asarray, na.from_host):
        with pytest.raises(OperationError, match=r"NumPy cannot read it.*await op\.to_host\(\)"):
            read(op)
    assert op.sync() == (1, 2)


def test_functions_of_numpy_say_what_to_write(device: na.Device) -> None:
    op: Any = na.ones(4).shared()
    for function in (
        np.sum, np.mean, np.max, np.prod, np.any, np.std, np.sqrt, np.cumsum, np.sort,
        lambda op: np.add(op, 1), lambda op: np.ones(4) + op, lambda op: np.float32(2) * op,
        lambda op: op.sum(), lambda op: op.mean(axis=0), lambda op: op.argmax(), lambda op: op.dot,
    ):  # fmt: skip
        with pytest.raises((OperationError, AttributeError), match=r"write \(?await op\.to_host"):
            function(op)
    assert not hasattr(op, "sum") and not hasattr(na.DeviceOp, "sum") and "sum" not in dir(op)
    op.suppress_warning()


def test_operations_are_kept_in_containers(device: na.Device) -> None:
    one, two = na.value(1).shared(), na.value(2).shared()
    both: list[Any] = [None, "x", one, two]
    assert two in both and both.index(two) == 3 and one != two and one == one
    assert {one: 1, two: 2}[two] == 2 and len({one, two, one}) == 2
    assert one not in [two, None] and one != "text"
    both.remove(two)
    assert two not in both
    for op in (one, two):
        op.suppress_warning()


# --- closures that would have to be awaited ---


async def load(_: Any = None) -> int:
    return 1


@pytest.mark.parametrize("name", ["then", "then_unchecked", "then_with_context", "map", "inspect"])
def test_an_async_closure_is_refused_at_once(device: na.Device, name: str) -> None:
    with pytest.raises(OperationError, match="(?s)load is an `async def`.*x = await op"):
        getattr(na.value(1), name)(load)


def test_an_async_builder_is_refused(device: na.Device) -> None:
    for call in (na.defer, na.with_context):
        with pytest.raises(OperationError, match="load is an `async def`"):
            call(load)  # type: ignore[arg-type]


class Loader:
    async def __call__(self, _: Any = None) -> int:
        return 1


@pytest.mark.parametrize("closure", [partial(load, 1), Loader(), lambda *_: load()])
async def test_a_closure_giving_a_coroutine_is_refused_later(
    device: na.Device, closure: Any
) -> None:
    def without(*_: Any) -> Any:
        return closure() if isinstance(closure, partial) else closure(None)

    for op in (
        na.value(1).then(without), na.value(1).map(without), na.value(1).inspect(without),
        na.defer(without), na.with_context(without),
    ):  # fmt: skip
        with pytest.raises(OperationError, match="an `async def`"):
            await op


async def test_a_runtime_calls_no_coroutine_function(device: na.Device) -> None:
    async with na.Runtime(device) as rt:
        with pytest.raises(CallerError, match=r"rt\.run\(f\(\)\)"):
            await rt.call(load)


# --- never awaited ---


@pytest.mark.parametrize(
    "make",
    [
        lambda: na.zeros(4), lambda: na.full(4, 1).to_host(), lambda: na.value(1).map(str),
        lambda: na.zip(na.value(1), na.value(2)), lambda: na.value(1).shared(),
        lambda: na.from_host(np.zeros(4)), lambda: na.defer(lambda: na.value(1)),
        lambda: na.arange(4), lambda: add_one(na.meta(4)), lambda: add_one[1, 4](na.meta(4)),
    ],
)  # fmt: skip
def test_what_never_ran_says_which_line_made_it(device: na.Device, make: Any) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        op = make()
        here = make.__code__
        del op
    (warning,) = seen
    assert (warning.filename, warning.lineno) == (__file__, here.co_firstlineno)
    assert "lambda: " in linecache.getline(warning.filename, warning.lineno)
    assert f'made at "{__file__}", line {warning.lineno}' in str(warning.message)


# --- asyncio only ---


def step(awaitable: Any) -> None:
    """What another library's loop does first."""
    awaitable.__await__().send(None)


@pytest.mark.parametrize("form", ["op", "quick", "future", "spawned", "stream"])
def test_other_loops_are_told_what_to_write(device: na.Device, form: str) -> None:
    z = na.zeros(4).sync()
    add_one(z).sync()
    stream = device.new_stream()
    awaitable: Any = {
        "op": lambda: na.value(1), "quick": lambda: add_one(z),
        "future": lambda: add_one(z).schedule(stream), "spawned": lambda: na.spawn(add_one(z)),
        "stream": lambda: waited(stream.done()),
    }[form]()  # fmt: skip
    with pytest.raises(StateError, match=r"(?s)asyncio.*na\.run.*trio\.to_thread\.run_sync"):
        step(awaitable)
    done = 2.0 if form == "spawned" else 1.0
    assert z.to_host().sync()[0] == done, "nothing was submitted"
    if form == "future":
        awaitable.cancel()
