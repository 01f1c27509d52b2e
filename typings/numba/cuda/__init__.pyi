# Numba is not typed, and what a kernel's body says is Numba's language, not Python's.
from typing import Any

cgutils: Any
extending: Any
libdevice: Any
types: Any

def __getattr__(name: str) -> Any: ...
