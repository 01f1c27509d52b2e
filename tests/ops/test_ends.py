"""What must hold at the end: of objects, of threads, of event loops, of the interpreter."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import inspect
import pkgutil
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

import numbasync as na
from numbasync.testing import Gate, settle
from tests import sessions
from tests.common import add_one, used, waited
from tests.waiting import LOOPS, begin, in_time, loops


def with_finaliser() -> Iterator[type]:
    """Every class of the package that has one; the CUDA backend's are left out, and what needs
    packages that are not installed.
    """
    needed = {"ray": ".ray", "numba_cuda_mlir": ".mlir_models"}
    others = ["cuda", *(name for of, name in needed.items() if not importlib.util.find_spec(of))]
    for module in pkgutil.walk_packages(na.__path__, "numbasync."):
        if any(part in module.name for part in others) or module.name.endswith("__main__"):
            continue
        for kind in vars(importlib.import_module(module.name)).values():
            mine = inspect.isclass(kind) and kind.__module__ == module.name
            if mine and hasattr(kind, "__del__"):
                yield kind


@pytest.mark.parametrize("kind", [*with_finaliser()], ids=lambda kind: kind.__name__)
def test_a_finaliser_never_raises(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", raised.append)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kind.__new__(kind)
        with pytest.raises(TypeError):
            kind(*range(20))
        gc.collect()
    assert raised == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@loops
def test_a_thread_ending_with_work_leaves_nothing(
    device: na.Device, stream: na.Stream, gate: Gate, loop: str
) -> None:
    add_one(na.zeros(2**18)).output().to_host().sync()
    start = used(device)
    held = [na.zeros(2**18).sync()]
    gate.close()

    async def main() -> None:
        na.spawn(add_one(held[0]), stream)
        asyncio.ensure_future(waited(na.zeros(2**18).schedule(stream)))  # noqa: RUF006
        asyncio.ensure_future(waited(na.spawn(add_one(held[0]), stream)))  # noqa: RUF006
        await settle(device)

    def work() -> None:
        mine = LOOPS[loop]()
        mine.set_exception_handler(lambda *_: None)  # tasks that were pending
        mine.run_until_complete(main())

    in_time(work)
    assert used(device) == start + 2 * 2**20
    later = na.spawn(add_one(held[0]).output().to_host(), device.new_stream())
    assert not later.done()
    gate.open()
    assert (later.sync() == 3).all()
    stream.synchronize()
    held.clear()
    del later
    assert used(device) == start


def test_memory_held_last_by_ended_threads_returns(device: na.Device) -> None:
    start = used(device)
    made = threading.Barrier(3)
    held = threading.local()

    def work() -> None:
        held.tensor = na.zeros(2**18).sync()
        made.wait(300)
        made.wait(300)

    results = [begin(work) for _ in range(2)]
    made.wait(300)
    assert used(device) == start + 2 * 2**20
    made.wait(300)
    for result in results:
        result()
    assert used(device) == start


# --- the interpreter ---

# asyncio's own finaliser fails where the collector, which takes a cycle in any order, has ended the
# sockets of a loop before the loop.
BEGIN = """
import asyncio, logging, threading, warnings
del asyncio.BaseEventLoop.__del__
import numbasync as na
from numbasync.testing import gate
from tests.common import add_one, waited
logging.getLogger("asyncio").disabled = True
warnings.simplefilter("ignore", ResourceWarning)
warnings.simplefilter("ignore", RuntimeWarning)
device = na.default_device()
z = na.zeros(1000).sync()
add_one(z).sync()

async def leave():
    asyncio.ensure_future(waited(na.zeros(10)))
    for _ in range(200):
        na.spawn(add_one(z))
    asyncio.ensure_future(waited(na.spawn(add_one(z))))

def open_loop():
    asyncio.new_event_loop().run_until_complete(leave())

goes_on = threading.Event()

async def for_ever():
    while True:
        await add_one(z)
        goes_on.set()

def block_for_ever():
    while True:
        add_one(z).sync()
        goes_on.set()

class Holder:
    def __init__(self, *held):
        self.me, self.held = self, held
"""
ENDS = {
    "a loop that was dropped": "open_loop()",
    "the loop of a thread that has ended": (
        "t = threading.Thread(target=open_loop); t.start(); t.join()"
    ),
    "a thread that goes on awaiting": (
        "threading.Thread(target=lambda: na.run(for_ever()), daemon=True).start()\n"
        "assert goes_on.wait(300)"
    ),
    "a thread that goes on blocking": (
        "threading.Thread(target=block_for_ever, daemon=True).start()\nassert goes_on.wait(300)"
    ),
    "a stream that is held": (
        "stream = device.new_stream(); shut = gate(stream); shut.close();"
        " na.ones(1000).async_on(stream); na.spawn(na.zeros(1000), na.SingleStream(device));"
        " device.kind == 'cuda' and shut.open()"  # the driver waits for its queues at exit
    ),
    "everything in rings": (
        "Holder(z, z[1:], z.shared(), z.partition(4), device.new_stream(), device.new_event(),"
        " device.new_pool(), na.zeros(3), na.zeros(3).shared(), na.zeros(3).then(add_one),"
        " na.zip(na.zeros(3), na.ones(3)).unzip(), na.zeros(3).schedule(device.policy),"
        " na.spawn(add_one(z)), na.spawn(na.value(1).map(lambda _: 1 // 0)))"
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_the_interpreter_exits_cleanly_over(
    end: str, device: na.Device, python: str, python_env: dict[str, str]
) -> None:
    program = f"{BEGIN}\n{ENDS[end]}\nprint('end', flush=True)"
    env = {**python_env, "NUMBASYNC_DEVICE": device.kind}
    result = sessions.run_program(python, ["-c", program], env, seconds=600, is_of_ends=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, "end\n", "")
