"""What was computed before, and is quicker kept than computed again."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Memo(dict[K, V]):
    """A dictionary of at most `most` entries: the next one starts it over. Looking up costs what it
    costs in a dict.
    """

    __slots__ = ("most",)

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def __setitem__(self, key: K, value: V) -> None:
        if len(self) >= self.most:
            self.clear()
        super().__setitem__(key, value)

    def setdefault(self, key: K, default: V) -> V:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The entry of `key`, the same for all threads that ask."""
        if len(self) >= self.most:
            self.clear()
        return super().setdefault(key, default)
