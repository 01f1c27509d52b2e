"""The device of each worker of a Dask cluster: which one, how much of its memory, how much work."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from distributed import WorkerPlugin

from numbasync import cache_folder
from numbasync.arguments import shown
from numbasync.device.device import Device, default_device, devices, set_default_device, use_device
from numbasync.device.storage import MemoryPool
from numbasync.errors import CallerError, StateError
from numbasync.ops.backpressure import limit as limit_device

AUTO = "auto"


@dataclass
class _Use:
    """What a device was before the first plugin of this process, and how many plugins there are."""

    device: Device
    default: Device | None
    pool: MemoryPool
    plugins: int = 0


_uses: dict[Device, _Use] = {}


class WorkerDevice(WorkerPlugin):
    """Gives each worker of a cluster its device: `client.register_plugin(na.dask.WorkerDevice())`.

    The device is the default one of the worker's process, for tasks and for received tensors.
    Removing the plugin, or closing the worker, lifts the limit and gives unused memory back.

    Args:
        device: `"auto"`: one GPU each, in turn over the worker processes of a host, or the CPU
            device where there is no GPU; or a device's name, as `use_device` takes it.
        pool_bytes: most bytes that tensors of the worker may have; None for the device's limit.
        limit: most operations in flight on the device; None for any number. See `na.limit`.
        limit_bytes: most bytes of operations in flight; None for any number.

    Raises:
        CallerError: registering: there is no such device.

    Workers that are threads of one process (`LocalCluster(processes=False)`) share its device: the
    first plugin decides.

    Examples:
        >>> _ = client.register_plugin(na.dask.WorkerDevice("cpu", limit=16))
        >>> print(await na.dask.submit(client, na.ones(3).to_host()))
        [1. 1. 1.]
    """

    name = "numbasync-device"

    def __init__(
        self,
        device: str = AUTO,
        pool_bytes: int | None = None,
        limit: int | None = None,
        limit_bytes: int | None = None,
    ) -> None:
        if not isinstance(device, str):
            raise CallerError(
                f"WorkerDevice takes a device's name, such as 'cpu' or 'cuda:1', not "
                f"{shown(device)}: a device belongs to one process."
            )
        self.device = device
        self.pool_bytes = pool_bytes
        self.limit = limit
        self.limit_bytes = limit_bytes
        self._use: _Use | None = None

    def setup(self, worker: Any) -> None:
        """Make the device the default one. Called by Dask."""
        device = self._chosen()
        use = _uses.get(device)
        if use is None:
            use = _Use(device, set_default_device(device), device.pool)
            _uses[device] = use
            if self.pool_bytes is not None:
                device.pool = device.new_pool(self.pool_bytes)
            if self.limit is not None or self.limit_bytes is not None:
                limit_device(self.limit, self.limit_bytes, device)
        use.plugins += 1
        self._use = use

    def teardown(self, worker: Any) -> None:
        """Undo `setup`, and give unused memory back to the system. Called by Dask."""
        use, self._use = self._use, None
        if use is None:
            return
        use.plugins -= 1
        if use.plugins:
            return
        del _uses[use.device]
        limit_device(device=use.device)
        pool, use.device.pool = use.device.pool, use.pool
        use.device.reclaim()
        pool.trim()
        use.pool.trim()
        set_default_device(use.default)

    def _chosen(self) -> Device:
        if self.device != AUTO:
            with use_device(self.device) as device:
                return device
        gpus, default = devices("cuda"), default_device()
        return gpus[_place() % len(gpus)] if default in gpus else default


@cache
def _place() -> int:
    """This process's number among the worker processes of this user on this host: the lowest that
    no other has. A file lock holds it, which ends with the process, however that ends.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return 0
    path = Path(tempfile.gettempdir()) / f"numbasync-workers-{os.getuid()}"
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        with cache_folder.opened(path, make=True, above=False) as folder:
            for place in count():
                file = os.open(str(place), flags, 0o600, dir_fd=folder.descriptor)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    os.close(file)
                else:
                    return place  # the file stays open, and so locked
    except OSError as error:
        raise StateError(
            f"workers take their places in {path}, which cannot be used: {error}. Remove it, set "
            "TMPDIR to another folder, or give each worker its device: WorkerDevice('cuda:1')."
        ) from None
    raise AssertionError
