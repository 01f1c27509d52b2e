"""Plain arrays that share bytes with tiles: what threads write to them, tiles read."""

from __future__ import annotations

import inspect
import linecache
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync import tensor_cores as tc
from numbasync.errors import DataRaceError, UninitialisedReadError

pytestmark = pytest.mark.usefixtures("cpu")
LAYOUT = na.shared_layout(
    tile=tc.tile(np.float16, (16, 32), 0), held=(np.float16, (16, 32)), full=tc.barriers(1),
    sums=(np.float32, 4), offsets={"held": 0, "full": 1024}, union=True,
)  # fmt: skip


def stores(target: na.KernelOutput):
    """Threads write a tile, which one of them then stores, twice."""
    tid = cuda.threadIdx.x
    for step in range(2):
        for row in range(16):
            LAYOUT.held[row, tid] = row * 32 + tid + step
        tc.fence_async()
        cuda.syncthreads()
        if tid == 0:
            tc.store_tile(target, (16 * step, 0), LAYOUT.tile, (0, 0))
            tc.commit_stores()
            tc.wait_stores(0)
        cuda.syncthreads()


def loads(target: na.KernelOutput, source: na.KernelInput):
    """Threads read what a copy brings; and count in a shared array."""
    tid = cuda.threadIdx.x
    if tid == 0:
        tc.barrier_init(LAYOUT.full, 0, 1)
        tc.fence_barrier_init()
        LAYOUT.sums[1] = 0
    cuda.syncthreads()
    if tid == 0:
        tc.barrier_expect(LAYOUT.full, 0, 1024)
        tc.load_tile(LAYOUT.tile, (0, 0), source, (0, 0), LAYOUT.full, 0)
    tc.barrier_wait(LAYOUT.full, 0, 0)
    row = LAYOUT.held[tid // 2]
    cuda.atomic.add(LAYOUT.sums, 1, row[tid])
    cuda.syncthreads()
    target[tid] = LAYOUT.sums[1]


def launcher(kernel: Any, left_out: str = "") -> Any:
    """A kernel, or one without a line of it."""
    source = inspect.getsource(kernel)
    assert left_out in source
    source = source.replace(left_out, "pass", 1) if left_out else source
    file = f"<{kernel.__name__} without {left_out}>"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    names = dict(globals())
    exec(compile(source, file, "exec"), names)
    return na.launcher(cuda.jit(names[kernel.__name__]))


def stored(left_out: str = "") -> Any:
    out = na.zeros((32, 32), np.float16).sync()
    launcher(stores, left_out)[1, 32](na.tensor_map(out, (16, 32), 0)).sync()
    return out.to_host().sync()


def loaded(left_out: str = "") -> Any:
    x, out = na.from_host(np.ones((16, 32), np.float16)).sync(), na.zeros(32).sync()
    launcher(loads, left_out)[1, 32](out, na.tensor_map(x, (16, 32), 0)).sync()
    return out.to_host().sync()


def test_what_threads_write_is_stored() -> None:
    want = np.arange(512).reshape(16, 32)
    np.testing.assert_array_equal(stored(), np.concatenate([want, want + 1]))


@pytest.mark.parametrize(
    ("left_out", "told"),
    [
        ("tc.fence_async()",
         "store_tile.* bytes of tile tile that a write to held, line .*fence_async follows it"),
        ("cuda.syncthreads()",
         "store_tile.* bytes of tile tile that (a write to held.*a barrier must|nothing has)"),
        ("tc.wait_stores(0)", "a write to held.* writes bytes .* that store_tile.*wait_stores"),
    ],
)  # fmt: skip
def test_writes_that_are_not_ordered(left_out: str, told: str) -> None:
    with pytest.raises((DataRaceError, UninitialisedReadError), match=told):
        stored(left_out)


def test_what_copies_bring_is_read() -> None:
    assert (loaded() == 32).all()
    with pytest.raises(DataRaceError, match=r"a read of held.*load_tile.*barrier_wait of barrier"):
        loaded("tc.barrier_wait(LAYOUT.full, 0, 0)")


def test_writes_that_are_forgotten_are_known_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numbasync.backend.cpu.interpreter.tensor_cores.accesses.MANY", 4)
    want = np.arange(512).reshape(16, 32)
    np.testing.assert_array_equal(stored(), np.concatenate([want, want + 1]))
