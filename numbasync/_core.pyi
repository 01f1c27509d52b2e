from collections.abc import Callable, Sequence
from typing import Any, TypeVar

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

def know(cls: _C) -> _C: ...
def take_over(function: _F) -> _F: ...
def taken_over() -> list[str]: ...
def switch(wish: bool) -> bool: ...
def is_on() -> bool: ...
def know_frames(between: dict[str, bool], kind: type) -> None: ...
def know_faults(classes: tuple[type[BaseException], ...]) -> None: ...
def know_operations(default: object, exclusive: object, queue: object) -> None: ...
def know_memory(known_specs: dict[Any, Any], array_class: type, large: int) -> None: ...
def use_driver(
    addresses: dict[str, int], failing: Callable[[int, str], object], counting: object
) -> None: ...
def forget_current() -> None: ...

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
