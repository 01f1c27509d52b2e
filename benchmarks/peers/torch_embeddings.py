"""all-MiniLM in PyTorch, as Sentence Transformers runs it, beside `numbasync_kernels.minilm`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks import embeddings
from benchmarks.measure import Case, drained
from benchmarks.peers.torch_peer import on
from numbasync_kernels.minilm.weights import Weights


class Network:
    """The network on the current GPU, with weights of one dtype."""

    def __init__(self, torch: Any, weights: Weights, dtype: str) -> None:
        self.torch = torch
        self.config = weights.config
        self.dtype = getattr(torch, dtype)
        self.weights = {
            name: torch.from_numpy(tensor).to("cuda").to(self.dtype)
            for name, tensor in weights.tensors.items()
        }

    def __call__(self, ids: Any, mask: Any) -> Any:
        """Unit vectors, of sentences padded to one length."""
        functional, weights = self.torch.nn.functional, self.weights
        tables = "embeddings.{}_embeddings.weight"
        x = functional.embedding(ids, weights[tables.format("word")])
        x = x + functional.embedding(
            self.torch.zeros_like(ids), weights[tables.format("token_type")]
        )
        x = self._norm(
            "embeddings.LayerNorm", x + weights[tables.format("position")][: ids.shape[1]]
        )
        unseen = self.torch.finfo(self.dtype).min
        hidden = self.torch.zeros(mask.shape, dtype=self.dtype, device="cuda")
        hidden = hidden.masked_fill(mask == 0, unseen)[:, None, None, :]
        hidden = hidden.expand(-1, -1, ids.shape[1], -1)
        for i in range(self.config.layers):
            x = self._layer(f"encoder.layer.{i}", x, hidden)
        counts = mask[:, :, None].to(self.dtype)
        mean = (x * counts).sum(1) / counts.sum(1).clamp(min=1e-9)
        return functional.normalize(mean.float(), dim=1)

    def _layer(self, layer: str, x: Any, hidden: Any) -> Any:
        functional = self.torch.nn.functional
        sentences, tokens, width = x.shape
        heads = [
            self._linear(f"{layer}.attention.self.{part}", x)
            .view(sentences, tokens, self.config.heads, -1)
            .transpose(1, 2)
            for part in ("query", "key", "value")
        ]
        mixed = functional.scaled_dot_product_attention(*heads, attn_mask=hidden)
        mixed = mixed.transpose(1, 2).reshape(sentences, tokens, width)
        mixed = self._linear(f"{layer}.attention.output.dense", mixed)
        x = self._norm(f"{layer}.attention.output.LayerNorm", mixed + x)
        inner = functional.gelu(self._linear(f"{layer}.intermediate.dense", x))
        return self._norm(
            f"{layer}.output.LayerNorm", self._linear(f"{layer}.output.dense", inner) + x
        )

    def _linear(self, name: str, x: Any) -> Any:
        weights = self.weights
        return self.torch.nn.functional.linear(
            x, weights[f"{name}.weight"], weights[f"{name}.bias"]
        )

    def _norm(self, name: str, x: Any) -> Any:
        parts = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return self.torch.nn.functional.layer_norm(x, x.shape[-1:], *parts, self.config.eps)


def of_embeddings(ordinal: int) -> list[Case]:
    """Eager, and as a CUDA graph."""
    return [case for dtype in embeddings.COSINE for case in _cases(ordinal, dtype)]


def _cases(ordinal: int, dtype: str) -> list[Case]:
    torch, stream, inside = on(ordinal)
    torch.backends.cuda.matmul.allow_tf32 = False
    work = embeddings.work()
    with inside, torch.inference_mode():
        network = Network(torch, work.weights, dtype)
        ids, mask = (torch.from_numpy(x).to("cuda") for x in (work.batch.ids, work.batch.mask))
        for _ in range(3):
            network(ids, mask)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(graph, stream=stream):
        replayed = network(ids, mask)

    def eager() -> Any:
        with torch.inference_mode():
            return network(ids, mask)

    def replay() -> Any:
        graph.replay()
        return replayed

    def case(way: str, run: Callable[[], Any]) -> Case:
        async def check() -> None:
            with inside:
                got = run().cpu().numpy()
            work.check(dtype, got)

        def call() -> None:
            with inside:
                run()

        timed = drained(call, stream.synchronize)
        return Case(f"PyTorch: {dtype}, {way}", timed, check)

    return [case("eager", eager), case("CUDA graph", replay)]
