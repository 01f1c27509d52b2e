"""Sentences to numbers, padded to one length."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from numbasync_kernels.minilm.weights import INSTALL, NoWeightsError, Weights

MOST_TOKENS = 256  # what the model was trained for; the rest of a sentence is cut off
ROUNDED_TO = 4  # tokens; a graph is of one shape, and serves all batches that round to it


@dataclass(frozen=True)
class Batch:
    """Sentences as the encoder takes them.

    Attributes:
        ids: shape ``(sentences, tokens)``, int32; 0 behind the end of a sentence.
        mask: the same shape; 1 where there is a token, 0 behind.
    """

    ids: np.ndarray[Any, Any]
    mask: np.ndarray[Any, Any]


def batch(sentences: Sequence[str], weights: Weights) -> Batch:
    """Sentences as numbers, by the model's own tokenizer.

    Made-up weights have none: there, words become numbers by their checksum.

    Raises:
        NoWeightsError: the package `tokenizers` is not installed.
    """
    numbers = _tokenized(sentences, weights) if weights.tokenizer else _summed(sentences, weights)
    longest = max(len(row) for row in numbers)
    tokens = -(-longest // ROUNDED_TO) * ROUNDED_TO
    ids = np.zeros((len(numbers), tokens), np.int32)
    mask = np.zeros_like(ids)
    for i, row in enumerate(numbers):
        ids[i, : len(row)] = row
        mask[i, : len(row)] = 1
    return Batch(ids, mask)


def _tokenized(sentences: Sequence[str], weights: Weights) -> list[list[int]]:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise NoWeightsError(f"The tokenizer takes a package:\n\n{INSTALL}") from None
    tokenizer = Tokenizer.from_str(weights.tokenizer)
    tokenizer.no_padding()
    tokenizer.enable_truncation(MOST_TOKENS)
    return [encoding.ids for encoding in tokenizer.encode_batch(list(sentences))]


def _summed(sentences: Sequence[str], weights: Weights) -> list[list[int]]:
    config = weights.config
    return [
        [zlib.crc32(word.encode()) % config.vocabulary for word in ("", *sentence.split())][
            : min(MOST_TOKENS, config.positions)
        ]
        for sentence in sentences
    ]
