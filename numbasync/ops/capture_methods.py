"""The graph methods of operations, which the subpackage `graphs` implements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from numbasync.device.stream import AnyStream
    from numbasync.graphs.graph import CudaGraph

T = TypeVar("T")


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
        from numbasync.graphs.graph import captured

        return captured(self)

    def graph_on(self, stream: AnyStream) -> CudaGraph[T]:
        """Capture for replays on `stream`; see `CudaGraph.capture`. Blocks; computes nothing.

        Examples:
            >>> z = await na.zeros(3)
            >>> graph = na.fill(z, 7).graph_on(na.default_device().new_stream())
            >>> graph.launch().sync()
        """
        from numbasync.graphs.graph import captured

        return captured(self, stream)
