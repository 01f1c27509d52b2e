"""CuPy and PyTorch, by what the tests do with them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest

import numbasync as na

SIZE = 1024


class Library:
    """One of them, by what the tests do with it."""

    def __init__(
        self,
        make: Callable[[np.ndarray], Any],
        host: Callable[[Any], np.ndarray],
        pointer: Callable[[Any], int],
        take: Callable[[Any], Any],
        on: Callable[[na.Stream], AbstractContextManager[Any]],
    ) -> None:
        self.make = make
        self.host = host
        self.pointer = pointer
        self.take = take
        self.on = on

    def ones(self) -> Any:
        return self.make(np.ones(SIZE, np.float32))


def cupy_library() -> Library:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    cupy.cuda.Device(na.default_device().ordinal).use()  # of this worker of pytest-xdist
    return Library(
        cupy.asarray, cupy.asnumpy, lambda x: int(x.data.ptr), cupy.from_dlpack,
        lambda stream: cupy.cuda.Stream.from_external(stream),
    )  # fmt: skip


def torch_library() -> Library:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch has no CUDA")
    torch.cuda.set_device(na.default_device().ordinal)
    return Library(
        lambda array: torch.from_numpy(array).cuda(), lambda x: x.cpu().numpy(),
        lambda x: int(x.data_ptr()), torch.from_dlpack,
        lambda stream: torch.cuda.stream(
            torch.cuda.ExternalStream(stream.__cuda_stream__()[1])
        ),
    )  # fmt: skip
