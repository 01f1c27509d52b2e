"""Functions of other libraries as operations, in the order of all work on their tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from numbasync.arguments import shown
from numbasync.device.callsite import call_site
from numbasync.errors import OperationError
from numbasync.extending import Context, DeviceOp, Home, Steps, access, describe, first_home
from numbasync.ops.elsewhere import join, where_it_belongs
from numbasync.ops.operands import (
    check_closure,
    common_stream,
    is_op,
    name_of,
    not_a_coroutine,
    suppress_unused_warnings,
)
from numbasync.tensors.tensor import SharedTensor, Tensor

__all__ = ["external"]


def external(
    function: Callable[..., object],
    inputs: Sequence[Tensor | DeviceOp[Any]],
    outputs: Sequence[Tensor | DeviceOp[Any]],
) -> DeviceOp[Any]:
    """An operation that calls another library's `function(stream, *inputs, *outputs)`.

    On a GPU the function enqueues work on `stream`, and neither waits nor runs operations. It gets
    the tensors as objects with `__cuda_array_interface__`, which CuPy, PyTorch and Numba take; a
    tensor of bfloat16 as its bits, uint16. The work comes behind the tensors' writers, on whatever
    streams they are, and what uses the tensors later comes behind it. On the CPU device the
    function gets NumPy arrays on the tensors' memory. A thread calls it when its turn has come.

    The arrays are for the call alone: memory is kept until the work is done, and not longer.

    Args:
        function: what it returns is not used.
        inputs: tensors that it reads, or operations that give them.
        outputs: those that it writes, or reads and writes.

    Returns:
        An operation that gives the output, the tuple of several, or None without outputs.

    Raises:
        OperationError: something is no tensor, or `function` cannot be called.
        AlreadySubmittedError: an operation has run.

    An error of `function` is the await's. A graph cannot repeat such an operation. With CuPy:

    ```python
    def cube(stream, x, z):
        with cupy.cuda.ExternalStream(stream.__cuda_stream__()[1]):
            cupy.power(cupy.asarray(x), 3, out=cupy.asarray(z))
    ```

    Examples:
        >>> def cube(stream, x, z):
        ...     np.power(x, 3, out=z)
        >>> z = await na.external(cube, [na.arange(4)], [na.empty(4)])
        >>> await z.to_host()
        array([ 0.,  1.,  8., 27.], dtype=float32)
    """
    return External(function, inputs, outputs)


class External(DeviceOp[Any]):
    """The operation of `external`."""

    def __init__(self, function: Callable[..., object], inputs: Any, outputs: Any) -> None:
        self._unused = False  # a refused operation needs no warning
        given = [v for part in (inputs, outputs) if isinstance(part, list | tuple) for v in part]
        with suppress_unused_warnings(given):
            check_closure(function, "external")
            self._inputs = _listed("inputs", inputs)
            self._outputs = _listed("outputs", outputs)
            self._values = (*self._inputs, *self._outputs)
            ops = [value for value in self._values if is_op(value)]
            stream = common_stream(ops)
        if stream is not None:
            self.stream = stream
        for op in ops:
            op.consume()
        self._function = function
        self._site = call_site(2)
        self._unused = True

    def _inner(self) -> Iterable[tuple[str, Any]]:
        return ((str(i), value) for i, value in enumerate(self._values) if is_op(value))

    @property
    def home(self) -> Home:
        return first_home(self._values)

    def steps(self, ctx: Context) -> Steps[Any]:
        parts: list[Context] = []
        tensors: list[Tensor] = []
        for each in self._values:
            value = each
            if is_op(value):
                given = yield from where_it_belongs(ctx, value, parts)
                value = _tensor(f"what {value} gives", given)
            tensors.append(value)
        for part in parts:
            join(ctx, part)
        count, function, stream = len(self._inputs), self._function, ctx.stream
        reads, writes = tensors[:count], tensors[count:]

        def call(*arrays: Any) -> None:
            not_a_coroutine(function(stream, *arrays), "external", function)

        call.__name__ = name_of(function)
        with access(ctx, reads, writes):
            ctx.queue.call(call, [tensor.handle for tensor in tensors])
        return tuple(writes) if len(writes) > 1 else writes[0] if writes else None

    def _describe(self) -> str:
        return f"external({name_of(self._function)})"


def _listed(what: str, values: Any) -> tuple[Any, ...]:
    if not isinstance(values, list | tuple):
        raise OperationError(f"external: {what} is {shown(values)}; write a list, as [x].")
    return tuple(value if is_op(value) else _tensor(what, value) for value in values)


def _tensor(what: str, value: Any) -> Tensor:
    if isinstance(value, SharedTensor):
        value = value.tensor
    if not isinstance(value, Tensor):
        raise OperationError(
            f"external: {what}: {describe(value)} is no tensor. Of an array in host memory write "
            "na.from_host(x); of another library's, na.as_tensor(x)."
        )
    return value
