"""The requirements of a test on the machine, and the device and memory that the test may use.

`@pytest.mark.cuda(min_cc=(8, 0), min_memory=2**30, devices=2)` states the requirements. The number
of workers that share the machine limits the memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from numbasync.device.device import Device, devices
from numbasync.errors import CallerError

_KEYS = ("min_cc", "min_memory", "devices")
FREE = 0.9  # the part of a device's memory for all workers: contexts and modules take the rest


def wished(marks: Iterable[pytest.Mark]) -> dict[str, Any]:
    """The requirements in a test's marks; the nearest mark takes precedence.

    Raises:
        CallerError: a mark has an unknown requirement, or a wrong value.
    """
    requirements: dict[str, Any] = {}
    for mark in marks:
        if mark.args:
            raise CallerError(
                f"@pytest.mark.cuda({mark.args[0]!r}): say what it is, as in "
                f"min_cc={mark.args[0]!r}."
            )
        requirements = {**mark.kwargs, **requirements}
    unknown = sorted(set(requirements) - set(_KEYS))
    if unknown:
        raise CallerError(
            f"@pytest.mark.cuda({unknown[0]}=...): it takes {', '.join(_KEYS)} and nothing else."
        )
    _capability(requirements.get("min_cc", 0))
    for name, least in (("min_memory", 0), ("devices", 1)):
        value = requirements.get(name, least)
        if not isinstance(value, int) or value < least:
            raise CallerError(
                f"@pytest.mark.cuda({name}={value!r}): a whole number of at least {least}."
            )
    return requirements


def lacking(wishes: Mapping[str, Any], found: Sequence[Device]) -> str:
    """Why the devices `found` do not meet the requirements of a test's mark; "" if they do.

    Args:
        wishes: `min_cc`, a pair such as (8, 0) or a number such as 8.0; `min_memory`, bytes of
            one device; `devices`, how many. See `wished`.
    """
    count = wishes.get("devices", 1)
    if len(found) < count:
        return f"{count} CUDA devices, and there are {len(found)}"
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
    """The index of this worker of pytest-xdist, and the number of workers; (0, 1) without it."""
    name = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    count = os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")
    return int(name), int(count)


_limited: set[Device] = set()


def device_of(kind: str, one_memory: bool) -> Device:
    """The device of this kind for this worker. Workers get separate devices where there are
    enough; each worker on a shared device allocates at most its part of the memory.

    Args:
        one_memory: the devices of this kind share one memory.
    """
    index, count = share()
    candidates = devices(kind)[:1] if one_memory else devices(kind)
    chosen = candidates[index % len(candidates)]
    if count > 1 and chosen not in _limited:
        _limited.add(chosen)
        sharers = len(range(index % len(candidates), count, len(candidates)))
        chosen.pool = chosen.new_pool(int(chosen.backend.total_memory * FREE / sharers))
    return chosen
