"""Short launches on the CPU device: what the submitting thread runs itself, on both ways."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync import native, testing
from numbasync.backend.cpu.kernel.memory import _own
from numbasync.backend.cpu.runtime.workers import Engine, changed, state
from numbasync.backend.protocols import counters
from numbasync.errors import OutOfBoundsError, ReentrancyError
from numbasync.ops import reentrancy
from tests.common import add_one
from tests.waiting import begin

pytestmark = pytest.mark.skipif(native.core is None, reason="the compiled core is not installed")
ROOT = Path(__file__).parents[2]


@na.launcher
@cuda.jit
def write_at(z: na.KernelOutput, i: Any) -> None:
    z[i] += 1


@na.launcher
@cuda.jit
def with_array(z: na.KernelOutput) -> None:
    held = cuda.shared.array(4096, np.float32)
    held[4095] = 1
    z[0] += held[4095]


@contextmanager
def nothing_begins(how: str, device: na.Device, stream: na.Stream) -> Iterator[None]:
    """Let no launch run on the submitting thread at once, for this reason."""
    backend: Any = stream.backend
    engine = backend.engine
    if how == "gate":
        release = stream.backend.hold()
        yield
        release()
    elif how == "seeded":
        with testing.seeded(device, 1):
            yield
    else:
        holder, name = (Engine, "is_forking") if how == "fork" else (engine, "stopping")
        setattr(holder, name, True)
        try:
            yield
        finally:
            setattr(holder, name, False)
            with changed:
                changed.notify_all()


@pytest.fixture
def stream(cpu: na.Device) -> na.Stream:
    return cpu.new_stream()


def test_it_has_run_when_it_is_submitted(stream: na.Stream, on: bool) -> None:
    z = na.zeros(8).sync_on(stream)
    add_one(z).sync_on(stream)
    before = counters.copy()
    for _ in range(3):
        add_one(z).async_on(stream)
        backend: Any = stream.backend
        assert backend.spin_poll() and not backend.engine.is_at_work
    assert (counters - before).launches == 3
    assert z.to_host().sync_on(stream).tolist() == [4.0] * 8
    stream.synchronize()


@pytest.mark.parametrize("how", ["gate", "seeded", "fork", "stop"])
def test_it_does_not_run_before_it_may(
    cpu: na.Device, stream: na.Stream, on: bool, how: str
) -> None:
    z = na.zeros(8).sync_on(stream)
    add_one(z).sync_on(stream)
    memory = z.handle.array
    with nothing_begins(how, cpu, stream):
        add_one(z).async_on(stream)
        assert memory.tolist() == [1.0] * 8
        assert not stream.backend.spin_poll()
        if how == "seeded":
            stream.synchronize()
    if how != "stop":
        stream.synchronize()
        assert memory.tolist() == [2.0] * 8


def test_an_error_is_of_its_launch_alone(stream: na.Stream, on: bool) -> None:
    z = na.zeros(8).sync_on(stream)
    write_at[1, 1](z, 1).sync_on(stream)
    for _ in range(3):
        with pytest.raises(OutOfBoundsError, match=r"index 8[\s\S]*\nIn write_at"):
            write_at[1, 1](z, 8).sync_on(stream)
        write_at[1, 1](z, 1).sync_on(stream)
    assert z.to_host().sync_on(stream).tolist() == [0, 4, 0, 0, 0, 0, 0, 0]
    backend: Any = stream.backend
    assert not backend.engine.is_at_work


def test_an_error_skips_the_rest_of_its_operation(stream: na.Stream, on: bool) -> None:
    z = na.zeros(8).sync_on(stream)
    write_at[1, 1](z, 1).sync_on(stream)
    with pytest.raises(OutOfBoundsError):
        na.zip(write_at[1, 1](z, 2), write_at[1, 1](z, 8), write_at[1, 1](z, 3)).sync_on(stream)
    assert z.to_host().sync_on(stream).tolist() == [0, 1, 1, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("how", ["gate", "seeded"])
def test_an_error_of_one_that_runs_later(
    cpu: na.Device, stream: na.Stream, on: bool, how: str
) -> None:
    z = na.zeros(8).sync_on(stream)
    write_at[1, 1](z, 1).sync_on(stream)
    with nothing_begins(how, cpu, stream):
        write_at[1, 1](z, 8).async_on(stream)
        na.zip(write_at[1, 1](z, 2), write_at[1, 1](z, 3)).async_on(stream)
        if how == "seeded":
            with pytest.raises(OutOfBoundsError):
                stream.synchronize()
    if how == "gate":
        with pytest.raises(OutOfBoundsError):
            stream.synchronize()
    assert z.to_host().sync_on(stream).tolist() == [0, 1, 1, 1, 0, 0, 0, 0]


def test_steps_are_the_same_on_both_ways(cpu: na.Device, stream: na.Stream) -> None:
    def stepped() -> tuple[int, int, int]:
        before = counters.copy()
        device: Any = cpu.backend
        with device.seeded(3) as stepper:
            z = na.zeros(8).sync_on(stream)
            for count in range(5):
                for _ in range(count):
                    add_one(z).async_on(stream)
                stream.synchronize()
            assert z.to_host().sync_on(stream).tolist() == [10.0] * 8
            return stepper.steps, stepper.draw(1 << 30), (counters - before).launches

    add_one(na.zeros(8).sync_on(stream)).sync_on(stream)
    results = []
    for way in (False, True):
        assert native.switch(way) is way
        results.append(stepped())
    assert results[0] == results[1]


def test_checks_are_made(cpu: na.Device, stream: na.Stream, on: bool) -> None:
    z = na.zeros(8).sync_on(stream)
    write_at[1, 1](z, 1).sync_on(stream)
    with testing.checked(cpu), pytest.raises(Exception, match="write_at"):
        write_at[1, 2](z, 1).sync_on(stream)  # two threads, one element


def test_memory_of_a_block_grows(stream: na.Stream, on: bool) -> None:
    z = na.zeros(8).sync_on(stream)
    sizes: list[int] = []

    def run() -> None:  # on a thread without memory
        for _ in range(2):
            for launch in (write_at[1, 1](z, 1), with_array[1, 1](z)):
                launch.sync_on(stream)
                sizes.append(_own.memory.each)

    write_at[1, 1](z, 1).sync_on(stream)
    with_array[1, 1](z).sync_on(stream)
    begin(run)()
    small, large = sizes[:2]
    assert small < 4 * 4096 <= large and sizes[2:] == [large, large]
    assert z.to_host().sync_on(stream).tolist()[:2] == [3, 3]


PROGRAM = """
import threading
import numbasync as na
from numbasync import native
from tests.common import add_one

