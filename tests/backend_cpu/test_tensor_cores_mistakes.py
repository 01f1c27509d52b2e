"""Mistakes, five of each of seven kinds, planted into kernels for tensor cores that are right.

Each is an error, or a wrong result, on a machine without a GPU, and in whatever order threads run.
"""

from __future__ import annotations

import functools
import inspect
import linecache
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import NumbasyncError
from numbasync.testing import checked
from tests.backend_cpu import tensor_core_kernels as kernels
from tests.common import full

pytestmark = pytest.mark.usefixtures("cpu")
RNG = np.random.default_rng(3)
WRONG = "wrong result"


@dataclass(frozen=True)
class Job:
    """A launch of a kernel that is right, and what it is to give."""

    kernel: Any
    block: int
    shape: tuple[int, int]
    args: tuple[Any, ...]
    want: Any
    dtype: Any = np.float32
    out: Callable[[Any], Any] = field(default=lambda t: t)
    blocks: int = 1
    cluster: int = 1

    def result(self, kernel: Any) -> Any:
        """What `kernel` makes of the same arguments."""
        out = na.zeros(self.shape, self.dtype).sync()
        kernel[self.blocks, self.block](self.out(out), *self.args).sync()
        return out.to_host().sync()


def integers(*shape: int) -> Any:
    return RNG.integers(-3, 4, shape).astype(np.float16)


def boxed(x: Any, rows: int) -> Any:
    return na.tensor_map(na.from_host(x).sync() if isinstance(x, np.ndarray) else x, (rows, 64))


def product(a: Any, b: Any) -> Any:
    return a.astype(np.float32) @ b.astype(np.float32).T


def pipeline() -> Job:
    a, b = integers(128, 384), integers(64, 384)
    args = boxed(a, 128), boxed(b, 64), 384
    return Job(kernels.pipelined_matmul, 384, (128, 64), args, product(a, b))


def copied() -> Job:
    a, b = integers(32, 256), integers(32, 256)
    return Job(kernels.copied_matmul, 64, (32, 32), (a, b), product(a, b))


def tiles() -> Job:
    a, b = integers(64, 128), integers(32, 128)
    return Job(kernels.copied_tiles_matmul, 128, (64, 32), (a, b), product(a, b))


def passed() -> Job:
    x = integers(64, 64)
    return Job(kernels.passed_on, 32, (64, 64), (x,), x, np.float16, lambda t: boxed(t, 16))


def attention() -> Job:
    q, k, v = (integers(n, 64) for n in (64, 32, 32))
    scores = 0.125 * product(q, k)
    powers = 2 ** (scores - scores.max(1, keepdims=True))
    want = powers / powers.sum(1, keepdims=True) @ v.astype(np.float32)
    return Job(kernels.attention, 128, (64, 64), tuple(boxed(x, len(x)) for x in (q, k, v)), want)


def shared() -> Job:
    a, b = integers(128, 256), integers(64, 256)
    args = boxed(a, 64), boxed(b, 32), 256
    return Job(
        kernels.shared_matmul, 160, (128, 64), args, product(a, b), blocks=2, cluster=kernels.BLOCKS
    )


def overlapping(layout: na.SharedLayout, **offsets: int) -> na.SharedLayout:
    """A layout with some of its arrays elsewhere."""
    arrays: dict[str, Any] = {
        a.name: a.declared if a.declared is not None else (a.dtype, a.shape) for a in layout.arrays
    }
    return na.shared_layout(offsets={**layout.offsets, **offsets}, union=True, **arrays)


