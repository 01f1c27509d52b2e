"""Blocks of kernels that choose their tiles."""

from __future__ import annotations

from typing import Any

from numbasync.kernel_names import cuda, int64, uint32


@cuda.jit(device=True)
def row_and_column(number: Any, across: Any) -> Any:
    """Where a number is, counted along rows of `across`. Of 32 bits, which GPUs divide sooner."""
    row = uint32(number) // uint32(across)
    return int64(row), int64(uint32(number) % uint32(across))
