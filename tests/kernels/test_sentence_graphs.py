"""The example's network as a graph: what it replays is what its launches compute."""

from __future__ import annotations

import numpy as np

import numbasync as na
from numbasync.testing import counters
from numbasync_kernels.minilm import reference, weights
from numbasync_kernels.minilm.encoder import Encoder
from numbasync_kernels.minilm.text import batch

BOUND = 2e-6  # the example's
TEXTS = ["one", "two words", "a rather longer sentence of seven words", "four words make this"]
SMALL = weights.made_up()


def test_a_graph_replays_batch_after_batch(device: na.Device) -> None:
    """One graph, new input by `update` each time; a replay gives its own batch's vectors."""
    batches = [batch(TEXTS[i:] + TEXTS[:i], SMALL) for i in range(4)]

    async def main() -> None:
        encoder = await Encoder.create(SMALL, *batches[0].ids.shape)
        graph = encoder.recorded(await na.Stream.create(device))
        for inputs in (*batches, *batches):
            got = await encoder.replayed(graph, inputs)
            assert np.abs(got - reference.embeddings(SMALL, inputs)).max() <= BOUND
            np.testing.assert_array_equal(got, await encoder.chained(inputs))

    na.run(main())


def test_a_graph_is_the_launches_and_nothing_else(device: na.Device) -> None:
    inputs = batch(TEXTS, SMALL)

    async def main() -> None:
        encoder = await Encoder.create(SMALL, *inputs.ids.shape)
        await na.fill(encoder.embeddings, np.nan)
        graph = encoder.recorded(await na.Stream.create(device))
        assert [node.kind for node in graph.nodes] == ["kernel"] * (4 + 7 * SMALL.config.layers)
        assert np.isnan(await encoder.embeddings.to_host()).all()  # recorded, not run

        await encoder.replayed(graph, inputs)
        before = counters()
        await graph.launch()
        after = counters()
        assert after.allocations == before.allocations

    na.run(main())


def test_a_chain_of_equal_launches_is_captured(device: na.Device) -> None:
    inputs = batch(TEXTS, SMALL)

    async def main() -> None:
        encoder = await Encoder.create(SMALL, *inputs.ids.shape)
        want = await encoder.eager(inputs)
        graph = na.zip(*encoder.launches()).graph_on(await na.Stream.create(device))
        assert graph.topology() == encoder.recorded(graph.stream).topology()
        await na.fill(encoder.embeddings, np.nan)
        await graph.launch()
        np.testing.assert_array_equal(await encoder.embeddings.to_host(), want)

    na.run(main())


def test_a_graph_outlives_the_encoder(device: na.Device) -> None:
    inputs = batch(TEXTS, SMALL)

    async def recorded() -> tuple[na.CudaGraph[None], na.Tensor]:
        encoder = await Encoder.create(SMALL, *inputs.ids.shape)
        graph = encoder.recorded(await na.Stream.create(device))
        for copy in encoder.inputs(inputs):
            graph.update(copy)
        return graph, encoder.embeddings

    async def main() -> None:
        graph, embeddings = await recorded()
        rows = inputs.ids.size
        # What the encoder's buffers were made of, were they free.
        poison = [await na.full((rows, 4 * 64), np.nan) for _ in range(8)]
        await graph.launch()
        want = reference.embeddings(SMALL, inputs)
        assert np.abs(await embeddings.to_host() - want).max() <= BOUND
        assert len(poison) == 8

    na.run(main())
