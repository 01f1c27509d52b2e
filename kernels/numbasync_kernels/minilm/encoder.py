"""The network on a device: memory that is taken once, and the launches of a forward pass.

`launches` is the only place that knows the network. Each of them writes memory that is there
already, so they can be awaited one by one, chained to one operation, or recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import numbasync as na
from numbasync_kernels import nn
from numbasync_kernels.minilm.text import Batch
from numbasync_kernels.minilm.weights import Config, Weights

Array = np.ndarray[Any, Any]
TABLES = ("word", "position", "token_type")
# The tensor cores of devices on which attention is `dot_product_attention`: of GPUs. The CPU device
# compiles `attention` sooner.
TENSOR_CORES = ("warpgroups", "warps", "none")
WIDTHS = (32, 64, 128)  # of heads that it takes


@dataclass(frozen=True)
class Dense:
    """A product and what is added to it; `matrix` is ``(in, out)``: a view of ``(out, in)`` where
    elements have 16 bits, of whose products tiles may be narrower, and else so that rows are read.
    """

    matrix: na.Tensor
    bias: na.Tensor


@dataclass(frozen=True)
class Norm:
    """Scale and shift of a layer normalisation."""

    scale: na.Tensor
    shift: na.Tensor


@dataclass(frozen=True)
class Tables:
    """What numbers become vectors by."""

    words: na.Tensor
    positions: na.Tensor
    types: na.Tensor
    norm: Norm


@dataclass(frozen=True)
class Layer:
    """A layer's weights. `attend` makes queries, keys and values in one product."""

    attend: Dense
    mix: Dense
    mixed: Norm
    widen: Dense
    narrow: Dense
    narrowed: Norm


@dataclass(frozen=True)
class Memory:
    """What launches read and write; a row a token, but for the last two, which have one a sentence.

    `tokens_of` is the same memory with sentences and tokens apart. `lengths` is what `mask` says;
    sentences begin at the rows `offsets`.
    """

    ids: na.Tensor
    mask: na.Tensor
    kinds: na.Tensor
    lengths: na.Tensor
    offsets: na.Tensor
    hidden: na.Tensor
    between: na.Tensor
    attended: na.Tensor
    mixed: na.Tensor
    narrow: na.Tensor
    wide: na.Tensor
    pooled: na.Tensor
    embeddings: na.Tensor

    @classmethod
    async def take(cls, config: Config, sentences: int, tokens: int, dtype: Any) -> Memory:
        """Allocate it, for batches of one shape. The vectors of sentences are float32."""
        rows, width = sentences * tokens, config.width
        numbers = [na.zeros((sentences, tokens), np.int32) for _ in range(3)]
        numbers += [na.zeros(sentences, np.int32), na.arange(0, rows + 1, tokens, np.int32)]
        widths = (width, width, 3 * width, width, width, config.inner)
        features = [na.empty((rows, w), dtype) for w in widths]
        vectors = [na.empty((sentences, width)) for _ in range(2)]
        return cls(*await na.gather(*numbers, *features, *vectors))

    def tokens_of(self, rows: na.Tensor) -> na.Tensor:
        """A view of shape ``(sentences, tokens, features)``."""
        return rows.reshape((*self.ids.shape, rows.shape[1]))


