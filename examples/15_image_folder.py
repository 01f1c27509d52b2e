"""Equalise a folder of pictures on a Dask cluster, of which no worker holds more than a few.

Needs, from a checkout, `pip install '.[dask,demo]'`. The whole demonstration, with progress and for
a folder of yours, is `numbasync cluster-demo --images FOLDER`.

    python examples/15_image_folder.py
"""

import asyncio
import logging
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client, LocalCluster
from PIL import Image

import numbasync as na
from numbasync_kernels import image

OPTIONS: dict = {
    "n_workers": 2,
    "threads_per_worker": 1,
    "host": "127.0.0.1",
    "dashboard_address": "127.0.0.1:0",
    # Dask logs an error of a worker that ends while its heartbeat is on its way.
    "silence_logs": logging.CRITICAL,
}
SIZE = (120, 160)


def read(path: Path) -> np.ndarray:
    with Image.open(path) as picture:
        return np.asarray(picture.convert("L"))


def write(path: Path, levels: np.ndarray) -> None:
    Image.fromarray(levels).save(path)


async def count(path: Path) -> np.ndarray:
    """The counts of a picture's levels. The file is read on a thread: the worker's loop goes on."""
    levels = na.from_host((await asyncio.to_thread(read, path)).reshape(-1))
    return await image.histogram(na.zeros(256, np.int32), levels).output().to_host()


async def equalise(path: Path, table: np.ndarray) -> str:
    """Write the picture with the levels of a table; the new file's name."""
    levels = await asyncio.to_thread(read, path)
    out = na.empty(levels.shape, np.uint8)
    equal = await image.look_up(out, na.from_host(levels), na.from_host(table)).output().to_host()
    target = path.with_suffix(".equal.png")
    await asyncio.to_thread(write, target, equal)
    return str(target)


def main(pictures: int = 12) -> None:
    rng = np.random.default_rng(0)
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(**OPTIONS) as cluster,
        Client(cluster) as client,
    ):
        paths = [Path(folder, f"{i}.png") for i in range(pictures)]
        for i, path in enumerate(paths):
            write(path, rng.integers(40, 50 + 4 * i, SIZE).astype(np.uint8))
        client.register_plugin(na.dask.WorkerDevice(pool_bytes=16 << 20))
        counts: Any = client.gather(na.dask.map_ops(client, count, paths))
        table = image.equalisation_table_reference(np.sum(counts, axis=0))
        results: Any = client.gather(
            na.dask.map_ops(client, equalise, paths, [table] * pictures, retries=2)
        )
        before, after = (np.array([read(p) for p in files]) for files in (paths, results))
        print(
            f"{pictures} pictures: levels {before.min()} to {before.max()}, now 0 to {after.max()}"
        )
        np.testing.assert_array_equal(after, table[before])


if __name__ == "__main__":  # the workers import this file
    main()
