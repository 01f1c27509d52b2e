"""What must hold of operations: nothing before they run, once for all, one at a time."""

from __future__ import annotations

import asyncio
import gc
import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import LaunchError, OutOfDeviceMemoryError, ReentrancyError
from numbasync.testing import counters
from tests.common import add_one, fresh, saxpy, waited
from tests.waiting import begin, in_time

# --- nothing before they run ---


def test_a_dropped_scheduled_pipeline_is_named_and_idle(
    device: na.Device, policy: na.SchedulingPolicy
) -> None:
    kernel = fresh()
    before = counters()
    pipeline = (
        kernel(na.zeros(8).partition(4)).output().unpartition()
        .then(lambda t: kernel(t)).output().dup().to_host()
    )  # fmt: skip
    future = pipeline.schedule(policy)
    with pytest.warns(RuntimeWarning, match=r"kernel\(z\).*to_host.* was scheduled but never"):
        del pipeline, future
        gc.collect()
    did = counters() - before
    assert (did.allocations, did.compiles, did.launches) == (0, 0, 0)


@pytest.mark.parametrize("kind", ["a closure", "a refused launch", "no memory"])
def test_no_closure_is_called_after_an_error(device: na.Device, kind: str) -> None:
    z = na.zeros(4).sync()
    called: list[str] = []

    def note(name: str) -> Callable[..., Any]:
        return lambda *_: called.append(name) or na.value(0)

    def failing() -> na.DeviceOp[Any]:
        if kind == "a closure":
            return na.value(1).map(lambda _: 1 // 0)
        if kind == "a refused launch":
            return saxpy[1, 5000](z, 1.0, np.ones(4, np.float32))
        return na.empty(device.backend.total_memory + 2**30, np.uint8)

    error = {"a closure": ZeroDivisionError, "a refused launch": LaunchError}.get(
        kind, OutOfDeviceMemoryError
    )
    for op in (
        failing().then(note("then")),
        failing().then_unchecked(note("then_unchecked")),
        failing().then_with_context(note("then_with_context")),
        failing().map(note("map")),
        failing().inspect(note("inspect")),
        na.zip(failing(), na.defer(note("zip"))),
        na.zip(failing(), na.with_context(note("with_context"))),
    ):
        with pytest.raises(error):
            op.sync()
    assert called == []


def test_zip_enqueues_parts_in_order_on_one_stream(
    device: na.Device, policy: na.SchedulingPolicy
) -> None:
    seen: list[tuple[str, na.Stream]] = []

    def part(name: str) -> na.DeviceOp[None]:
        return na.with_context(lambda ctx: seen.append((name, ctx.stream)))

    for _ in range(3):
        na.zip(part("a"), na.zip(part("b"), part("c")), part("d")).schedule(policy).sync()
        assert [name for name, _ in seen] == ["a", "b", "c", "d"]
        assert len({stream for _, stream in seen}) == 1
        seen.clear()


# --- once for all ---


@pytest.mark.parametrize("n", [1, 2, 7, 30])
async def test_a_shared_parent_runs_once_for_n_holders(
    device: na.Device, policy: na.SchedulingPolicy, n: int
) -> None:
    z = await na.zeros(4)
    await add_one(z)
    before = counters()
    op = add_one(z).output().shared()
    holders = [op.then(na.value).schedule(policy) if i % 2 else op for i in range(n)]
    values = await na.gather(*holders)
    assert (counters() - before).launches == 1
    assert all(value is z for value in values)
    assert (await z.to_host()).tolist() == [2] * 4


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_zipped_and_unzipped_parts_run_once(
    device: na.Device, policy: na.SchedulingPolicy, order: tuple[int, int]
) -> None:
    tensors = [await na.zeros(4), await na.zeros(4)]
    await add_one(tensors[0])
    before = counters()
    halves = na.zip(*(add_one(t).output() for t in tensors)).unzip()
    again = na.zip(*(half.then(lambda t: add_one(t)).output() for half in halves)).unzip()
    for i in order:
        assert await again[i].schedule(policy) is tensors[i]
    assert (counters() - before).launches == 4
    assert [(await t.to_host())[0] for t in tensors] == [3, 2]


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("what", ["shared", "unzip"])
def test_simultaneous_askers_run_a_slow_parent_once(
    device: na.Device, blocks: threading.Event, what: str, fails: bool
) -> None:
    runs: list[int] = []
    made, error = object(), LookupError("the parent's own")

    def slow(_: Any) -> Any:
        runs.append(threading.get_ident())
        assert blocks.wait(300), "the other thread does not wait for it"
        if fails:
            raise error
        return made, made

    parent = na.value(0).map(slow)
    asked = [parent.shared()] * 2 if what == "shared" else list(parent.unzip(2))
    together = threading.Barrier(2)

    def ask(op: na.DeviceOp[Any]) -> Any:
        together.wait(300)
        try:
            return op.sync()
        except LookupError as caught:
            return caught

    results = [begin(lambda op=op: ask(op)) for op in asked]
    got = [result() for result in results]
    assert len(runs) == 1
    if fails:
        assert got[0] is got[1] is error
    elif what == "shared":
        assert got[0] is got[1] and got[0] == (made, made)
    else:
        assert got == [made, made]


async def test_all_holders_get_the_parents_own_error(
    device: na.Device, policy: na.SchedulingPolicy
) -> None:
    error = LookupError("the parent's own")
    runs: list[int] = []

    def fails(_: Any) -> Any:
        runs.append(1)
        raise error

    op = na.value(1).map(fails).shared()
    halves = op.unzip(2)
    holders: list[Callable[[], Any]] = [
        lambda: op,
        lambda: op.then(na.value),
        lambda: na.zip(na.value(0), op),
        lambda: na.spawn(op, policy),
        lambda: halves[1],
        lambda: halves[0],
        lambda: add_one(op),
    ]
    for holder in holders:
        with pytest.raises(LookupError) as caught:
            await holder()
        assert caught.value is error
    assert runs == [1]


@pytest.mark.parametrize("how", ["returned", "run", "awaited", "through another"])
def test_a_shared_operation_in_its_closure_is_refused(device: na.Device, how: str) -> None:
    held: list[na.DeviceOp[Any]] = []
    if how in ("returned", "awaited"):
        op = na.value(1).then(lambda _: held[0]).shared()
    elif how == "run":
        op = na.value(1).then_unchecked(lambda _: na.value(held[0].sync())).shared()
    else:
        inner = na.value(2).then(lambda _: na.zip(na.value(3), held[0])).shared()
        op = na.value(1).then(lambda _: inner).shared()
    held.append(op)

    def use() -> Any:
        return na.run(waited(op)) if how == "awaited" else op.sync()

    for _ in range(2):
        with pytest.raises(ReentrancyError):
            in_time(use)
    assert na.value(3).sync() == 3


# --- one at a time on one thread ---

INNER: dict[str, Callable[[na.DeviceOp[Any], na.Stream], Any]] = {
    "sync": lambda op, stream: op.sync(),
    "sync_on": lambda op, stream: op.sync_on(stream),
    "async_on": lambda op, stream: op.async_on(stream),
    "spawn": lambda op, stream: na.spawn(op, stream),
    "future.sync": lambda op, stream: op.schedule(stream).sync(),
}
OUTER: dict[str, Callable[[na.DeviceOp[Any], na.Stream], Any]] = {
    **INNER,
    "await": lambda op, stream: na.run(waited(op.schedule(stream))),
}
CLOSURES: dict[str, Callable[[Callable[[], Any]], na.DeviceOp[Any]]] = {
    "then": lambda f: na.value(0).then(lambda _: na.value(f())),
    "then_with_context": lambda f: na.value(0).then_with_context(lambda c, _: na.value(f())),
    "map": lambda f: na.value(0).map(lambda _: f()),
    "inspect": lambda f: na.value(0).inspect(lambda _: f()),
    "defer": lambda f: na.defer(lambda: na.value(f())),
    "with_context": lambda f: na.with_context(lambda ctx: f()),
}


@pytest.mark.filterwarnings("ignore:.*scheduled but never awaited:RuntimeWarning")
@pytest.mark.parametrize("same", [True, False], ids=["same stream", "another stream"])
@pytest.mark.parametrize("outer", OUTER)
def test_running_an_operation_in_a_closure_is_refused(
    device: na.Device, stream: na.Stream, outer: str, same: bool
) -> None:
    inner_stream = stream if same else device.new_stream()
    for closure in CLOSURES.values():
        for run in INNER.values():
            inner = na.shared(7)
            op = closure(lambda run=run, inner=inner: run(inner, inner_stream))
            with pytest.raises(ReentrancyError, match="inside a closure"):
                value = OUTER[outer](op, stream)
                if isinstance(value, na.DeviceFuture):
                    value.sync()
            assert OUTER[outer](na.value(1), stream) is not None, "the next operation works"
            assert inner.sync() == 7


class Stop(BaseException):
    pass


@pytest.mark.parametrize(
    "error", [ValueError, KeyboardInterrupt, SystemExit, asyncio.CancelledError, Stop]
)
@pytest.mark.parametrize("way", INNER)
def test_after_any_exception_the_next_operation_works(
    device: na.Device, stream: na.Stream, way: str, error: type[BaseException]
) -> None:
    z = na.zeros(4).sync()

    def fail() -> Any:
        raise error("planted")

    for closure in CLOSURES.values():
        with pytest.raises(error):
            value = INNER[way](add_one(z).then(lambda _, c=closure: c(fail)), stream)
            if isinstance(value, na.DeviceFuture):
                value.sync()
        INNER[way](add_one(z), stream)
    stream.synchronize()
    assert z.to_host().sync().tolist() == [2 * len(CLOSURES)] * 4


async def test_after_a_failed_await_the_next_operation_works(device: na.Device) -> None:
    z = await na.zeros(4)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            await add_one(z).map(lambda _: 1 // 0)
        with pytest.raises(LaunchError):
            await saxpy[1, 5000](z, 1.0, np.ones(4, np.float32))
        await add_one(z)
    assert (await z.to_host()).tolist() == [6] * 4


def test_two_threads_enqueue_inside_each_others_closures(device: na.Device) -> None:
    together = threading.Barrier(2)

    def meet(n: int) -> int:
        together.wait(300)  # both are inside of a closure now
        return n

    def run(n: int) -> int:
        return na.value(n).map(meet).then(lambda v: na.full(2, v)).map(lambda _: n).sync()

    results = [begin(lambda n=n: run(n)) for n in (1, 2)]
    assert [result() for result in results] == [1, 2]


# --- what an operation is made of ---


def test_an_operation_is_explained_without_running(device: na.Device) -> None:
    before = counters()
    x = na.zeros(8).dup()
    op = saxpy(na.zeros(8).partition(4), 2.0, x).then(lambda r: add_one(r.z)).output().to_host()
    assert op.explain().splitlines() == [
        "saxpy(z, a, x)", "  z: zeros((8,))", "  .partition()", "  x: zeros((8,))", "  .dup()",
        ".then(<lambda>)", ".output()", ".to_host()",
    ]  # fmt: skip
    assert (counters() - before).launches == 0 and op._unused
    op.suppress_warning()


def test_a_drawing_leads_from_parts_to_users(device: na.Device) -> None:
    def same(t: na.Tensor) -> na.Tensor:
        return t

    same.__name__ = 'with "quotes"'
    op = na.zip(na.zeros(3).map(same), na.value(3))
    names = dict(re.findall(r'(n\d+) \[label="(.*)"\];', op.to_dot()))
    edges = [(names[a], names[b]) for a, b in re.findall(r"(n\d+) -> (n\d+);", op.to_dot())]
    whole = names["n0"]
    link = '.map(with \\"quotes\\")'
    assert whole.startswith("zip(") and ("0: zeros((3,))", link) in edges and (link, whole) in edges
    assert [b for _, b in edges].count(whole) == 2
    op.suppress_warning()
