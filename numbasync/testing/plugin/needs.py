"""What a test needs of the machine, and what it may take of it.

`@pytest.mark.cuda(min_cc=(8, 0), min_memory=2**30, devices=2)` says the first; how many workers
share the machine says the second.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from numbasync.device.device import Device, devices
from numbasync.errors import CallerError

_KEYS = ("min_cc", "min_memory", "devices")
FREE = 0.9  # of a device's memory, for those who share it: contexts and modules take some, too


def wished(marks: Iterable[pytest.Mark]) -> dict[str, Any]:
    """What a test's marks wish for, the nearest one first.

    Raises:
        CallerError: they wish for something that there is not.
    """
    found: dict[str, Any] = {}
    for mark in marks:
        if mark.args:
            raise CallerError(
                f"@pytest.mark.cuda({mark.args[0]!r}): say what it is, as in "
                f"min_cc={mark.args[0]!r}."
            )
        found = {**mark.kwargs, **found}
    unknown = sorted(set(found) - set(_KEYS))
    if unknown:
        raise CallerError(
            f"@pytest.mark.cuda({unknown[0]}=...): it takes {', '.join(_KEYS)} and nothing else."
        )
    _capability(found.get("min_cc", 0))
    for name, least in (("min_memory", 0), ("devices", 1)):
        wish = found.get(name, least)
        if not isinstance(wish, int) or wish < least:
            raise CallerError(
                f"@pytest.mark.cuda({name}={wish!r}): a whole number of at least {least}."
            )
    return found


def lacking(wishes: Mapping[str, Any], found: Sequence[Device]) -> str:
    """Why the devices in `found` do not do for a test with such a mark; "" if they do.

    Args:
        wishes: `min_cc`, a pair such as (8, 0) or a number such as 8.0; `min_memory`, bytes of
            one device; `devices`, how many. See `wished`.
    """
    few = wishes.get("devices", 1)
    if len(found) < few:
        return f"{few} CUDA devices, and there are {len(found)}"
    first = found[0]
    capability = _capability(wishes.get("min_cc", (0, 0)))
    if first.compute_capability < capability:
        has, wants = (".".join(map(str, c)) for c in (first.compute_capability, capability))
        return f"compute capability {wants}, and {first.label} has {has}"
    least, total = wishes.get("min_memory", 0), first.backend.total_memory
    if total < least:
        return f"{least:,} bytes of device memory, and {first.label} has {total:,}"
    return ""


def _capability(wish: Any) -> tuple[int, int]:
    if isinstance(wish, tuple) and len(wish) == 2 and all(isinstance(w, int) for w in wish):
        return wish
    if isinstance(wish, int | float):
        major, _, minor = str(float(wish)).partition(".")
        return int(major), int(minor)
    raise CallerError(f"@pytest.mark.cuda(min_cc={wish!r}): write a pair, such as (8, 0), or 8.0.")


def share() -> tuple[int, int]:
    """Which of how many workers of pytest-xdist this process is; (0, 1) without them."""
    name = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    count = os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")
    return int(name), int(count)


_limited: set[Device] = set()


def device_of(kind: str, one_memory: bool) -> Device:
    """The device of this kind for this worker. Workers have devices of their own as far as there
    are enough; those who share one hand out no more than their part of its memory.

    Args:
        one_memory: the devices of this kind have the same memory.
    """
    index, count = share()
    found = devices(kind)[:1] if one_memory else devices(kind)
    chosen = found[index % len(found)]
    if count > 1 and chosen not in _limited:
        _limited.add(chosen)
        sharers = len(range(index % len(found), count, len(found)))
        chosen.pool = chosen.new_pool(int(chosen.backend.total_memory * FREE / sharers))
    return chosen
