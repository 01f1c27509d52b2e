"""`numbasync bench kernels`: a whole network, all-MiniLM-L6, of random weights, a batch at a time.

Its launches are submitted one by one, or replayed as a graph; PyTorch computes the same network
from the same weights. On the CPU device the network is small, and the table shows that the suite
runs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

import numbasync as na
from benchmarks import report
from benchmarks.measure import Case, drained
from benchmarks.peer_registry import has_own_processor
from benchmarks.tables import table
from benchmarks.targets import Target
from numbasync.device.device import Device

PASSES = 20  # of a round
EVERY = 5  # each so manieth sentence is compared with the reference
COSINE = {"float16": 0.999, "float32": 0.999999}
METHOD = (
    "{what}: a pass of all-MiniLM-L6 with random weights, of 32 sentences of 16 to 128 tokens, "
    "padded to 128, in a round of {calls} passes, submitted one after the other, and the wait for "
    "the device."
)


class Work(NamedTuple):
    """A network's weights, and sentences.

    Attributes:
        weights: a `Weights` of `numbasync_kernels.minilm`.
        batch: a `Batch`.
    """

    weights: Any
    batch: Any

    def check(self, dtype: str, got: np.ndarray[Any, Any]) -> None:
        """Compare some sentences with float64.

        Raises:
            AssertionError: a vector points elsewhere.
        """
        want = _expected(is_small=len(got) < 32)
        cosines = (got[::EVERY].astype(np.float64) * want).sum(axis=1)
        if not cosines.min() > COSINE[dtype]:
            raise AssertionError(f"{dtype}: a cosine of {cosines.min():.6f} with the reference")


@cache
def work(is_small: bool = False) -> Work:
    """All-MiniLM-L6 and 32 sentences; or a small network, and 4."""
    from numbasync_kernels.minilm.text import Batch
    from numbasync_kernels.minilm.weights import MINILM, SMALL, made_up

    sentences, tokens = (4, 12) if is_small else (32, 128)
    weights = made_up(SMALL if is_small else MINILM)
    rng = np.random.default_rng(0)
    lengths = rng.integers(tokens // 8, tokens + 1, sentences)
    lengths[0] = tokens
    mask = (np.arange(tokens) < lengths[:, None]).astype(np.int32)
    ids = rng.integers(0, weights.config.vocabulary, mask.shape).astype(np.int32)
    return Work(weights, Batch(ids * mask, mask))


@cache
def _expected(is_small: bool) -> np.ndarray[Any, Any]:
    from numbasync_kernels.minilm import reference
    from numbasync_kernels.minilm.text import Batch

    weights, batch = work(is_small)
    return reference.embeddings(weights, Batch(batch.ids[::EVERY], batch.mask[::EVERY]))


async def tables(device: Device, rounds: int) -> list[report.Record]:
    cases = [case for dtype in COSINE for case in await _cases(device, dtype)]
    targets = [
        Target(f"{ours} / {base}", f"numbasync: {ours}", f"PyTorch: {base}", 1.0, 0.8)
        for dtype in COSINE
        for ours, base in (
            (f"{dtype}, graph", f"{dtype}, CUDA graph"), (f"{dtype}, graph", f"{dtype}, eager"),
            (f"{dtype}, submitted", f"{dtype}, eager"),
        )
    ]  # fmt: skip
    return [
        await table(
            device, rounds, "embeddings", "sentence embeddings", cases, calls=PASSES,
            method=METHOD, base="PyTorch: float16, eager", targets=targets,
            unit="microseconds a pass",
        )
    ]  # fmt: skip


async def _cases(device: Device, dtype: str) -> list[Case]:
    from numbasync_kernels.minilm.encoder import Encoder

    todo = work(not has_own_processor(device))
    stream = device.new_stream()
    sentences, tokens = todo.batch.ids.shape
    # Of each its own memory: launches on that of a graph are ordered with its replays, for longer.
    encoder, recorded = [
        await Encoder.create(todo.weights, sentences, tokens, np.dtype(dtype)) for _ in range(2)
    ]
    for copy in (*encoder.inputs(todo.batch), *recorded.inputs(todo.batch)):
        await copy
    graph = recorded.recorded(stream)

    def submit() -> None:
        for launch in encoder.launches():
            launch.async_on(stream)

    def replay() -> None:
        graph.launch().async_on(stream)

    def case(way: str, encoder: Encoder, run: Callable[[], None]) -> Case:
        async def check() -> None:
            await na.fill(encoder.embeddings, np.nan)
            run()
            todo.check(dtype, await encoder.embeddings.to_host().schedule(stream))

        return Case(f"numbasync: {dtype}, {way}", drained(run, stream.synchronize), check)

    return [case("submitted", encoder, submit), case("graph", recorded, replay)]
