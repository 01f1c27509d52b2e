"""`numbasync cluster-demo`: the workers of a Dask cluster price an option, or equalise pictures."""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numbasync as na
from numbasync import cache_folder
from numbasync.errors import CallerError, MissingExtraError, StateError
from numbasync.tools.local_cluster import local_client

MODULES = {"rich": "demo", "distributed": "dask"}  # their extras
OF_IMAGES = {"PIL": "demo", "skimage": "demo"}
OUT = Path("numbasync-equalised")


def run(
    address: str | None,
    workers: int | None,
    device: str | None,
    paths: int,
    images: Path | str | None = None,
    out: Path = OUT,
) -> int:
    """Run the command. Returns the exit status.

    Args:
        address: of a cluster's scheduler; None: a cluster is started here, and ended again.
        workers: of the cluster that is started; None: one for each processor, 8 at most.
        device: of each worker; None: as `WorkerDevice` chooses.
        paths: how many to simulate, at least.
        images: a folder of pictures to equalise, in the place of the price; "": one is written.
        out: a folder for the equalised pictures.

    Raises:
        CallerError: there are no paths, no pictures, no workers, or workers of a cluster that runs
            already.
        StateError: there is no scheduler at `address`.
    """
    for module, extra in (MODULES if images is None else MODULES | OF_IMAGES).items():
        if importlib.util.find_spec(module) is None:
            raise MissingExtraError(
                f"the demo needs {module}, which is not installed: pip install 'numbasync[{extra}]'"
            )
    if paths < 1 or (workers is not None and workers < 1):
        raise CallerError(
            f"--paths {paths} and --workers {workers} are whole numbers of at least 1."
        )
    if address is not None and workers is not None:
        raise CallerError(
            f"--workers {workers} is for a cluster that is started here; leave it out."
        )
    from rich.console import Console

    from numbasync.tools import cluster_images, cluster_pricing

    console = Console()
    with ExitStack() as stack:
        folder = Path(images or ".")
        if images == "":
            folder = stack.enter_context(cache_folder.temporary())
            cluster_images.write_samples(folder)
        if images is not None:
            cluster_images.pictures_of(folder)  # before a cluster is started for nothing
        client = stack.enter_context(_client(address, workers))
        client.register_plugin(na.dask.WorkerDevice(device or "auto"))
        if images is None:
            cluster_pricing.price(client, console, -(-paths // cluster_pricing.TASK_PATHS))
        else:
            cluster_images.equalise_folder(client, console, folder, out)
    return 0


@contextmanager
def _client(address: str | None, workers: int | None) -> Iterator[Any]:
    distributed: Any = importlib.import_module("distributed")  # typed in part only
    if address is not None:
        try:
            client = distributed.Client(address, timeout=10)
        except OSError as error:
            raise StateError(f"there is no scheduler at {address}: {error}") from None
        with client:
            yield client
        return
    count = workers or min(os.cpu_count() or 1, 8)
    with local_client(count) as client:
        client.run(_leave_interrupts)
        yield client


def _leave_interrupts() -> None:
    """Ctrl-C goes to all processes of a terminal; this one ends its workers itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
