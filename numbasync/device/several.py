"""What work that concerns several devices needs of each: its locks, and a stream of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numbasync.arguments import shown
from numbasync.device.device import Device
from numbasync.device.stream import Stream
from numbasync.errors import CallerError


def in_order(one: Device, other: Device) -> tuple[Device, Device]:
    """Two devices in the order in which their `submit_lock`s are taken, so that two threads that
    need both never wait for each other.
    """
    ascending = (one.kind, one.ordinal) <= (other.kind, other.ordinal)
    return (one, other) if ascending else (other, one)


def next_stream_of(device: Device) -> Stream:
    """The next stream of the device's policy; a new one, if the policy gave another device's.

    Examples:
        >>> from numbasync.extending import next_stream_of
        >>> device = na.devices("cpu")[1]
        >>> next_stream_of(device).device is device
        True
    """
    stream = device.policy.next_stream()
    if isinstance(stream, Stream) and stream.device is device:
        return stream
    return device.new_stream()


def checked_devices(devices: Any, what: str) -> tuple[Device, ...]:
    """`devices` as a tuple.

    Raises:
        CallerError: `devices` is no sequence of devices, or empty. The message says that `what`
            takes devices.
    """
    listed = (
        tuple(devices) if isinstance(devices, Sequence) and not isinstance(devices, str) else ()
    )
    wrong = [d for d in listed if not isinstance(d, Device)]
    if not listed or wrong:
        given = f"{shown(wrong[0])} among them" if wrong else f"{shown(devices)}"
        raise CallerError(
            f"{what} takes a list of devices, not {given}: write na.devices('cuda'), or "
            "na.devices('cpu')[:2], say."
        )
    return listed
