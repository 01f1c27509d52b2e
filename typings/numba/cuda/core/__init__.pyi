# Compiled, or typed in part: what comes from it is Any.
from typing import Any

targetconfig: Any

def __getattr__(name: str) -> Any: ...
