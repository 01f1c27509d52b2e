"""A folder of pictures, equalised together on the workers of a Dask cluster.

The first pass over the folder counts the grey levels of all pictures; the second one gives every
picture the levels by which those of the whole folder are about equally frequent. A task reads,
computes and writes a few pictures beside one another, so that a worker never holds more than these,
however large the folder is. Counts are whole numbers: the result does not depend on the order of
the tasks, on how many workers there are, or on tasks that run again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import numbasync as na
from numbasync.errors import CallerError, InternalError
from numbasync.tools.cluster_progress import Finished, run_tasks, show_workers, workers_of
from numbasync.tools.demo import photographs, read_picture

TASK_PICTURES = 4
POOL_BYTES = 256 << 20  # most device memory of a worker
SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
SAMPLES, SAMPLE_SIZE = 48, 384  # pictures of the folder that is written here; pixels of a side

Counts = np.ndarray[tuple[int], np.dtype[np.int64]]


# --- what a worker does ---


def grey_levels(pixels: np.ndarray[Any, Any]) -> na.DeviceOp[na.Tensor]:
    """The grey levels of a picture, shape `(height, width)`, uint8."""
    from numbasync_kernels import image

    return image.grey(na.empty(pixels.shape[:2], np.uint8), na.from_host(pixels)).output()


def counted(pixels: np.ndarray[Any, Any]) -> na.DeviceOp[Any]:
    """How many pixels of a picture have each of 256 levels."""
    from numbasync_kernels import image

    def count(levels: na.Tensor) -> na.DeviceOp[Any]:
        launch = image.histogram[image.histogram_grid(levels.size), 256]
        return launch(na.zeros(256, np.int32), levels.reshape(-1)).output().to_host()

    return grey_levels(pixels).then(count)


def looked_up(
    pixels: np.ndarray[Any, Any], table: np.ndarray[Any, Any]
) -> na.DeviceOp[np.ndarray[Any, Any]]:
    """The picture with its grey levels replaced by those of a table."""
    from numbasync_kernels import image

    def replace(levels: na.Tensor) -> na.DeviceOp[Any]:
        replaced = image.look_up(na.empty(levels.shape, np.uint8), levels, na.from_host(table))
        return replaced.output().to_host()

    return grey_levels(pixels).then(replace)


async def count_levels(paths: Sequence[str]) -> Counts:
    """The counts of some pictures together. Files are read on threads."""

    async def one(path: str) -> Any:
        return await counted(await asyncio.to_thread(_pixels, path))

    counts: Counts = np.stack(await asyncio.gather(*map(one, paths))).sum(axis=0, dtype=np.int64)
    return counts


async def equalise(paths: Sequence[str], table: np.ndarray[Any, Any], out: str) -> int:
    """Write some pictures with other levels to the folder `out`; how many pixels they have."""

    async def one(path: str) -> int:
        levels = await looked_up(await asyncio.to_thread(_pixels, path), table)
        await asyncio.to_thread(_write, levels, target_of(path, out))
        return int(levels.size)

    return sum(await asyncio.gather(*map(one, paths)))


def target_of(path: str, out: str) -> Path:
    """The PNG file of a picture's result."""
    name = Path(path).name
    return Path(out, name if name.lower().endswith(".png") else f"{name}.png")


def _pixels(path: str) -> np.ndarray[Any, Any]:
    return read_picture(Path(path)).pixels


def _write(levels: np.ndarray[Any, Any], target: Path) -> None:
    """Write a file that is whole whenever it is there: another worker may write it, too."""
    from PIL import Image

    part = target.with_name(f".{target.name}.{os.getpid()}")
    Image.fromarray(levels).save(part, "PNG")
    os.replace(part, target)


def _most_memory() -> int:
    """The most bytes that tensors of this worker had at once."""
    return na.default_device().pool.stats().used_high


# --- what the client does ---


def pictures_of(folder: Path) -> list[str]:
    """The pictures of a folder, by name.

    Raises:
        CallerError: there is no such folder, or there are no pictures in it.
    """
    if not folder.is_dir():
        raise CallerError(f"--images {folder}: there is no such folder.")
    paths = sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES and p.is_file())
    if not paths:
        raise CallerError(
            f"--images {folder}: it has no pictures; their names end in {', '.join(SUFFIXES)}."
        )
    return [str(path.resolve()) for path in paths]


def write_samples(folder: Path, count: int = SAMPLES) -> None:
    """Fill a folder with dark versions of photographs."""
    from PIL import Image

    rng, size = np.random.default_rng(0), (SAMPLE_SIZE, SAMPLE_SIZE)
    sources = [Image.fromarray(read_picture(p).pixels).resize(size) for p in photographs()]
    for i in range(count):
        low, high = np.sort(rng.integers(0, 160, 2))
        pixels = np.asarray(sources[i % len(sources)], np.float32)
        dark = (low + pixels * ((high - low) / 255)).astype(np.uint8)
        Image.fromarray(dark).save(folder / f"{i:03}.png")


def equalise_folder(client: Any, console: Any, folder: Path, out: Path) -> None:
    """Write each picture of a folder to `out` with the levels of all equalised together.

    Every worker must see both folders.

    Raises:
        CallerError: `folder` has no pictures, or is `out`.
        InternalError: a result is not NumPy's.
    """
    from numbasync_kernels import image

    paths, workers = pictures_of(folder), workers_of(client)
    if out.resolve() == folder.resolve():
        raise CallerError(f"--out {out} is the folder of the pictures; name another one.")
    out.mkdir(parents=True, exist_ok=True)
    tasks = [paths[i : i + TASK_PICTURES] for i in range(0, len(paths), TASK_PICTURES)]
    console.print(
        f"{len(workers)} workers, {len(paths)} pictures, {len(tasks)} tasks", highlight=False
    )
    first: Finished = run_tasks(
        client, console, "count   ", count_levels, [tasks], lambda c: int(c.sum()), "pixels"
    )
    counts = np.sum(first.values, axis=0)
    table = image.equalisation_table_reference(counts)
    columns = tasks, [table] * len(tasks), [str(out.resolve())] * len(tasks)
    second = run_tasks(client, console, "equalise", equalise, columns, int, "pixels")
    memory = max(client.run(_most_memory).values())
    pixels = sum(second.values)
    if pixels != counts.sum():
        raise InternalError(f"the passes had {counts.sum()} and {pixels} pixels.")
    for path in {paths[0], paths[-1]}:
        levels = image.grey_reference(_pixels(path))
        if (image.look_up_reference(levels, table) != _grey(target_of(path, str(out)))).any():
            raise InternalError(f"{path}: the levels differ from NumPy's.")
    seconds = first.seconds + second.seconds
    show_workers(console, [first, second])
    console.print(
        f"{pixels / 1e6:,.1f} million pixels in {seconds:.1f} s: {pixels / seconds / 1e6:,.1f} "
        f"million a second\nmost device memory of a worker: {memory / 1e6:,.1f} MB\n"
        f"same as NumPy; results in {out.resolve()}",
        highlight=False,
    )


def _grey(path: Path) -> np.ndarray[Any, Any]:
    from PIL import Image

    with Image.open(path) as picture:
        return np.asarray(picture)
