"""Operations as tasks of a Dask cluster: a worker awaits them on its own event loop."""

from __future__ import annotations

import asyncio
import inspect
import re
import uuid
from collections.abc import Callable, Generator, Iterable
from functools import lru_cache, partial
from typing import Any, TypeVar

from dask.tokenize import tokenize
from distributed import Client, Future
from distributed.protocol import pickle

from numbasync.errors import OperationError
from numbasync.extending import describe
from numbasync.ops.op import DeviceOp

T = TypeVar("T")

_KEPT_FUNCTIONS = 64  # of a worker; as Dask's own workers keep functions
_PLAIN = (int, float, complex, str, bytes, type(None))


class OperationFuture(Future[T]):
    """A task's result, which stays on its worker's device; a `distributed.Future`.

    `await future` gives the value, on any event loop and for any client, also a synchronous one.
    As an argument of another task it stands for the value, which then need not leave its worker.

    Examples:
        >>> def twice(x):
        ...     return na.zeros(x.shape).then(lambda z: saxpy(z, 2.0, x)).output().to_host()
        >>> first = na.dask.submit(client, na.ones(3))
        >>> print(await na.dask.submit(client, twice, first))  # the tensor stays on the worker
        [2. 2. 2.]
    """

    def __await__(self) -> Generator[Any, None, T]:
        self._verify_initialized()
        client: Any = self.client
        result: Any = self._result()
        home = client.loop.asyncio_loop
        if asyncio.get_running_loop() is home:
            return result.__await__()
        # A synchronous client has its loop on a thread of its own.
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(result, home)).__await__()

    def __del__(self) -> None:
        if hasattr(self, "_cleared"):  # it was constructed
            super().__del__()


class Packed:
    """A value of a task, pickled when the task is created. Only the worker restores it, once for
    each run: not the scheduler, which has no use for it, and need not have a device.
    """

    __slots__ = ("data",)

    def __init__(self, value: object) -> None:
        self.data: bytes = pickle.dumps(value)

    def __reduce__(self) -> tuple[Any, ...]:
        return _packed, (self.data,)


def _packed(data: bytes) -> Packed:
    packed = object.__new__(Packed)
    packed.data = data
    return packed


_function = lru_cache(_KEPT_FUNCTIONS)(pickle.loads)


def submit(
    client: Client, op: DeviceOp[T] | Callable[..., Any], *args: Any, **submit_options: Any
) -> OperationFuture[T]:
    """Run an operation on a worker of the cluster, which awaits it on its event loop.

    `await na.dask.submit(client, op)` gives what `await op` gives. Before that the result is on the
    worker's device, and the future may be passed on.

    Args:
        client: synchronous or asynchronous.
        op: an operation that has not run; or a function, such as a launcher, that makes one of
            `args` on the worker. The function runs on the worker's event loop and must not block.
        args: of the function; among them may be futures, whose values it gets.
        submit_options: of `Client.submit`: `workers=`, `retries=`, `priority=`, `key=` and others.
            `pure` is False by default, since kernels may change their arguments: equal calls are
            then different tasks.

    Raises:
        OperationError: `op` is neither.
        AlreadySubmittedError: the operation was used before.

    Examples:
        >>> future = na.dask.submit(client, na.ones(3).to_host())
        >>> print(await future)
        [1. 1. 1.]
    """
    if isinstance(op, DeviceOp):
        if args:
            raise OperationError(
                f"{op} is an operation, which takes no arguments. To make one on the worker, give "
                "its function: na.dask.submit(client, kernel, *args)"
            )
    elif not callable(op):
        raise OperationError(
            f"na.dask.submit takes an operation, or a function that makes one, not {describe(op)}."
        )
    if submit_options.pop("pure", False) and "key" not in submit_options:
        submit_options["key"] = f"{_name(op)}-{tokenize(op, *args)}"
    submit_options.setdefault("key", f"{_name(op)}-{uuid.uuid4()}")
    packed = Packed(op)
    if isinstance(op, DeviceOp):
        future = client.submit(_await_op, packed, pure=False, **submit_options)
    else:
        future = client.submit(_await_call, packed, *map(_sent, args), pure=False, **submit_options)
    return OperationFuture(future.key, client)


def map_ops(
    client: Client,
    function: Callable[..., Any],
    parts: Iterable[Any],
    *more: Iterable[Any],
    **map_options: Any,
) -> list[OperationFuture[Any]]:
    """`submit` of `function` with each of the parts: `[f(parts[0], more[0][0], ...), ...]`.

    Args:
        function: a launcher, or another function that makes an operation of its arguments, on the
            worker's event loop.
        parts: arguments: arrays, tensors, numbers, futures.
        more: further arguments, as for `map`.
        map_options: of `Client.map`: `workers=`, `retries=`, `priority=`, `key=` and others.

    Returns:
        A future for each part, in their order.

    Raises:
        OperationError: `function` is none.

    Examples:
        >>> futures = na.dask.map_ops(client, lambda n: na.arange(n).to_host(), [2, 3])
        >>> print([await future for future in futures])
        [array([0., 1.], dtype=float32), array([0., 1., 2.], dtype=float32)]
    """
    if isinstance(function, DeviceOp) or not callable(function):
        raise OperationError(
            f"na.dask.map_ops takes a function that makes operations, not {describe(function)}."
        )
    rows = [tuple(row) for row in zip(parts, *more, strict=True)]
    if map_options.pop("pure", False) and "key" not in map_options:
        map_options["key"] = [f"{_name(function)}-{tokenize(function, *row)}" for row in rows]
    map_options.setdefault("key", _name(function))
    if not rows:
        return []
    call = partial(_await_call, Packed(function))
    columns = [list(map(_sent, column)) for column in zip(*rows, strict=True)]
    futures = client.map(call, *columns, pure=False, **map_options)
    return [OperationFuture(future.key, client) for future in futures]


def _name(op: Any) -> str:
    """What Dask's dashboard groups tasks by."""
    label = op.label if isinstance(op, DeviceOp) else getattr(op, "__name__", type(op).__name__)
    word = re.match(r"\w+", label)
    return word[0] if word else "operation"


def _sent(value: Any) -> Any:
    """An argument as the task holds it: Dask must see the futures in it."""
    return value if isinstance(value, _PLAIN) or _has_future(value) else Packed(value)


def _has_future(value: Any) -> bool:
    if type(value) in (list, tuple, set):
        return any(map(_has_future, value))
    if type(value) is dict:
        return any(map(_has_future, value.values()))
    return isinstance(value, Future)


# --- on the worker ----------------------------------------------------------------------------


async def _await_op(op: Packed) -> Any:
    return await pickle.loads(op.data)


async def _await_call(function: Packed, *args: Any) -> Any:
    values = [pickle.loads(arg.data) if type(arg) is Packed else arg for arg in args]
    result = _function(function.data)(*values)
    return await result if inspect.isawaitable(result) else result
