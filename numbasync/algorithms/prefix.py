"""Elements whose number only the device knows, and the host's wait for numbers of the device."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import numpy as np

from numbasync.algorithms.launches import Array, Launches
from numbasync.algorithms.operators import I64
from numbasync.algorithms.reduce_kernels import THREADS
from numbasync.algorithms.select_kernels import fill_behind
from numbasync.device.event import Event
from numbasync.errors import NotAGraphNodeError, OperationError
from numbasync.extending import describe
from numbasync.layout import Layout
from numbasync.memo import Memo
from numbasync.ops.context import Context
from numbasync.ops.home import Home
from numbasync.ops.op import DeviceOp, Steps
from numbasync.tensors.copies import download
from numbasync.tensors.create_ops import element
from numbasync.tensors.tensor import Tensor

WORD = 8  # bytes of the widest number that a kernel gets


class Prefix(NamedTuple):
    """Elements whose number only the device knows: the first ``extent[0]`` of `elements`, which is
    as long as all that there could be; `extent` has one int64. What is behind them is not written.

    A kernel takes it as one parameter, and reads the number where it is. So do `sum`, `prod`,
    `min`, `max`, `any`, `all`, `count_nonzero`, `norm`, `scan`, `sort`, `argsort`, `select` and
    `unique`, also in graphs; what has as many elements as it is a `Prefix` again. Of none, `min`
    gives the largest number of the dtype, and `max` the least. Others take `trimmed` or `filled`.

    Examples:
        >>> @na.launcher
        ... @cuda.jit
        ... def double(z: na.KernelOutput, chosen: na.KernelInput):
        ...     i = cuda.grid(1)
        ...     if i < chosen.extent[0]:
        ...         z[i] = 2 * chosen.elements[i]
        >>> x = np.array([3, 8, 1, 9])
        >>> chosen = await na.algorithms.select(x, x > 2, on_device=True)
        >>> result = await double(na.zeros(4, np.int64), chosen)
        >>> await result.z.to_host(), await chosen.length()
        (array([ 6, 16, 18,  0]), 3)
        >>> await na.algorithms.sum(chosen).item()
        20
    """

    elements: Tensor
    extent: Tensor

    def length(self) -> DeviceOp[int]:
        """An operation that brings the number of elements."""
        return self.extent.item()

    def trimmed(self) -> DeviceOp[Tensor]:
        """An operation that awaits the number, and gives a view of so many elements."""
        return Numbers(self.extent, "trimmed").map(lambda counts: self.elements[: counts[0]])

    def filled(self, value: Any) -> DeviceOp[Tensor]:
        """An operation that gives a new tensor, as long as all that there could be, with `value`
        behind the elements. Nothing is awaited: it may be part of a graph.

        Examples:
            >>> x = np.array([3, 8, 1, 9])
            >>> chosen = await na.algorithms.select(x, x > 2, on_device=True)
            >>> await chosen.filled(-1).to_host()
            array([ 3,  8,  9, -1])
        """
        return _Filled(self, value)


def check_prefix(prefix: Prefix, name: str) -> None:
    """Refuse a prefix that a program has put together of something else than `select` does.

    Raises:
        OperationError: the elements are no tensor of one axis, or the extent is not one int64.
    """
    elements, extent = prefix
    if (
        not isinstance(elements, Tensor) or not isinstance(extent, Tensor) or elements.ndim != 1
        or extent.shape != (1,) or extent.dtype != I64
    ):  # fmt: skip
        raise OperationError(
            f"{name} of Prefix(elements={describe(elements)}, extent={describe(extent)}): write "
            "tensors, elements of one axis and an extent of one int64, as select(..., "
            "on_device=True) gives them."
        )


class Numbers(DeviceOp[tuple[Any, ...]]):
    """The elements of a tensor, awaited within an operation, which goes on with them."""

    def __init__(self, tensor: Tensor, name: str) -> None:
        self._tensor = tensor
        self._name = name

    @property
    def home(self) -> Home:
        return self._tensor.device

    def steps(self, ctx: Context) -> Steps[tuple[Any, ...]]:
        if ctx.records:
            raise NotAGraphNodeError(
                f"{self._name} awaits a number, on which the shape of its result depends: no graph "
                "can have it.\nAwait it before, and give the graph its result."
            )
        array = yield from download(ctx, self._tensor)
        yield _Passed(Event(ctx.device, timing=False).record(ctx.stream))
        return tuple([array.item(i) for i in range(array.size)])

    def _describe(self) -> str:
        return f"{self._name} awaits a number"


class _Passed:
    """The prerequisite that the device has passed an event. A loop waits for it as for any event:
    a thread that compiles is not kept from that.
    """

    def __init__(self, event: Event) -> None:
        self._event = event

    def run(self) -> None:
        self._event.synchronize()

    def future(self, _if_closed: object) -> asyncio.Future[BaseException | None]:
        return asyncio.ensure_future(self._passed())

    async def _passed(self) -> BaseException | None:
        try:
            await self._event
        except Exception as error:
            return error
        return None


class _Filled(DeviceOp[Tensor]):
    """Copies the elements of a prefix to a new tensor, which has a value behind them."""

    def __init__(self, prefix: Prefix, value: Any) -> None:
        self._unused = False  # a refused operation needs no warning
        check_prefix(prefix, "filled")
        self._prefix = prefix
        self._value = element(value, prefix.elements.dtype)
        self._unused = True

    @property
    def home(self) -> Home:
        return self._prefix.elements.device

    def steps(self, ctx: Context) -> Steps[Tensor]:
        elements, extent = self._prefix
        key = elements.shape, elements.dtype, self._value.tobytes()
        launches = _fills.get(key)
        if launches is None:
            launches = _fills[key] = Launches(
                (elements.shape, elements.dtype), (extent.shape, extent.dtype)
            )
            x, one = launches.operands
            launches.give(put_filled(launches, x, one, self._value))
        filled: Tensor = yield from launches.run(ctx, self._prefix)
        return filled

    def _describe(self) -> str:
        return f"filled({self._prefix.elements.shape})"


_fills = Memo[Any, Launches](64)


def put_filled(launches: Launches, x: Array, extent: Array, value: Any) -> Array:
    """Put a copy of one axis, with a value behind the first ``extent[0]`` elements, behind the
    launches.
    """
    (n,) = x.shape
    if not n:
        return x
    each = max(1, x.dtype.itemsize // WORD)  # words of an element
    word = np.dtype(f"i{x.dtype.itemsize // each}")
    low, *high = np.array([value], x.dtype).view(word).tolist()

    def words(array: Array) -> Array:
        at = Layout(array.at.offset, (n * each,), (word.itemsize,))
        return Array(array.place, at, word)

    z = launches.empty((n,), x.dtype)
    filling = fill_behind[-(-n * each // THREADS), THREADS]
    launches.launch(filling, words(z), words(x), extent, each, low, high[0] if high else low)
    return z
