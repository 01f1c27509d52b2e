"""Kernels on the chunks of Dask arrays."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import dask.array as da
import numpy as np

from numbasync.errors import OperationError
from numbasync.extending import describe
from numbasync.ops.op import DeviceOp
from numbasync.tensors.tensor import Tensor


def map_blocks(
    function: Callable[..., DeviceOp[Any]],
    *arrays: Any,
    dtype: Any,
    on_device: bool = False,
    **options: Any,
) -> da.Array:
    """`dask.array.map_blocks` for a function that makes an operation of each block.

    Each block is a task in a worker's thread, which waits for the operation. Works with any of
    Dask's schedulers.

    Args:
        function: takes a block of each array, as a NumPy array or as a tensor, and returns an
            operation that gives a tensor.
        arrays: Dask arrays, and what else `dask.array.map_blocks` takes.
        dtype: of the result.
        on_device: the blocks of the result are tensors, for another `map_blocks`; otherwise they
            are NumPy arrays, for all of Dask's functions.
        options: of `dask.array.map_blocks`: `chunks=`, `name=`, `drop_axis=` and others.

    Raises:
        OperationError: `function` is none; computing: it returns no operation, or one that gives no
            tensor.

    Examples:
        >>> import dask.array as da
        >>> def twice(block):
        ...     return na.zeros(block.shape).then(lambda z: saxpy(z, 2.0, block)).output()
        >>> x = da.ones(6, chunks=3, dtype=np.float32)
        >>> na.dask.map_blocks(twice, x, dtype=np.float32).compute()
        array([2., 2., 2., 2., 2., 2.], dtype=float32)
    """
    if not callable(function):
        raise OperationError(
            f"na.dask.map_blocks takes a function of a block, not {describe(function)}."
        )
    options.setdefault("meta", np.empty(0, dtype))  # Dask adds the axes
    run = partial(_block, function, on_device)
    return da.map_blocks(run, *arrays, dtype=dtype, **options)


def _block(function: Callable[..., Any], on_device: bool, *blocks: Any) -> Any:
    op = function(*blocks)
    if not isinstance(op, DeviceOp):
        raise OperationError(
            f"the function of na.dask.map_blocks makes an operation, not {describe(op)}."
        )
    tensor = op.sync()
    if not isinstance(tensor, Tensor):
        raise OperationError(
            f"the operation of a block gives a tensor, not {describe(tensor)}; of a launch, write "
            "kernel(...).output()."
        )
    return tensor if on_device else tensor.to_host().sync()