class Encoder:
    """Sentences of one shape, ``(sentences, tokens)``, to unit vectors of ``width`` features."""

    def __init__(self, config: Config, tables: Tables, layers: list[Layer], memory: Memory) -> None:
        self.config = config
        self._tables = tables
        self._layers = layers
        self._memory = memory
        # Views, which no launch has to make anew.
        self._narrow = memory.tokens_of(memory.narrow)
        self._hidden = memory.tokens_of(memory.hidden)
        self._heads = self._heads_of(memory)

    @classmethod
    async def create(
        cls, weights: Weights, sentences: int, tokens: int, dtype: Any = np.float32
    ) -> Encoder:
        """Upload the weights, and take all memory that a forward pass needs.

        Args:
            dtype: of weights, and of what lies between two launches: float16, bfloat16 or float32.
        """
        config = weights.config
        parts = [weights[f"embeddings.{part}_embeddings.weight"].astype(dtype) for part in TABLES]
        norm = await _norm(weights, "embeddings.LayerNorm", dtype)
        words, positions, types = await na.gather(*map(na.from_host, parts))
        tables = Tables(words, positions, types, norm)
        names = [f"encoder.layer.{i}" for i in range(config.layers)]
        layers = [await _layer(weights, name, dtype) for name in names]
        return cls(config, tables, layers, await Memory.take(config, sentences, tokens, dtype))

    @property
    def embeddings(self) -> na.Tensor:
        """Where a pass puts its vectors; shape ``(sentences, width)``."""
        return self._memory.embeddings

    def launches(self) -> Iterator[na.DeviceOp[Any]]:
        """The launches of a forward pass, in order: 2, 7 a layer, and 2. None allocates."""
        config, m, tables = self.config, self._memory, self._tables
        yield nn.embedding(
            self._narrow,
            m.ids, m.kinds, tables.words, tables.positions, tables.types,
        )  # fmt: skip
        norm = tables.norm
        yield nn.layer_norm(m.hidden, m.narrow, norm.scale, norm.shift, config.eps)
        for layer in self._layers:
            yield _dense(m.attended, m.hidden, layer.attend)
            yield self._attention()
            yield _dense(m.narrow, m.mixed, layer.mix)
            yield nn.add_layer_norm(
                m.between, m.narrow, m.hidden,
                layer.mixed.scale, layer.mixed.shift, config.eps,
            )  # fmt: skip
            yield _dense(m.wide, m.between, layer.widen, "gelu")
            yield _dense(m.narrow, m.wide, layer.narrow)
            yield nn.add_layer_norm(
                m.hidden, m.narrow, m.between,
                layer.narrowed.scale, layer.narrowed.shift, config.eps,
            )  # fmt: skip
        yield nn.mean_pool(m.pooled, self._hidden, m.mask)
        yield nn.unit_rows(m.embeddings, m.pooled)

    def _heads_of(self, m: Memory) -> list[na.Tensor]:
        """Result, queries, keys and values of attention. The latter are parts of one product, which
        are views: nothing is copied.
        """
        rows, width = m.mixed.shape
        if not self._is_quick():
            parts = m.attended.reshape(*m.ids.shape, 3, width)
            return [m.tokens_of(m.mixed), *(parts[:, :, i] for i in range(3))]
        heads = m.attended.reshape(rows, 3, self.config.heads, -1)
        out = m.mixed.reshape(rows, self.config.heads, -1)
        return [out, *(heads[:, i] for i in range(3))]

    def _attention(self) -> na.DeviceOp[Any]:
        m = self._memory
        if not self._is_quick():
            return nn.attention(*self._heads, m.mask, self.config.heads)
        return nn.dot_product_attention(
            *self._heads, lengths=m.lengths, offsets=m.offsets, longest=m.ids.shape[1]
        )

    def _is_quick(self) -> bool:
        """Whether `dot_product_attention` takes the heads, and is the quicker one."""
        mixed, config = self._memory.mixed, self.config
        return (
            mixed.device is not None
            and mixed.device.limits.tensor_cores in TENSOR_CORES
            and config.width // config.heads in WIDTHS
        )

    def inputs(self, batch: Batch) -> list[na.DeviceOp[Any]]:
        """The copies that put a batch of this shape where `launches` reads it."""
        m, lengths = self._memory, batch.mask.sum(axis=1, dtype=np.int32)
        arrays = (m.ids, batch.ids), (m.mask, batch.mask), (m.lengths, lengths)
        return [na.memcpy(tensor, array) for tensor, array in arrays]

    async def eager(self, batch: Batch) -> Array:
        """Every step awaited before the next is built."""
        for copy in self.inputs(batch):
            await copy
        for launch in self.launches():
            await launch
        return await self.embeddings.to_host()

    def chained(self, batch: Batch) -> na.DeviceOp[Array]:
        """All steps as one operation: one stream, one await."""
        steps = na.zip(*self.inputs(batch), *self.launches())
        return steps.then(lambda _: self.embeddings.to_host())

    def recorded(self, stream: na.Stream) -> na.CudaGraph[None]:
        """The launches as a graph, at home on `stream`; nothing is computed yet."""
        with na.CudaGraph.scope(stream) as scope:
            for launch in self.launches():
                scope.record(launch)
        return scope.graph

    def replayed(self, graph: na.CudaGraph[None], batch: Batch) -> na.DeviceOp[Array]:
        """All launches by one call of the driver, behind the copies of a new batch."""
        for copy in self.inputs(batch):
            graph.update(copy)
        return graph.launch().then(lambda _: self.embeddings.to_host())


def _dense(
    out: na.Tensor, x: na.Tensor, dense: Dense, activation: str | None = None
) -> na.DeviceOp[na.Tensor]:
    return nn.gemm(out, x, dense.matrix, bias=dense.bias, activation=activation)


async def _norm(weights: Weights, name: str, dtype: Any) -> Norm:
    parts = [weights[f"{name}.{part}"].astype(dtype) for part in ("weight", "bias")]
    return Norm(*[await na.from_host(part) for part in parts])


async def _upload(weights: Weights, dtype: Any, *names: str) -> Dense:
    # Side by side, products of one input are one product.
    matrix = np.concatenate([weights[f"{name}.weight"] for name in names]).T.astype(dtype)
    bias = np.concatenate([weights[f"{name}.bias"] for name in names]).astype(dtype)
    added = await na.from_host(bias)
    if matrix.dtype.itemsize == 2:
        return Dense((await na.from_host(np.ascontiguousarray(matrix.T))).T, added)
    return Dense(await na.from_host(np.ascontiguousarray(matrix)), added)


async def _layer(weights: Weights, name: str, dtype: Any) -> Layer:
    parts = [f"{name}.attention.self.{part}" for part in ("query", "key", "value")]
    return Layer(
        attend=await _upload(weights, dtype, *parts),
        mix=await _upload(weights, dtype, f"{name}.attention.output.dense"),
        mixed=await _norm(weights, f"{name}.attention.output.LayerNorm", dtype),
        widen=await _upload(weights, dtype, f"{name}.intermediate.dense"),
        narrow=await _upload(weights, dtype, f"{name}.output.dense"),
        narrowed=await _norm(weights, f"{name}.output.LayerNorm", dtype),
    )
