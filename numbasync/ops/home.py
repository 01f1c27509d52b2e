"""Where an operation runs if nobody names a stream: where its tensors are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from numbasync.arguments import shown
from numbasync.device.device import Device
from numbasync.device.stream import Stream
from numbasync.errors import OperationError

# A device, whose policy gives the stream; a stream; or None: the default device's policy.
Home = Device | Stream | None


def home_of(value: Any) -> Home:
    """The home of an operation, the device of a tensor or of a partition; of a tuple or list, that
    of its values. None of anything else.
    """
    if isinstance(value, tuple | list):
        return first_home(value)
    home = getattr(value, "home" if hasattr(value, "steps") else "device", None)
    return home if isinstance(home, Device | Stream) else None


def check_home(home: Any, name: str = "an operation") -> None:
    """
    Raises:
        OperationError: no operation can run there.
    """
    if not (home is None or isinstance(home, Device | Stream)):
        raise OperationError(
            f"{name} has the home {shown(home)}: write a na.Device, a na.Stream, None, or\n\n"
            "    home = property(lambda self: self.x.device)"
        )


def first_home(values: Iterable[Any]) -> Home:
    """The home of the first of the values that has one; the stream of a later one, a graph's, if it
    is of that device.

    Examples:
        >>> from numbasync.extending import first_home
        >>> first_home([3, await na.ones(2)])
        <Device cpu:0 ...>
    """
    first: Home = None
    for value in flat(values):
        home = home_of(value)
        if isinstance(home, Stream) and first in (None, home.device):
            return home
        first = first or home
    return first


def flat(values: Iterable[Any]) -> Iterator[Any]:
    """The values, also those in tuples and lists. Without recursion: a value of the program may be
    nested as deep as it likes, and a list may hold itself.
    """
    pending = [iter(values)]
    seen = set[int]()
    while pending:
        for value in pending[-1]:
            if not isinstance(value, tuple | list):
                yield value
            elif id(value) not in seen:
                seen.add(id(value))
                pending.append(iter(value))
                break
        else:
            pending.pop()


def device_at(home: Home) -> Device | None:
    """The device of a home."""
    return home.device if isinstance(home, Stream) else home


def how_to_run_on(home: str, here: str) -> str:
    """What to write where an operation on tensors of the device `home` came to run on `here`."""
    return (
        f"Name no stream, and it runs on {home}, where its tensors are. Behind or inside another "
        f"operation, which runs on {here}, await that one first."
    )
