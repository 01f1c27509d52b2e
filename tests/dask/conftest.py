"""Small Dask clusters on this machine, on the loopback interface only."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from dask import config

import numbasync as na

distributed = pytest.importorskip("distributed", reason="needs the extra dask")

CONFIG = {
    "distributed.scheduler.allowed-failures": 10,
    "distributed.nanny.environ": {"NUMBASYNC_DEVICE": "cpu"},
}


@contextmanager
def local_cluster(folder: Any, **options: Any) -> Iterator[Any]:
    """Two worker processes of one thread each, ended at the end of the block; gives the client."""
    given = {
        "n_workers": 2, "threads_per_worker": 1, "processes": True, "host": "127.0.0.1",
        "dashboard_address": "127.0.0.1:0", "local_directory": str(folder),
        "silence_logs": logging.CRITICAL, "memory_limit": 0, **options,
    }  # fmt: skip
    with (
        config.set(CONFIG),
        distributed.LocalCluster(**given) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.register_plugin(na.dask.WorkerDevice("cpu"))
        yield client


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A synchronous client of a cluster that the tests of a file share."""
    with local_cluster(tmp_path_factory.mktemp("dask")) as client:
        yield client
