"""`numbasync demo`: runs photographs through a pipeline of kernels, with many in flight.

The pipeline converts each picture to grey, blurs it, detects its edges, and counts and equalises
its levels. All pictures are processed twice, first one after the other and then all at once, while
the event loop turns. Parts of the results are compared with NumPy's and SciPy's.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import numbasync as na
from numbasync.device.device import Device
from numbasync.errors import InternalError, MissingExtraError
from numbasync.tools.demo_pictures import (
    SIGMA,
    Picture,
    choose_targets,
    photographs,
    read_picture,
    save,
)  # fmt: skip

STAGES = ("upload", "grey", "blur", "sobel", "histogram", "equalise", "download")
TILE = (16, 16)
SECONDS_A_PASS = 8.0  # a slower device gets smaller pictures, unless --full
QUICK_SECONDS = 1.0
SAMPLE = 256  # pixels along each side of the picture that measures the device's speed
WINDOW = 64  # pixels along each side of the parts that are checked
ALIKE = 0.05  # two passes whose times differ by less took equally long


def run(images: Sequence[Path], device: Device, out: Path | None, full: bool) -> int:
    """Run the command. Returns the exit status."""
    for module in ("PIL", "rich", "scipy", "skimage"):
        if importlib.util.find_spec(module) is None:
            raise MissingExtraError(
                f"the demo needs {module}, which is not installed: pip install 'numbasync[demo]'"
            )
    pictures = [read_picture(path) for path in images or photographs()]
    if out is None and not images:
        out = Path("numbasync-demo")
    choose_targets(pictures, images, out)
    with na.use_device(device):
        return na.run(_main(pictures, device, full))


# --- the pipeline -----------------------------------------------------------------------


def pipeline(picture: Picture) -> na.DeviceOp[Any]:
    """All stages for one picture as one operation, whose work runs on one stream, in order."""
    from numbasync_kernels import image

    height, width, _ = picture.pixels.shape
    picture.marks.clear()

    def plane(dtype: Any = np.float32) -> na.DeviceOp[Any]:
        return na.empty((height, width), dtype)

    def mark(ctx: na.Context, value: Any) -> na.DeviceOp[Any]:
        picture.marks.append(ctx.device.new_event().record(ctx.stream))
        return na.value(value)

    def stages(colours: Any, weights: Any) -> na.DeviceOp[Any]:
        levels = _stage(image.grey(plane(np.uint8).partition(TILE), colours), mark)
        smooth = _stage(image.gaussian_blur(plane().partition(TILE), levels, weights), mark)
        edges = _stage(image.sobel(plane().partition(TILE), smooth), mark)
        flat = levels.reshape(-1)
        grid = image.histogram_grid(picture.size)
        counts = _stage(
            image.histogram[grid, 256](na.zeros(256, np.int32), flat), mark, after=edges
        )
        table = image.equalisation_table(na.empty(256, np.uint8), counts).output()
        equal = _stage(image.look_up(plane(np.uint8).partition(TILE), levels, table), mark)
        host = na.zip(equal.to_host(), levels.to_host(), edges.to_host())
        return host.then_with_context(mark)

    def keep(results: Any) -> None:
        picture.equalised, picture.grey, picture.edges = results

    start = na.with_context(lambda ctx: mark(ctx, None))
    load = na.zip(
        start, na.from_host(picture.pixels), na.from_host(image.gaussian_weights(SIGMA))
    ).then_with_context(mark)
    return load.then(lambda loaded: stages(loaded[1], loaded[2])).inspect(keep)


def _stage(launch: na.DeviceOp[Any], mark: Any, after: Any = None) -> na.DeviceOp[Any]:
    """The launch's output, computed once for all its users, with a timing event behind it."""
    done = launch.output().map(lambda o: o.unpartition() if hasattr(o, "unpartition") else o)
    if after is not None:
        done = na.zip(after, done).last()
    return done.then_with_context(mark).shared()


# --- both passes, the checks, and the report ------------------------------------------


@dataclass(frozen=True, slots=True)
class Pass:
    """What it took to process all pictures, and what the event loop did meanwhile.

    Attributes:
        seconds: from the first submission to the last result.
        turns: of a task of the loop that sleeps a millisecond at a time.
        gap: the longest time between two of its turns, in seconds.
    """

    seconds: float
    turns: int
    gap: float


async def _measure(work: Awaitable[Any]) -> Pass:
    """Await the work beside a task that notes its turns."""
    times = [time.perf_counter()]

    async def note_turns() -> None:
        while True:
            await asyncio.sleep(0.001)
            times.append(time.perf_counter())

    turns = asyncio.create_task(note_turns())
    try:
        await work
    finally:
        turns.cancel()
    times.append(time.perf_counter())
    gap = max(b - a for a, b in itertools.pairwise(times))
    return Pass(times[-1] - times[0], len(times) - 2, gap)


