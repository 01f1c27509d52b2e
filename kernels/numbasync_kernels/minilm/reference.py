"""The same network by NumPy, in float64, a sentence at a time: no padding, no mask, no batch.

Written from the description of the model, and not from the kernels' own references.
Sources: J. Devlin et al., BERT, arXiv:1810.04805, 2018; N. Reimers and I. Gurevych,
Sentence-BERT, arXiv:1908.10084, 2019.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from numbasync_kernels.minilm.text import Batch
from numbasync_kernels.minilm.weights import Weights

Array = np.ndarray[Any, Any]
_erf = np.vectorize(math.erf, otypes=[np.float64])


def embeddings(weights: Weights, batch: Batch) -> Array:
    """Unit vectors of the sentences; shape ``(sentences, width)``, float64."""
    lengths = batch.mask.sum(axis=1)
    return np.stack([_embed(weights, row[:n]) for row, n in zip(batch.ids, lengths, strict=True)])


def _embed(weights: Weights, ids: Array) -> Array:
    config = weights.config
    x = (
        _wide(weights, "embeddings.word_embeddings.weight")[ids]
        + _wide(weights, "embeddings.position_embeddings.weight")[: len(ids)]
        + _wide(weights, "embeddings.token_type_embeddings.weight")[0]
    )
    x = _norm(weights, "embeddings.LayerNorm", x)
    for i in range(config.layers):
        layer = f"encoder.layer.{i}"
        q, k, v = (
            _dense(weights, f"{layer}.attention.self.{part}", x)
            .reshape(len(ids), config.heads, -1)
            .swapaxes(0, 1)
            for part in ("query", "key", "value")
        )
        scores = q @ k.swapaxes(1, 2) / math.sqrt(q.shape[2])
        chances = np.exp(scores - scores.max(axis=2, keepdims=True))
        chances /= chances.sum(axis=2, keepdims=True)
        mixed = (chances @ v).swapaxes(0, 1).reshape(x.shape)
        mixed = _dense(weights, f"{layer}.attention.output.dense", mixed)
        x = _norm(weights, f"{layer}.attention.output.LayerNorm", x + mixed)
        inner = _dense(weights, f"{layer}.intermediate.dense", x)
        inner = inner * (1 + _erf(inner / math.sqrt(2))) / 2
        x = _norm(
            weights,
            f"{layer}.output.LayerNorm",
            x + _dense(weights, f"{layer}.output.dense", inner),
        )
    mean = x.mean(axis=0)
    unit: Array = mean / np.linalg.norm(mean)
    return unit


def _wide(weights: Weights, name: str) -> Array:
    return weights[name].astype(np.float64)


def _dense(weights: Weights, name: str, x: Array) -> Array:
    product: Array = x @ _wide(weights, f"{name}.weight").T + _wide(weights, f"{name}.bias")
    return product


def _norm(weights: Weights, name: str, x: Array) -> Array:
    away = x - x.mean(axis=1, keepdims=True)
    spread = np.sqrt(np.mean(away**2, axis=1, keepdims=True) + weights.config.eps)
    result: Array = away / spread * weights[f"{name}.weight"] + weights[f"{name}.bias"]
    return result
