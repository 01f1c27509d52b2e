"""Embedding: rows of three tables, added up."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import numbasync as na
from numbasync.kernel_names import cuda, float32
from numbasync_kernels.blocks import row_and_column
from numbasync_kernels.fits import FLOATS, INTEGERS, fits
from numbasync_kernels.nn.warp import WARP

TOKENS = 4  # of a block, a warp each
EACH = 4  # features of a thread
EMBEDDING_TILE = (1, TOKENS, EACH * WARP)
NOTHING = float32(math.nan)


@na.launcher(
    tile=EMBEDDING_TILE,
    axes=(2, 1, 0),
    threads=(WARP, TOKENS, 1),
    preconditions=[
        *fits("out", 3, FLOATS),
        *fits("words positions types", 2, FLOATS),
        *fits("ids kinds", 2, INTEGERS),
        "out.shape[0] == ids.shape[0]",
        "out.shape[1] == ids.shape[1]",
        "kinds.shape == ids.shape",
        "out.shape[1] <= positions.shape[0]",
        "words.shape[1] == out.shape[2]",
        "positions.shape[1] == out.shape[2]",
        "types.shape[1] == out.shape[2]",
    ],
)
@cuda.jit(cache=True)
def embedding(
    out: na.KernelOutput,
    ids: na.KernelInput,
    kinds: na.KernelInput,
    words: na.KernelInput,
    positions: na.KernelInput,
    types: na.KernelInput,
) -> None:
    """``out[s, t] = words[ids[s, t]] + positions[t] + types[kinds[s, t]]``.

    Args:
        out: shape ``(sentences, tokens, h)``. It and the tables are of float16, bfloat16 or
            float32.
        ids: shape ``(sentences, tokens)``, integers; which row of `words`.
        kinds: shape ``(sentences, tokens)``, integers; which row of `types` (BERT: 0 in a first
            sentence, 1 in a second).
        words: shape ``(vocabulary, h)``.
        positions: shape ``(at least tokens, h)``.
        types: shape ``(kinds, h)``.

    A number that is no row of its table makes the token NaN, on every device; memory outside of
    a table is not read. Reads 3n and writes n elements, n = sentences * tokens * h.

    Error bound: two additions, so 2 u of the sum of the three sizes, u = 2**-24, and half a unit
    of `out`.

    Examples:
        >>> from numbasync_kernels import nn
        >>> words = np.arange(8, dtype=np.float32).reshape(4, 2)
        >>> positions, types = np.zeros((3, 2), np.float32), np.full((2, 2), 10, np.float32)
        >>> ids, kinds = np.array([[3, 0]], np.int32), np.zeros((1, 2), np.int32)
        >>> out = await na.zeros((1, 2, 2))
        >>> looked_up = nn.embedding(
        ...     out.partition(nn.EMBEDDING_TILE), ids, kinds, words, positions, types
        ... )
        >>> _ = await looked_up
        >>> (await out.to_host()).tolist()
        [[[16.0, 17.0], [10.0, 11.0]]]
    """
    wide, high = EACH * WARP, TOKENS
    along_y = cuda.blockIdx.y + cuda.gridDim.y * cuda.blockIdx.z
    block = cuda.blockIdx.x + cuda.gridDim.x * along_y
    row, part = row_and_column(block, (out.shape[2] + wide - 1) // wide)
    sentence, group = row_and_column(row, (out.shape[1] + high - 1) // high)
    token = group * high + cuda.threadIdx.y
    first = part * wide + cuda.threadIdx.x
    if sentence < out.shape[0] and token < out.shape[1]:
        word = ids[sentence, token]
        kind = kinds[sentence, token]
        is_known = 0 <= word < words.shape[0] and 0 <= kind < types.shape[0]
        for i in range(EACH):
            feature = first + i * WARP
            if feature < out.shape[2]:
                value = NOTHING
                if is_known:
                    value = float32(words[word, feature]) + float32(types[kind, feature])
                    value += float32(positions[token, feature])
                out[sentence, token, feature] = value


def embedding_reference(
    ids: np.ndarray[Any, Any],
    kinds: np.ndarray[Any, Any],
    words: np.ndarray[Any, Any],
    positions: np.ndarray[Any, Any],
    types: np.ndarray[Any, Any],
) -> np.ndarray[Any, Any]:
    """What `embedding` approximates, in float64, of numbers that are rows of their tables."""
    wide = [table.astype(np.float64) for table in (words, positions, types)]
    result: np.ndarray[Any, Any] = wide[0][ids] + wide[1][: ids.shape[1]] + wide[2][kinds]
    return result