async def _main(pictures: list[Picture], device: Device, full: bool) -> int:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console()
    console.print(f"[bold]{device.label}[/bold] {device.name}", highlight=False)
    seconds_a_pixel = await _seconds_a_pixel()
    if not full:
        _fit(pictures, seconds_a_pixel, console)
    if seconds_a_pixel * sum(p.size for p in pictures) < QUICK_SECONDS:
        # On a fast device, allocating memory would dominate the first pass, so a pass is discarded.
        await na.gather(*(pipeline(p) for p in pictures))

    columns = (
        TextColumn("{task.description:24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console) as progress:

        def bar(description: str) -> Callable[[], None]:
            task = progress.add_task(description, total=len(pictures))
            return lambda: progress.advance(task)

        async def serially(advance: Callable[[], None]) -> None:
            stream = device.new_stream()
            for picture in pictures:
                await pipeline(picture).schedule(stream)
                advance()

        async def at_once(advance: Callable[[], None]) -> None:
            async def process(picture: Picture) -> None:
                await pipeline(picture)
                advance()

            await na.gather(*(process(p) for p in pictures))

        serial = await _measure(serially(bar("one after the other")))
        stages = _stage_ms(pictures)
        concurrent = await _measure(at_once(bar("all at once")))
        # Checking takes at most half as long as what is checked.
        said = check(pictures, (serial.seconds + concurrent.seconds) / 2)
        advance = bar("written")
        for picture in pictures:
            save(picture)
            advance()
    _report(console, device, pictures, stages, serial, concurrent)
    console.print(said, highlight=False)
    for folder in sorted({p.target.parent for p in pictures}):
        console.print(
            f"Original, levels, edges: {folder.resolve()}/*-levels-edges.png", highlight=False
        )
    return 0


async def _seconds_a_pixel() -> float:
    """The device's seconds per pixel, once all kernels are compiled."""
    rng = np.random.default_rng(0)
    sample = Picture("sample", rng.integers(0, 256, (SAMPLE, SAMPLE, 3), np.uint8))
    await pipeline(sample)
    began = time.perf_counter()
    await pipeline(sample)
    return (time.perf_counter() - began) / sample.size


def _fit(pictures: list[Picture], seconds_a_pixel: float, console: Any) -> None:
    """Shrink the pictures so that one pass takes at most `SECONDS_A_PASS`."""
    from PIL import Image

    total = sum(p.size for p in pictures)
    scale = (SECONDS_A_PASS / (seconds_a_pixel * total)) ** 0.5
    if scale >= 1:
        return
    for p in pictures:
        height, width, _ = p.pixels.shape
        size = (max(16, round(width * scale)), max(16, round(height * scale)))
        p.pixels = np.asarray(Image.fromarray(p.pixels).resize(size, Image.Resampling.LANCZOS))
    console.print(
        f"Pictures reduced to {scale:.0%} of their width and height: this device takes "
        f"{seconds_a_pixel * 1e6:.1f} us a pixel. --full keeps them.",
        highlight=False,
    )


def _stage_ms(pictures: list[Picture]) -> list[float]:
    """Device milliseconds of each stage, summed over all pictures."""
    spans = [
        [a.elapsed_ms(b) for a, b in zip(p.marks, p.marks[1:], strict=False)] for p in pictures
    ]
    return [sum(times) for times in zip(*spans, strict=True)]


def check(pictures: list[Picture], seconds: float) -> str:
    """Compare windows of the results with NumPy and SciPy, as many of all as the time allows, in
    random order, at least one. Returns a sentence that says what was compared.

    Raises:
        InternalError: something is not what it should be.
    """
    importlib.import_module("scipy.ndimage")  # before the time is taken
    corners = [
        (k, top, left)
        for k, picture in enumerate(pictures)
        for top in range(0, picture.pixels.shape[0], WINDOW)
        for left in range(0, picture.pixels.shape[1], WINDOW)
    ]
    order = np.random.default_rng(0).permutation(len(corners))
    tables: dict[int, np.ndarray[Any, Any]] = {}
    worst, pixels, windows = 0.0, 0, 0
    began = time.perf_counter()
    for i in order:
        k, top, left = corners[i]
        if k not in tables:
            tables[k] = _table(pictures[k])
        difference, size = _check_window(pictures[k], tables[k], top, left)
        worst, pixels, windows = max(worst, difference), pixels + size, windows + 1
        if time.perf_counter() - began >= seconds:
            break
    took = time.perf_counter() - began
    share = pixels / sum(p.size for p in pictures)
    return (
        f"Checked in {took * 1e3:,.1f} ms: {windows} of {len(corners)} windows of {WINDOW} x "
        f"{WINDOW} pixels ({share:.1%} of all), in {len(tables)} of {len(pictures)} pictures.\n"
        f"There the same as NumPy and SciPy: levels exactly, edges within {worst:.1e} of 255."
    )


def _table(picture: Picture) -> np.ndarray[Any, Any]:
    """The new level of each level, from all levels of the picture."""
    from numbasync_kernels import image

    assert picture.grey is not None  # it was computed
    return image.equalisation_table_reference(image.histogram_reference(picture.grey))


def _check_window(
    picture: Picture, table: np.ndarray[Any, Any], top: int, left: int
) -> tuple[float, int]:
    """The largest difference of the edges in a window, in grey levels, and its size in pixels."""
    from scipy import ndimage

    from numbasync_kernels import image

    grey, edges, equalised = picture.grey, picture.edges, picture.equalised
    assert grey is not None and edges is not None and equalised is not None  # all were computed
    window = slice(top, top + WINDOW), slice(left, left + WINDOW)
    exact = {
        "grey": (grey[window], image.grey_reference(picture.pixels[window])),
        "equalised": (equalised[window], image.look_up_reference(grey[window], table)),
    }
    for what, (got, want) in exact.items():
        if not np.array_equal(got, want):
            raise InternalError(f"{picture.name}: {what} differs from NumPy's at ({top}, {left}).")
    # The filters look so far beyond the window; at the picture's edge the nearest pixel counts.
    beyond = image.RADIUS + 1
    up, before = min(top, beyond), min(left, beyond)
    around = grey[top - up : top + WINDOW + beyond, left - before : left + WINDOW + beyond]
    smooth = ndimage.gaussian_filter(
        around.astype(np.float64), SIGMA, mode="nearest", radius=image.RADIUS
    )
    slopes = [ndimage.sobel(smooth, axis, mode="nearest") for axis in (0, 1)]
    height, width = grey[window].shape
    want = np.hypot(*slopes)[up : up + height, before : before + width]
    difference = float(np.abs(edges[window] - want).max(initial=0.0))
    # The blur is within 28 half ulps of 255 in float32, and its weights are rounded once
    # more than SciPy's; a gradient adds eight such values.
    bound = 8 * 2 * 28 * 255 * 2.0**-24
    if difference > bound:
        raise InternalError(
            f"{picture.name}: edges differ from SciPy's by {difference} at ({top}, {left})."
        )
    return difference, grey[window].size


def _report(
    console: Any, device: Device, pictures: list[Picture], stages: list[float], serial: Pass,
    concurrent: Pass,
) -> None:  # fmt: skip
    from rich.table import Table

    pixels = sum(p.size for p in pictures)
    table = Table(title=f"{len(pictures)} pictures, {pixels / 1e6:.2f} million pixels")
    table.add_column("stage, one after the other")
    table.add_column("device ms", justify="right")
    for name, ms in zip(STAGES, stages, strict=True):
        table.add_row(name, f"{ms:,.2f}")
    table.add_section()
    table.add_row("all stages", f"{sum(stages):,.2f}")
    console.print(table)
    table = Table(title=f"while kernels ran on {device.label}")
    for column in ("pictures", "ms", "turns of the event loop", "longest gap, ms"):
        table.add_column(column, justify="left" if column == "pictures" else "right")
    for name, made in (("one after the other", serial), ("all at once", concurrent)):
        table.add_row(
            name, f"{made.seconds * 1e3:,.1f}", f"{made.turns:,}", f"{made.gap * 1e3:.1f}"
        )
    console.print(table)
    busy = min(sum(stages) / (serial.seconds * 1e3), 1.0)
    console.print(compare(serial.seconds, concurrent.seconds, busy), highlight=False)


def compare(serial: float, concurrent: float, busy: float) -> str:
    """What processing all pictures at once brought, or cost, and why.

    Args:
        serial: seconds of one after the other.
        concurrent: seconds of all at once.
        busy: the share of the serial pass in which the device worked, 0 to 1.
    """
    why = (
        f"One after the other, the device was already at work for {busy:.0%} of the time. What is "
        "at once can only fill the rest, and what one kernel leaves free of the device"
    )
    if concurrent < serial * (1 - ALIKE):
        return f"All at once took {1 - concurrent / serial:.0%} less time. {why}."
    if concurrent <= serial * (1 + ALIKE):
        return f"All at once gained nothing: both took about equally long. {why}."
    return (
        f"All at once was no gain here: it took {concurrent / serial - 1:.0%} longer. {why}; "
        "kernels that run side by side share its processors, caches and memory."
    )
