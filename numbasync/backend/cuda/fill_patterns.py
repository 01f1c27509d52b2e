"""Fill patterns of the driver: the shortest number whose repetition makes an element."""

from __future__ import annotations

import numpy as np

from numbasync.memo import Memo
from numbasync.native import compiled

MOST = 64  # cached patterns; a program has few constants

_patterns = Memo[bytes, tuple[int, int]](MOST)


@compiled
def pattern(value: np.generic) -> tuple[int, int]:
    """The length of the repeated pattern in bytes, and its first four bytes at most, as a number.
    The driver's own patterns have 1, 2 or 4 bytes.
    """
    data = value.tobytes()
    unit_and_number = _patterns.get(data)
    if unit_and_number is None:
        unit = next(n for n in (1, 2, 4, len(data)) if data == data[:n] * (len(data) // n))
        unit_and_number = unit, int.from_bytes(data[: min(unit, 4)], "little")
        _patterns[data] = unit_and_number
    return unit_and_number
