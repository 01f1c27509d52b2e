"""Untimed events of a device, kept for use again."""

from __future__ import annotations

from typing import Any

from numbasync.backend import protocols


class EventPool:
    """Untimed events, each used for an instant to order one stream after another."""

    def __init__(self, device: protocols.Device) -> None:
        self._device = device
        self._spare: list[Any] = []

    def take(self) -> Any:
        try:
            return self._spare.pop()
        except IndexError:
            return self._device.new_event(timing=False)

    def give(self, event: Any) -> None:
        self._spare.append(event)
