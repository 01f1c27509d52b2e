"""The first operation of a process: what takes long of it holds no event loop."""

from __future__ import annotations

import os
import subprocess
import sys

import numbasync as na

# In a process of its own: who imports what, and how often the loop turns meanwhile.
PROGRAM = """
import asyncio, sys, threading

class Noting:
    by_thread = {}
    def find_spec(self, name, path=None, target=None):
        self.by_thread.setdefault(threading.get_ident(), []).append(name)

import numbasync as na
sys.meta_path.insert(0, Noting())

async def main():
    turns = 0
    async def turn():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)
    turning = asyncio.ensure_future(turn())
    await asyncio.sleep(0)
    assert turns == 1 and "numba" not in sys.modules
    z = await na.zeros(8)
    assert "numba" in sys.modules and turns > 20, turns
    assert (await z.to_host()).sum() == 0
    here, turns = threading.get_ident(), 0
    assert not Noting.by_thread.get(here), Noting.by_thread[here]
    from tests.common import add_one, saxpy
    Noting.by_thread.clear()
    await na.warm_up(add_one, saxpy.compile(z, 2.0, na.meta(8)), add_one.compile(z))
    assert turns > 20, turns
    compiled = na.compile_count()
    assert not Noting.by_thread.get(here), Noting.by_thread[here]
    Noting.by_thread.clear()
    await saxpy(z, 2.0, await na.ones(8))
    await add_one(z)
    await na.gather(na.fill(z[::2], 1), z.dup(), na.arange(3), na.convert(z, "int32"))
    assert (await z.to_host()).sum() == 16
    assert not Noting.by_thread and na.compile_count() == compiled
    b, states = na.CommandBatch(), na.random_states(8, 1)
    b.scale(b.upload([1.0, 2.0]), 2.0), na.elementwise, na.autotune, na.TuningResult
    states.suppress_warning()
    assert not Noting.by_thread, Noting.by_thread
    turning.cancel()

asyncio.run(main())
"""


def test_a_processs_first_operation_lets_loops_turn(device: na.Device) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "NUMBASYNC_DEVICE": device.kind}, capture_output=True, text=True,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
