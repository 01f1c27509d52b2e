"""The graph methods of operations. The subpackage `graphs` provides the implementation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from numbasync.device.stream import AnyStream
    from numbasync.graphs.graph import CudaGraph

T = TypeVar("T")


def _no_graphs(op: Any, *where: AnyStream) -> Any:
    raise NotImplementedError  # replaced when numbasync is imported


# Captures an operation on a stream; without a stream, on the next of the default device's policy.
capture: Callable[..., Any] = _no_graphs


class Capturable(Generic[T]):
    """An operation that can be captured as a graph."""

    def graph(self) -> CudaGraph[T]:
        """Capture for replays on a stream of the default device's policy; see `graph_on`.

        Examples:
            >>> z = await na.zeros(3)
            >>> graph = na.fill(z, 7).graph()
            >>> _ = await graph.launch()
            >>> await z.to_host()
            array([7., 7., 7.], dtype=float32)
        """
        graph: CudaGraph[T] = capture(self)
        return graph

    def graph_on(self, stream: AnyStream) -> CudaGraph[T]:
        """Capture for replays on `stream`; see `CudaGraph.capture`. Blocks; computes nothing.

        Examples:
            >>> z = await na.zeros(3)
            >>> graph = na.fill(z, 7).graph_on(na.default_device().new_stream())
            >>> graph.launch().sync()
        """
        graph: CudaGraph[T] = capture(self, stream)
        return graph
