# Numba is not typed, and what a kernel's body says is Numba's language, not Python's.
from typing import Any

float32: Any
float64: Any
int32: Any
int64: Any
uint8: Any
uint16: Any
uint32: Any
uint64: Any

def __getattr__(name: str) -> Any: ...
