"""Modules: objects with buffers and a forward pass, which runs directly or as a graph replay."""

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
    """Base class of objects with a forward pass.

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
        graph: the latest capture of `warm_up`, or the graph that a subclass with captures of its
            own stores here; None before.

    Examples:
        >>> class Scale(na.Module):
        ...     def __init__(self, factor):
        ...         self.factor = factor
        ...
        ...     def forward(self, x):
        ...         return na.zeros(x.shape).then(lambda z: saxpy(z, self.factor, x)).output()
        >>> scale = Scale(3.0)
        >>> x = await na.ones(3)
        >>> graph = await scale.warm_up(x)
        >>> y = await scale(x)  # one replay
        >>> await y.to_host()
        array([3., 3., 3.], dtype=float32)
    """

    graph: CudaGraph[Any] | None = None
    _replayed: Graphed[Any] | None = None
    _warming: Graphed[Any] | None = None  # the same object, set by the first `warm_up`

    def _no_pass(self, *inputs: Any) -> Any:
        raise OperationError(
            f"{type(self).__name__} has no forward pass: write def forward(self, x): ... that "
            "gives an operation."
        )

    # Gives the operation of one pass, or its value. A variable: subclasses choose the inputs.
    forward: Callable[..., Any] = _no_pass

    def __call__(self, *inputs: Any) -> DeviceOp[Any]:
        """An operation of one pass: `forward`, or a replay once a `warm_up` has run.

        Inputs of other shapes and dtypes than those of `warm_up` are then captured on their first
        call, and replayed, too.
        """
        return self._forward(*inputs) if self._replayed is None else self._replayed(*inputs)

    def warm_up(self, *inputs: Any) -> DeviceOp[CudaGraph[Any]]:
        """An operation that captures the pass for inputs of these shapes and dtypes.

        The operation compiles and captures the pass, runs it once with `inputs`, and returns the
        graph. From then on every call of the module is a replay.

        Raises:
            NotAGraphNodeError: the pass does work that no graph can repeat; raised when the
                operation runs. Calls of the module then run as before.
        """
        if self._warming is None:
            self._warming = Graphed(self._forward, copies=True, most=16)
        warming = self._warming
        replay = warming.replay(*inputs)

        def keep(_: object) -> CudaGraph[Any]:
            self._replayed = warming
            self.graph = graph = replay.graph_used
            assert graph is not None  # `replay` has just run
            return graph

        return replay.map(keep)

    def _forward(self, *inputs: Any) -> DeviceOp[Any]:
        result = self.forward(*inputs)
        if inspect.iscoroutine(result):
            result.close()
            raise OperationError(
                f"{type(self).__name__}.forward is an async def, and a pass gives an operation.\n"
                "Write def forward, and chain instead of awaiting: op.then(lambda y: ...)."
            )
        return result if is_op(result) else Value(result)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, {'not captured' if self.graph is None else self.graph!r}>"
