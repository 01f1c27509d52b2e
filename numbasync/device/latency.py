"""How promptly an await returns, against the processor time that it takes."""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Literal

from numbasync.arguments import with_type
from numbasync.device.scoped import scoped
from numbasync.errors import CallerError

Latency = Literal["low", "normal"]
_here: ContextVar[Latency | None] = ContextVar("numbasync_latency", default=None)


def checked(latency: Any) -> Latency:
    """
    Raises:
        CallerError: `latency` is neither "low" nor "normal".
    """
    if latency in ("low", "normal"):
        return latency  # type: ignore[no-any-return]
    raise CallerError(f'latency is "low" or "normal", not {with_type(latency)}.')


def waiting(*, latency: Latency) -> AbstractContextManager[Latency]:
    """How the awaits inside the block wait for a GPU, in this task or thread only.
    `device.latency` says it for all awaits of a device.

    Args:
        latency: `"low"`: the loop polls until the work is done, and keeps a processor core busy
            meanwhile. `"normal"`: it sleeps until shortly before the work is due, by the last
            waits for like work, and takes some percent of a core. A CPU device, whose work needs
            the processor, never polls.

    Raises:
        CallerError: `latency` is none of these.

    Examples:
        >>> with na.waiting(latency="low"):  # polls, on a GPU: for awaits of microseconds
        ...     await na.ones(2).to_host()
        array([1., 1.], dtype=float32)
    """
    return scoped(_here, checked(latency))


def has_low_latency(device: Latent) -> bool:
    """Whether the loop polls for work of `device` that is awaited here until it is done."""
    return (_here.get() or device.latency) == "low"


class Latent:
    """What has a latency: a device."""

    __slots__ = ("_latency",)
    _latency: Latency

    @property
    def latency(self) -> Latency:
        """How promptly awaits of this device return: `"low"` or `"normal"`, see `na.waiting`, which
        says it for a block.
        """
        return self._latency

    @latency.setter
    def latency(self, latency: Latency) -> None:
        self._latency = checked(latency)
