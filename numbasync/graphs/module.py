"""Modules: objects with buffers and a forward pass, run as it is or replayed as a graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from numbasync.errors import OperationError
from numbasync.graphs.graph import CudaGraph
from numbasync.graphs.graphed import Graphed
from numbasync.ops.constructors import Value
from numbasync.ops.op import DeviceOp
from numbasync.ops.operands import is_op


class Module:
    """Base class of what has a forward pass.

        class Layer(na.Module):
            def __init__(self, weights: na.Tensor) -> None:
                self.weights = weights

            def forward(self, x: na.Tensor) -> na.DeviceOp[na.Tensor]:
                return na.zeros(x.shape).then(lambda y: dense(y, x, self.weights)).output()

        layer = Layer(weights)
        y = await layer(x)                # kernel by kernel
        await layer.warm_up(x)
        y = await layer(x)                # one replay

    Attributes:
        graph: what `warm_up` has captured last, or what a subclass that captures for itself keeps
            here; None before.
    """

    graph: CudaGraph[Any] | None = None
    _replayed: Graphed[Any] | None = None
    _warming: Graphed[Any] | None = None  # the same, from the first `warm_up` on

    def _no_pass(self, *inputs: Any) -> Any:
        raise OperationError(
            f"{type(self).__name__} has no forward pass: write def forward(self, x): ... that "
            "gives an operation."
        )

    # The operation of one pass, or its value. A variable, so that subclasses choose the inputs.
    forward: Callable[..., Any] = _no_pass

    def __call__(self, *inputs: Any) -> DeviceOp[Any]:
        """An operation of one pass: a replay where `warm_up` has captured one for the shapes and
        dtypes of `inputs`, or for others, else `forward`.
        """
        return self._forward(*inputs) if self._replayed is None else self._replayed(*inputs)

    def warm_up(self, *inputs: Any) -> DeviceOp[CudaGraph[Any]]:
        """An operation that compiles and captures the pass for such inputs, and once it has run
        has every call replayed; it runs the pass once with them. It gives the graph.

        Raises:
            NotAGraphNodeError: when run, of what no graph can repeat; calls run on as they did.
        """
        if self._warming is None:
            self._warming = Graphed(self._forward, copies=True, most=16)
        warming = self._warming
        first = warming.replay(*inputs)

        def keep(_: object) -> CudaGraph[Any]:
            self._replayed = warming
            self.graph = graph = first.graph_used
            assert graph is not None  # it has just been replayed
            return graph

        return first.map(keep)

    def _forward(self, *inputs: Any) -> DeviceOp[Any]:
        made = self.forward(*inputs)
        if inspect.iscoroutine(made):
            made.close()
            raise OperationError(
                f"{type(self).__name__}.forward is an async def, and a pass gives an operation.\n"
                "Write def forward, and chain instead of awaiting: op.then(lambda y: ...)."
            )
        return made if is_op(made) else Value(made)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, {'not captured' if self.graph is None else self.graph!r}>"
