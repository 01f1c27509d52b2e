# What Python code uses of the compiled core; every other function has the types of the Python
# function whose place it takes.

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Literal, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])
_C = TypeVar("_C", bound=type)

MOST_ARGUMENTS: int
NUMBER_: int
TENSOR_: int
MAP_: int
SHARED_: int
PARTITION_: int
WHOLE_: int
LITERAL_: int
METHODS: tuple[str, ...]

def know(cls: _C) -> _C: ...
def take_over(function: _F) -> _F: ...
def taken_over() -> list[str]: ...
def switch(state: bool) -> bool: ...
def is_on() -> bool: ...
def know_frames(between: dict[str, bool], kind: type) -> None: ...
def know_faults(classes: tuple[type[BaseException], ...]) -> None: ...
def know_operations(default: object, queues: dict[Any, Any], queue: object) -> None: ...
def know_devices(variable: ContextVar[Any], device: Any) -> None: ...
def know_memory(
    known_specs: dict[Any, Any], array_class: type, large: int, counting: object
) -> None: ...
def know_workers(state: object, changed: object, counting: object) -> None: ...
def know_block_memory(own: object) -> None: ...
def use_driver(
    addresses: Mapping[str, int | None], failing: Callable[[int, str], object], counting: object
) -> None: ...
def forget_current() -> None: ...

class Lock:
    def acquire(self, blocking: bool = True) -> bool: ...
    def release(self) -> None: ...
    def __enter__(self) -> Literal[True]: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

class Busy:
    busy: bool

class LaterLaunch:
    def __call__(self) -> None: ...

class Block:
    address: int
    def __init__(self, nbytes: int, spare: list[int], address: int) -> None: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class DriverStream:
    def __init__(
        self,
        number: int,
        device: Any,
        word: int,
        device_word: int,
        records: MutableMapping[Any, Any],
    ) -> None: ...

class LaunchRecord:
    def __init__(
        self,
        function: int,
        grid: Sequence[int],
        block: Sequence[int],
        shared_bytes: int,
        stream: int,
        nbytes: int,
        parts: Sequence[tuple[str, int]],
        constants: Sequence[int],
    ) -> None: ...
    def run(self, args: Sequence[Any]) -> int: ...

class FastCall:
    def __init__(
        self,
        kinds: tuple[type, ...],
        codes: Sequence[int],
        outputs: Sequence[int],
        may_alias: bool,
        in_python: object,
    ) -> None: ...
    def take(self, values: tuple[Any, ...]) -> Any: ...
    def enqueue(self, plan: Any, values: Any, tensors: Any, submission: Any) -> bool: ...
