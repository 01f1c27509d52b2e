"""The interfaces of the CUDA device, its streams and its graphs, for the parts of the device.

`CudaDevice` creates all parts and passes itself to each; these protocols list what a part may
use.
"""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from numbasync.backend.cuda.completion_words import (
    CompletionCounters,
    CounterCompletion,
    EventCompletion,
)
from numbasync.backend.protocols import Limits


class Gpu(Protocol):
    """A GPU: its number, its cuda.core object, and the objects that its parts share.

    Attributes:
        ordinal: the driver's number of the GPU.
        core: a `cuda.core.Device`.
        words: completion counters in pinned host memory.
        limits: of a launch on the GPU.
    """

    ordinal: int
    core: Any
    words: CompletionCounters
    limits: Limits

    @property
    def capturing(self) -> AbstractContextManager[Any, Any]: ...

    @property
    def total_memory(self) -> int: ...

    @property
    def idle_stream(self) -> Any: ...

    @property
    def stream_behind_default(self) -> Any: ...

    @property
    def capture_streams(self) -> Any: ...

    @property
    def bridges(self) -> Any: ...

    @property
    def events(self) -> Any: ...

    @property
    def peers(self) -> Any: ...

    @property
    def context(self) -> Any: ...

    @property
    def copiers(self) -> Any: ...

    @property
    def formulas(self) -> Any: ...

    @property
    def dropped(self) -> Any: ...

    def completion_signals(self, handle: Any) -> CounterCompletion | EventCompletion: ...

    def new_event(self, timing: bool) -> Any: ...

    def host_buffer(self, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]: ...

    def compile(self, dispatcher: Any, keys: tuple[Hashable, ...]) -> Any: ...


class Handled(Protocol):
    """A stream, as the code that enqueues work on it sees it.

    Attributes:
        handle: the driver's handle.
        native: the cuda.core stream.
        captures: graphs are captured on the stream.
    """

    handle: Any
    native: Any
    captures: bool

    def record(self, event: Any) -> None: ...

    def wait(self, event: Any) -> None: ...


class Replayed(Protocol):
    """A graph, as a stream that launches it sees it.

    Attributes:
        checks: the exception readers of its `debug=True` kernels, examined behind each launch.
        number: the handle of the executable graph, for the core.
    """

    @property
    def checks(self) -> Any: ...

    @property
    def number(self) -> int: ...

    def launch(self, stream: Any) -> None: ...
