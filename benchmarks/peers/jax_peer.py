"""JAX, whose arrays are never written: their sums are new arrays."""

from __future__ import annotations

import importlib
import os
from typing import Any

import numpy as np

import numbasync as na
from benchmarks import interop
from benchmarks.measure import Case


def of_interop(ordinal: int) -> list[Case]:
    """JAX's arrays in numbasync's launches, and its own sum."""
    # Else JAX takes three quarters of the memory that the other libraries use.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax: Any = importlib.import_module("jax")
    device = jax.devices("cuda")[ordinal]
    ours = na.default_device().new_stream()
    x, y = (jax.device_put(a, device) for a in interop.numbers())
    jax.block_until_ready((x, y))
    z = na.zeros(interop.SIZE).sync_on(ours)
    tensors = [na.as_tensor(a) for a in (x, y)]
    add = jax.jit(lambda a, b: a + b)

    def result() -> Any:
        return z.to_host().sync_on(ours)

    return [
        *(
            interop.case(
                name, interop.launch(ours, z, *given), ours.synchronize,
                result,
            )
            for name, given in ((interop.JAX, (x, y)), (interop.JAX_ONCE, tensors))
        ),
        interop.case(
            interop.JAX_ADD, lambda: add(x, y), lambda: jax.block_until_ready(add(x, y)),
            lambda: np.asarray(add(x, y)),
        ),
    ]  # fmt: skip


def of_reading(ordinal: int) -> list[Case]:
    """One of JAX's arrays."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax: Any = importlib.import_module("jax")
    x, _ = interop.numbers()
    array = jax.block_until_ready(jax.device_put(x, jax.devices("cuda")[ordinal]))
    return [interop.reading("JAX's array", array, x)]
