"""What work that concerns several devices needs of each: its locks, and a stream of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from numbasync.arguments import shown
from numbasync.device.device import Device
from numbasync.device.stream import Stream
from numbasync.errors import CallerError


@contextmanager
def submit_locks(*devices: Device) -> Iterator[None]:
    """Hold the `submit_lock` of each device, taken in the order of the devices' labels: two threads
    that need the same devices never wait for each other.
    """
    with ExitStack() as held:
        for device in sorted(set(devices), key=lambda d: (d.kind, d.ordinal)):
            held.enter_context(device.submit_lock)
        yield


def next_stream_of(device: Device) -> Stream:
    """The next stream of the device's policy; a new one, if the policy gave another device's."""
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
