"""A folder of pictures, equalised together on the workers of a Dask cluster.

The first pass over the folder counts the grey levels of all pictures; the second one gives every
picture the levels by which those of the whole folder are about equally frequent. A task computes
with one picture after the other, while the next one is read, so that a worker never holds more than
two for each of its threads, however large the folder is. Counts are whole numbers: the result does
not depend on the order of the tasks, on how many workers there are, or on tasks that run again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import numbasync as na
from numbasync.errors import CallerError, InternalError
from numbasync.tools.cluster_progress import Finished, run_tasks, show_workers, workers_of
from numbasync.tools.demo_pictures import photographs, read_picture, refuse_link
from numbasync.tools.demo_pictures import write_picture as _write

TASK_PICTURES = 4
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


async def pictures(paths: Sequence[str]) -> AsyncIterator[tuple[str, np.ndarray[Any, Any]]]:
    """Each path with its picture's pixels, read on a thread while the caller works at the one
    before.
    """
    reading = asyncio.ensure_future(asyncio.to_thread(_pixels, paths[0]))
    try:
        for path, following in zip(paths, [*paths[1:], None], strict=True):
            pixels = await reading
            if following is not None:
                reading = asyncio.ensure_future(asyncio.to_thread(_pixels, following))
            yield path, pixels
    finally:
        reading.cancel()


async def count_levels(paths: Sequence[str]) -> Counts:
    """The counts of some pictures together."""
    counts = np.zeros(256, np.int64)
    async for _, pixels in pictures(paths):
        counts += await counted(pixels)
    return counts


async def equalise(paths: Sequence[str], table: np.ndarray[Any, Any], out: str) -> int:
    """Write some pictures with other levels to the folder `out`; how many pixels they have."""
    size = 0
    async for path, pixels in pictures(paths):
        levels = await looked_up(pixels, table)
        await asyncio.to_thread(_write, levels, target_of(path, out))
        size += int(levels.size)
    return size


def target_of(path: str, out: str) -> Path:
    """The PNG file of a picture's result."""
    name = Path(path).name
    return Path(out, name if name.lower().endswith(".png") else f"{name}.png")


def _pixels(path: str) -> np.ndarray[Any, Any]:
    return read_picture(Path(path)).pixels


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
        CallerError: `folder` has no pictures, or is `out`, or two results have one name, or `out`
            is a link.
        InternalError: a result is not NumPy's.
    """
    from numbasync_kernels import image

    paths, workers = pictures_of(folder), workers_of(client)
    if out.resolve() == folder.resolve():
        raise CallerError(f"--out {out} is the folder of the pictures; name another one.")
    targets = Counter(target_of(path, str(out)).name for path in paths)
    name, count = targets.most_common(1)[0]
    if count > 1:
        raise CallerError(f"{count} pictures of {folder} have the result {name}: rename one.")
    refuse_link(out)
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
