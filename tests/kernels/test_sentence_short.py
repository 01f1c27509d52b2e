"""The network of the sentence embeddings in float16, by both kinds of attention."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import numbasync as na
from numbasync_kernels.minilm import encoder, reference, weights
from numbasync_kernels.minilm.text import batch
from tests.common import full

TEXTS = ["one", "two words", "a rather longer sentence of seven words"]
# One layer, whose heads have 32 features.
NETWORK = weights.made_up(replace(weights.SMALL, layers=1, heads=2, inner=64, vocabulary=100))


@pytest.mark.full
@pytest.mark.parametrize(
    "kinds", [full(()), ("warpgroups", "emulated")], ids=["threads", "tensor cores"]
)
def test_float16_is_near_the_reference(
    device: na.Device, monkeypatch: pytest.MonkeyPatch, kinds: tuple[str, ...]
) -> None:
    if kinds and device.limits.tensor_cores not in kinds:
        pytest.skip("wgmma needs compute capability 9.0")
    monkeypatch.setattr(encoder, "TENSOR_CORES", kinds)
    inputs = batch(TEXTS, NETWORK)

    async def main() -> np.ndarray:
        sentences, length = inputs.ids.shape
        network = await encoder.Encoder.create(NETWORK, sentences, length, np.float16)
        return await network.chained(inputs)

    got, want = na.run(main()), reference.embeddings(NETWORK, inputs)
    assert got.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, rtol=1e-6)
    assert np.abs(got - want).max() <= 1e-3
    assert ((got * want).sum(axis=1) > 0.99999).all()