stream = na.devices("cpu")[0].new_stream()
z = na.zeros(8).sync_on(stream)
backend = stream.backend
for on in (False, True):
    native.switch(on)
    add_one(z).sync_on(stream)
    ran = threading.Event()
    shorts = {plan.work.prepared for plan in add_one.planner.plans.values()}
    before = [(short, short._entry_point) for short in shorts]
    for short, run in before:
        def interrupted(*args, run=run, ran=ran):
            backend.push(ran.set)  # as another thread does
            run(*args)

        short._entry_point = interrupted
    add_one(z).async_on(stream)
    print(ran.wait(300), z.to_host().sync_on(stream)[0])
    for short, run in before:
        short._entry_point = run
"""


def test_what_is_enqueued_while_it_runs_goes_on(python: str, python_env: dict[str, str]) -> None:
    """In a process without workers, which would look by themselves; both ways."""
    command = [python, "-c", PROGRAM]
    env = {**python_env, "NUMBASYNC_DEVICE": "cpu"}
    result = subprocess.run(
        command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    assert (result.stdout, result.stderr) == ("True 2.0\nTrue 4.0\n", "")


def test_it_holds_the_lock_of_all_streams(stream: na.Stream, on: bool) -> None:
    """So there is nothing else to give back, which ^C could come before."""
    z = na.zeros(8).sync_on(stream)
    add_one(z).sync_on(stream)
    held: list[bool] = []
    with entry_point(lambda: held.append(state._is_owned())):  # type: ignore[attr-defined]
        add_one(z).async_on(stream)
    assert held == [True]
    assert not state._is_owned()  # type: ignore[attr-defined]


def test_what_stops_threads_is_no_works_error(cpu: na.Device, stream: na.Stream, on: bool) -> None:
    z = na.zeros(8).sync_on(stream)
    add_one(z).sync_on(stream)
    with entry_point(stop), pytest.raises(KeyboardInterrupt):
        add_one(z).async_on(stream)
    stream.synchronize()
    assert cpu.in_flight == (0, 0)
    add_one(z).sync_on(stream)
    assert z.to_host().sync_on(stream)[0] == 2


def test_a_stopped_step_fails_its_operation_alone(
    cpu: na.Device, stream: na.Stream, on: bool
) -> None:
    z = na.zeros(8).sync_on(stream)
    add_one(z).sync_on(stream)
    with testing.seeded(cpu, 1):
        with entry_point(stop):
            first = na.spawn(add_one(z), stream)
            with pytest.raises(KeyboardInterrupt):
                stream.synchronize()
        na.spawn(add_one(z), stream).sync()
        with pytest.raises(KeyboardInterrupt):
            first.sync()
        assert z.to_host().sync_on(stream)[0] == 2
    assert z.to_host().sync_on(stream)[0] == 2
    assert cpu.in_flight == (0, 0)


def test_a_region_ends_with_its_last_reference(on: bool) -> None:
    """As a scope's, whose block did not begin."""
    region = reentrancy.exclusive.region()
    region.__enter__()
    with pytest.raises(ReentrancyError):
        na.value(1).sync()
    del region
    assert na.value(1).sync() == 1
    with reentrancy.exclusive.region(), reentrancy.unlocked():
        assert na.value(1).sync() == 1
    assert na.value(1).sync() == 1


def stop() -> None:
    raise KeyboardInterrupt


@contextmanager
def entry_point(call: Callable[[], object]) -> Iterator[None]:
    """`call` comes before each short launch of `add_one`."""
    shorts: list[Any] = list({plan.work.prepared for plan in add_one.planner.plans.values()})
    shorts = [short for short in shorts if short is not None]
    before = [short._entry_point for short in shorts]

    def calling(run: Any) -> Any:
        def entry(*args: Any) -> None:
            call()
            run(*args)

        return entry

    for short, run in zip(shorts, before, strict=True):
        short._entry_point = calling(run)
    try:
        yield
    finally:
        for short, run in zip(shorts, before, strict=True):
            short._entry_point = run
