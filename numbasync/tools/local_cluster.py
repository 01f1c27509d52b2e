"""A Dask cluster of this machine's processes, for commands that bring their own."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def local_client(workers: int) -> Iterator[Any]:
    """The client of a cluster with so many workers of one thread, on loopback; both end with the
    block.
    """
    distributed: Any = importlib.import_module("distributed")
    with (
        distributed.LocalCluster(
            n_workers=workers, threads_per_worker=1, host="127.0.0.1",
            dashboard_address="127.0.0.1:0", silence_logs=logging.CRITICAL,
        ) as cluster,
        distributed.Client(cluster) as client,
    ):  # fmt: skip
        yield client
