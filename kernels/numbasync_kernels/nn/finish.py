"""What is done to the elements of a matrix product before they are stored."""

from __future__ import annotations

from typing import Any, NamedTuple

import numbasync as na
from numbasync.kernel_names import cuda, float32
from numbasync_kernels.nn.gelu import gelu_of

ACTIVATIONS = {None: 0, "relu": 1, "gelu": 2}  # numbers that kernels know


class Finish(NamedTuple):
    """The arguments of `finished`, as a kernel takes them."""

    bias: na.Tensor | None
    residual: na.Tensor | None
    activation: int

    @property
    def compiled(self) -> int | None:
        """The activation of a kernel that is compiled for one; None: nothing is done to sums."""
        return None if self == (None, None, 0) else self.activation


@cuda.jit(device=True)
def finished(value: Any, row: Any, column: Any, bias: Any, residual: Any, activation: Any) -> Any:
    """``activation(value + bias[column]) + residual[row, column]``; None is left out.

    Rows and columns behind the last ones, which are not stored, get what the last ones have: a
    comparison would divide the warp.
    """
    if bias is not None:
        value += float32(bias[min(column, bias.shape[0] - 1)])
    if activation == 1:
        value = max(value, float32(0.0))
    if activation == 2:
        value = gelu_of(value)
    if residual is not None:
        last_row = min(row, residual.shape[0] - 1)
        value += float32(residual[last_row, min(column, residual.shape[1] - 1)])
    return value
