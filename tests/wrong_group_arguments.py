"""The calls in a group of processes for `wrong_arguments`: the other processes are not there."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

import numbasync as na
from numbasync import collective
from numbasync.collective import Communicator, GroupKey
from numbasync.collective.communicator import Channel
from numbasync.collective.exchange import Exchange
from tests.wrong_arguments import RIGHT, Call, Make

NOBODY = GroupKey("/there is no such folder", 2)


def lonely(d: na.Device) -> Communicator:
    """Rank 0 of two, in a group whose folder is gone: what waits for rank 1 fails at once."""
    comm = object.__new__(Communicator)
    comm.device, comm.rank, comm.size, comm.timeout = d, 0, 2, 30.0
    comm._key, comm._is_closed, comm._pairs = NOBODY, False, {}
    comm._group = Channel(Exchange(NOBODY, 0, 30.0), d)
    return comm


GROUP: dict[str, Make] = {
    **RIGHT, "key": lambda d: NOBODY, "comm": lonely, "to": lambda d: 1, "source": lambda d: 1,
    "parts": lambda d: na.zeros((4, 2), np.float32).sync(),
}  # fmt: skip


def _in_group(function: Any, device: na.Device) -> Any:
    """A collective with its communicator named as if it were needed."""
    return lambda parts, comm, **given: function(parts, comm=comm, **given)


def calls() -> Iterator[Call]:
    """`connect`, `send`, `recv`, and the collectives with a communicator."""
    for name in ("connect", "send", "recv", "Communicator"):
        function = getattr(collective, name)
        parameters = tuple(inspect.signature(function).parameters.values())
        yield Call(f"group.{name}", partial(_itself, function), parameters, GROUP)
    for name in ("all_reduce", "reduce_scatter", "all_gather", "broadcast"):
        function = getattr(collective, name)
        parameters = tuple(
            p.replace(default=p.empty) if p.name == "comm" else p
            for p in inspect.signature(function).parameters.values()
        )
        yield Call(f"group.{name}", partial(_in_group, function), parameters, GROUP)


def _itself(one: Any, device: na.Device) -> Any:
    return one
