"""Which configuration each call of one kernel runs: looked up, or measured.

A choice belongs to a device, to versions of the software, to the kernel's code and configurations,
and to the key of a call. It is computed from measurements that are kept on disk.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import sys
import threading
import warnings
import weakref
from collections.abc import Hashable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from numbasync import cache_folder
from numbasync.device.device import Device
from numbasync.fork import in_child
from numbasync.launch.launcher import Launcher
from numbasync.memo import Memo
from numbasync.ops.op import Steps
from numbasync.tensors.partition import Partition
from numbasync.tensors.tensor import Tensor
from numbasync.tuning import digests
from numbasync.tuning.configurations import Configurations
from numbasync.tuning.keys import Key, key_of
from numbasync.tuning.measurements import KEPT, Measurements
from numbasync.tuning.session import Rules, Session

_NUMBERS = (int, float, complex, np.number, np.bool_)
MOST_KNOWN = 4096  # kinds of calls whose choice is looked up, not computed; see `Memo`

_all: weakref.WeakSet[Choices] = weakref.WeakSet()


@in_child
def _after_fork() -> None:
    for choices in list(_all):
        choices.start_over()


class Choices:
    """The choices of one kernel, on all devices.

    Attributes:
        configurations: of the kernel.
    """

    def __init__(self, configurations: Configurations, key: Key, rules: Rules, rounds: int) -> None:
        self.configurations = configurations
        self._key = key
        self._rules = rules
        self._rounds = rounds
        self._identity = {
            "kernel": configurations.name,
            "code": configurations.digest,
            "configurations": list(configurations.texts),
            "key function": digests.described(key),
            "reference": digests.described(rules.reference),
            "tolerance": rules.tolerance,
        }
        self._files = f"{configurations.name}-{digests.digest(repr(self._identity))}"
        self._lock = threading.Lock()  # held while a configuration is measured
        self._tables: dict[tuple[Device, str], Measurements] = {}
        self._known = Memo[tuple[Device, Hashable], int](MOST_KNOWN)
        _all.add(self)

    def start_over(self) -> None:
        """Reset in a forked child: the thread that was measuring does not exist there."""
        self._lock = threading.Lock()

    @cached_property
    def prototype(self) -> Launcher:
        """A kernel with the parameters that all configurations have."""
        return self.configurations.launcher(self.configurations.default)

    def find(self, device: Device, values: tuple[Any, ...]) -> int | None:
        """The configuration that was chosen for such a call; None: none has been."""
        parts = _quick_key(values) if self._key is None else None
        if parts is None:
            return self.measurements(device, values).best()
        index = self._known.get((device, parts))
        if index is None:
            index = self.measurements(device, values).best()
            if index is not None:
                self._known[device, parts] = index
        return index

    def measurements(self, device: Device, values: tuple[Any, ...]) -> Measurements:
        """What is known for the key of such a call."""
        key = key_of(self._key, self.prototype, values)
        table = self._tables.get((device, key))
        if table is None:
            identity = {**self._identity, **_described(device)}
            name = f"{self._files}-{digests.digest(repr(identity), key)}.json"
            folder = _folder()
            path = folder and folder / name
            table = Measurements(path, identity, key, self._rounds)
            table = self._tables.setdefault((device, key), table)
        return table

    def tune(self, device: Device, values: tuple[Any, ...]) -> Steps[Measurements]:
        """Yield the steps of tuning, as prerequisites, until each configuration is measured.

        Raises:
            LaunchError: no configuration can be used.
        """
        table = self.measurements(device, values)
        session = Session(self.configurations, table, self._rules, values, device, self._lock)
        while not table.done:
            yield session
        return table

    def forget(self) -> None:
        """Forget all measurements of this kernel and these configurations, on disk, too."""
        self._tables.clear()
        self._known.clear()
        folder = _folder()
        if folder is None:
            return
        with (
            contextlib.suppress(FileNotFoundError, cache_folder.UntrustedError),
            cache_folder.opened(folder) as kept,
        ):
            for name in kept.names():
                if name.startswith(f"{self._files}-") and name.endswith(".json"):
                    kept.remove(name)

    def __repr__(self) -> str:
        chosen = [
            f"{self.configurations.texts[best]} for ({table.key})"
            for table in list(self._tables.values())
            if (best := table.best()) is not None
        ]
        return "; ".join([f"{len(self.configurations)} configurations", *chosen])


def _folder() -> Path | None:
    """Where measurements are kept; None: the user has no folder for it."""
    try:
        return cache_folder.root() / "autotune"
    except OSError as error:
        warnings.warn(f"{KEPT} not kept: {error}.", RuntimeWarning, stacklevel=2)
        return None


def _quick_key(values: tuple[Any, ...]) -> tuple[Hashable, ...] | None:
    """A key that is equal only for calls with equal default keys; None: there is no quick one."""
    parts: list[Hashable] = []
    for value in values:
        cls: Any = type(value)
        if cls is Tensor or cls is Partition:
            parts.append(value.fingerprint)
        elif issubclass(cls, _NUMBERS):
            parts.append(cls)
        else:
            return None
    return tuple(parts)


def _described(device: Device) -> dict[str, Any]:
    """What measurements on a device depend on, apart from the kernel."""
    own: Any = sys.modules[__name__.partition(".")[0]]
    versions = {"numbasync": str(own.__version__)}
    for package in ("numba", "numba-cuda"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "none"
    # How driver calls are made changes no kernel's time.
    versions |= {k: v for k, v in device.backend.versions.items() if k != "driver calls"}
    return {
        "device": device.name,
        "compute capability": list(device.compute_capability),
        "versions": versions,
    }