FULL = "            tc.barrier_wait(PIPELINE.full, stage, phase)\n"
NEXT_STAGE = """                    stage += 1
                    if stage == STAGES:
                        stage = 0
                        phase ^= 1
"""
FENCES = "        tc.wait_copies(0)\n        tc.fence_async()\n"
# The kind, the launch, what is there, what is planted in its place, and what the error says.
MISTAKES: dict[str, list[tuple[Callable[[], Job], str, Any, str]]] = {
    "missing wait": [
        (pipeline, "    tc.barrier_wait(PIPELINE.full, stage, phase)", "    pass",
         "wgmma.* tile a that (load_tile.*barrier_wait of barrier full|nothing has written)"),
        (pipeline, "acc = tc.wgmma_wait(acc, 1)", "pass", "load_tile.*may still read: wgmma_wait"),
        (pipeline, "            acc = tc.wgmma_wait(acc, 0)", "            pass",
         "store, line .* wgmma, line .* wgmma_wait"),
        (copied, "tc.wait_copies(1)", "tc.wait_copies(2)",
         "load_a, line .* copy_async, line .* has not called wait_copies"),
        (passed, "            tc.wait_stores(1)\n", "",
         "copy_async, .*may still read: wait_stores"),
    ],
    "wrong phase": [
        (pipeline, "PIPELINE.empty, stage, phase ^ 1", "PIPELINE.empty, stage, phase",
         r"thread 0: waiting at .*barrier_wait, line \d+: barrier empty\[0\], parity 0: 0 of 2"),
        (pipeline, "PIPELINE.full, stage, phase)", "PIPELINE.full, stage, phase ^ 1)",
         "full.0., parity 1: 0 of 1 arrivals|wgmma.* tile a that nothing has written"),
        (pipeline, NEXT_STAGE, NEXT_STAGE.replace("phase ^= 1", "pass"),
         "load_tile.*tile a that load_tile.*barrier_wait of barrier full.0., parity 0"),
        (pipeline, "PIPELINE.empty, i, 2", "PIPELINE.empty, i, 1",
         "empty.0., parity 0: 0 of 1 arrivals"),
        (attention, "barrier_wait(LOOKED_UP.full, 1, 0)", "barrier_wait(LOOKED_UP.full, 1, 1)",
         "full.1., parity 1: 0 of 1 arrivals|wgmma_fragment.* tile v"),
    ],
    "missing fence": [
        (pipeline, "        tc.fence_barrier_init()\n", "", "load_tile.*fence_barrier_init"),
        (attention, "    cuda.syncthreads()\n", "", r"full\[0\] (may|is) not.*initialised"),
        (tiles, "        tc.fence_async()\n", "", "wgmma.*copy_async.*fence_async"),
        (tiles, FENCES, "        tc.fence_async()\n        tc.wait_copies(0)\n", "fence_async"),
        (passed, "        tc.fence_async()\n", "", "store_tile.*copy_async.*fence_async"),
    ],
    "swapped fragment": [
        (copied, "tc.load_a(COPIED.a,", "tc.load_a(COPIED.b,", WRONG),
        (copied, "COPIED.b, (stage, 0, k), 32", "COPIED.b, (stage, 0, 0), 32", WRONG),
        (copied, "COPIED.b, (stage, 0, k), 32", "COPIED.b, (stage, 0, 32), 32, True", WRONG),
        (copied, "tc.store(out, (warp_row, 0), acc)", "tc.store(out, (16 - warp_row, 0), acc)",
         WRONG),
        (attention, "LOOKED_UP.v, (0, 0), True", "LOOKED_UP.v, (0, 0)", "no operand of 64 rows"),
    ],
    "bad swizzle": [
        (copied, "tc.load_a(COPIED.a,", "tc.load_a(COPIED.plain_a,", WRONG),
        (copied, "tc.load_b(COPIED.b,", "tc.load_b(COPIED.plain_b,", WRONG),
        (copied, "tc.copy_async(COPIED.b,", "tc.copy_async(COPIED.plain_b,", WRONG),
        (tiles, "tc.copy_async(WHOLE.a,", "tc.copy_async(WHOLE.plain_a,", WRONG),
        (passed, "(step * 16, 0), PASSED.tile,", "(step * 16, 0), PASSED.plain,",
         "dtype and swizzle must agree"),
    ],
    "overlap": [
        (pipeline, "PIPELINE", overlapping(kernels.PIPELINE, b=24576),
         "load_tile.*tile a that load_tile"),
        (pipeline, "PIPELINE", overlapping(kernels.PIPELINE, full=1024),
         r"barrier full\[0\] have been written over, by load_tile, line"),
        (pipeline, "PIPELINE", overlapping(kernels.PIPELINE, empty=49152),
         r"bytes of barrier empty\[0\] are barrier full\[0\]"),
        (copied, "COPIED", overlapping(kernels.COPIED, b=4096), "tile a that copy_async"),
        (tiles, "WHOLE", overlapping(kernels.WHOLE, b=4096), "tile [ab] that copy_async"),
    ],
    "clusters": [
        (shared, "tc.cluster_sync()  # the first", "cuda.syncthreads()",
         r"load_tile.*full\[0\] of block \d (is not|may not be) initialised.*cluster_sync"),
        (shared, "tc.cluster_sync()  # the last", "pass",
         r"may end before barrier_arrive.*, of block \d .* at its barrier empty.*: cluster_sync"),
        (shared, "SHARED.empty, stage, block)", "SHARED.empty, stage)",
         r"load_tile, line \d+ writes bytes of tile b of block \d that load_(tile|b), line"),
        (shared, "SHARED.full, stage, 3)", "SHARED.full, stage, 1)",
         r"thread of the cluster.* block 1:.*parity 0: 1 of 1 arrivals, 8,192 of 16,384 bytes"),
        (shared, "SHARED.full, stage, 3)", "SHARED.full, stage, 7)",
         "load_tile, line .*: mask 0x7 in a cluster of 2 blocks"),
    ],
}  # fmt: skip
ALL = [(kind, i, *mistake) for kind, list_ in MISTAKES.items() for i, mistake in enumerate(list_)]


@functools.cache  # for each order of threads
def planted(kernel: Any, old: str, new: Any, cluster: int) -> Any:
    """A kernel with another text in the place of `old`; or with another value of that name."""
    function = kernel.kernel.py_func
    source = inspect.getsource(function).split("@cuda.jit\n")[1]
    names = dict(function.__globals__)
    if isinstance(new, str):
        assert source.count(old) == 1, source.count(old)
        source = source.replace(old, new)
    else:
        names[old] = new
    file = f"<planted {function.__name__}, {hash((old, new))}>"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    exec(compile(source, file, "exec"), names)
    return na.launcher(cluster=cluster)(cuda.jit(names[function.__name__]))


@pytest.mark.parametrize("job", [pipeline, copied, tiles, passed, attention, shared])
def test_without_a_mistake_the_result_is_right(job: Callable[[], Job]) -> None:
    made = job()
    np.testing.assert_allclose(made.result(made.kernel), made.want, atol=4e-3)


def test_there_are_five_of_each_kind() -> None:
    assert [len(mistakes) for mistakes in MISTAKES.values()] == [5] * 7


@pytest.mark.parametrize("order", ["forward", full("reverse")])
@pytest.mark.parametrize(
    ("kind", "number", "job", "old", "new", "told"),
    [case if case[1] < 2 else full(*case) for case in ALL],
    ids=lambda v: v if v in MISTAKES else None,
)
def test_mistakes_are_caught(
    kind: str, number: int, job: Callable[[], Job], old: str, new: Any, told: str, order: Any
) -> None:
    made = job()
    kernel = planted(made.kernel, old, new, made.cluster)
    with checked(na.devices("cpu")[0], order=order):
        if told == WRONG:
            assert not np.allclose(made.result(kernel), made.want, atol=4e-3)
            return
        with pytest.raises(NumbasyncError, match=f"(?s){told}"):
            made.result(kernel)
