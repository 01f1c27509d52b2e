"""`numbasync demo`: runs photographs through a pipeline of kernels, with many in flight.

The pipeline converts each picture to grey, blurs it, detects its edges, and counts and equalises
its levels. All pictures are processed twice: one after the other, and then all in flight, while
the turns of the event loop are counted. Levels are compared with NumPy's. Of the edges, a band is
compared with SciPy's, as all of them would take longer than computing them.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import struct
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import numbasync as na
from numbasync.device.device import Device
from numbasync.device.event import Event
from numbasync.errors import CallerError, InternalError, MissingExtraError

PHOTOGRAPHS = (
    "astronaut.png", "camera.png", "chelsea.png", "coffee.png", "coins.png", "moon.png",
    "motorcycle_left.png", "rocket.jpg", "hubble_deep_field.jpg", "retina.jpg", "brick.png",
    "grass.png",
)  # fmt: skip
STAGES = ("upload", "grey", "blur", "sobel", "histogram", "equalise", "download")
TILE = (16, 16)
SIGMA = 1.2
SECONDS_A_PASS = 8.0  # a slower device gets smaller pictures, unless --full
QUICK_SECONDS = 1.0
BAND = 64  # rows of each picture whose edges are checked
LABELS = ("the picture", "levels equalised", "edges")
SAMPLE = 96  # pixels along each side of the picture that measures the device's speed


@dataclass
class Picture:
    """One picture, and the results that the device computed from it."""

    name: str
    pixels: np.ndarray[Any, Any]
    target: Path = Path()
    marks: list[Event] = field(default_factory=list)
    grey: np.ndarray[Any, Any] | None = None
    edges: np.ndarray[Any, Any] | None = None
    equalised: np.ndarray[Any, Any] | None = None

    @property
    def size(self) -> int:
        height, width, _ = self.pixels.shape
        return int(height * width)


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
    _choose_targets(pictures, images, out)
    with na.use_device(device):
        return na.run(_main(pictures, device, full))


def _choose_targets(pictures: list[Picture], images: Sequence[Path], out: Path | None) -> None:
    """Choose the path of each PNG: in `out`, or else next to its picture."""
    taken: set[Path] = set()
    for i, picture in enumerate(pictures):
        folder = out if out is not None else images[i].parent
        if out is not None:
            refuse_link(out)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CallerError(f"{folder}: {error.strerror}; name a folder with --out.") from None
        if not os.access(folder, os.W_OK):
            raise CallerError(f"{folder} cannot be written to; name another folder with --out.")
        name = f"{picture.name}-before-after"
        target = folder / f"{name}.png"
        while target in taken:
            target = folder / f"{name}-{len(taken)}.png"
        taken.add(target)
        picture.target = target


def refuse_link(out: Path) -> None:
    """
    Raises:
        CallerError: a folder for results is a link, perhaps one that another user has made.
    """
    if out.is_symlink():
        raise CallerError(f"--out {out} is a link to {os.readlink(out)}; name the folder itself.")


def photographs() -> list[Path]:
    """The files of `PHOTOGRAPHS`, of scikit-image."""
    spec = importlib.util.find_spec("skimage")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError("scikit-image has no folder: pip install 'numbasync[demo]'")
    folder = Path(spec.submodule_search_locations[0]) / "data"
    return [folder / name for name in PHOTOGRAPHS if (folder / name).exists()]


def read_picture(path: Path) -> Picture:
    """A picture of three bytes a pixel.

    Raises:
        CallerError: there is no such file, or it is no picture, or one of more pixels than Pillow
            takes for harmless.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            most = Image.MAX_IMAGE_PIXELS
            if most is None or image.width * image.height <= most:
                return Picture(path.stem, _rgb(image))
    except FileNotFoundError:
        raise CallerError(
            f"{path} does not exist; name a picture, or none for photographs."
        ) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        pass
    except UnidentifiedImageError:
        raise CallerError(f"{path} is no picture that Pillow can read; use PNG or JPEG.") from None
    except OSError as error:
        raise CallerError(f"{path} cannot be read: {error.strerror or error}.") from None
    except (ValueError, SyntaxError, EOFError, struct.error) as error:  # as Pillow's decoders raise
        raise CallerError(f"{path} is a damaged picture: {error}.") from None
    raise CallerError(f"{path} has more than {Image.MAX_IMAGE_PIXELS:,} pixels; make it smaller.")


def _rgb(image: Any) -> np.ndarray[Any, Any]:
    """8-bit red, green and blue. Pillow itself would clip values of more than 8 bits at 255."""
    if image.mode == "F" or image.mode.startswith("I"):
        levels = np.asarray(image, np.float64)
        if image.mode == "F":
            levels = levels - levels.min()
        most = levels.max(initial=0.0) if image.mode == "F" else 65535.0
        grey = np.clip(levels * (255.0 / (most or 1.0)), 0, 255).round().astype(np.uint8)
        return np.repeat(grey[..., None], 3, axis=2)
    return np.asarray(image.convert("RGB"))


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
        bar = progress.add_task("one after the other", total=len(pictures))
        began = time.perf_counter()
        alone = device.new_stream()
        for picture in pictures:
            await pipeline(picture).schedule(alone)
            progress.advance(bar)
        serial = time.perf_counter() - began
        stages = _stage_ms(pictures)

        bar = progress.add_task("all in flight", total=len(pictures))
        turns: list[float] = []
        beating = asyncio.create_task(_heartbeat(turns))
        began = time.perf_counter()

        async def process(picture: Picture) -> None:
            await pipeline(picture)
            progress.advance(bar)

        await na.gather(*(process(p) for p in pictures))
        overlapped = time.perf_counter() - began
        beating.cancel()

        bar = progress.add_task("checked and saved", total=len(pictures))
        worst = 0.0
        for picture in pictures:
            worst = max(worst, _check(picture))
            _save(picture)
            progress.advance(bar)
    _report(console, device, pictures, stages, serial, overlapped, turns, worst)
    return 0


async def _heartbeat(turns: list[float]) -> None:
    """Note when the event loop gets to this task, which asks for it every millisecond."""
    while True:
        turns.append(time.perf_counter())
        await asyncio.sleep(0.001)


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


def _check(picture: Picture) -> float:
    """Compare with NumPy and SciPy: the levels, and the edges of the first `BAND` rows. Returns the
    largest difference of these, in grey levels.
    """
    from scipy import ndimage

    from numbasync_kernels import image

    grey, edges, equalised = picture.grey, picture.edges, picture.equalised
    if grey is None or edges is None or equalised is None:
        raise InternalError(f"{picture.name} was not computed")
    table = image.equalisation_table_reference(image.histogram_reference(grey))
    exact = {
        "grey": (grey, image.grey_reference(picture.pixels)),
        "equalised": (equalised, image.look_up_reference(grey, table)),
    }
    for what, (got, want) in exact.items():
        if not np.array_equal(got, want):
            raise InternalError(f"{picture.name}: {what} differs from NumPy's.")
    band = grey[: BAND + image.RADIUS + 1].astype(np.float64)  # all that these rows depend on
    smooth = ndimage.gaussian_filter(band, SIGMA, mode="nearest", radius=image.RADIUS)
    want = np.hypot(
        ndimage.sobel(smooth, 0, mode="nearest"), ndimage.sobel(smooth, 1, mode="nearest")
    )
    difference = float(np.abs(edges[:BAND] - want[:BAND]).max(initial=0.0))
    # The blur is within 28 half ulps of 255 in float32, and its weights are rounded once
    # more than SciPy's; a gradient adds eight such values.
    bound = 8 * 2 * 28 * 255 * 2.0**-24
    if difference > bound:
        raise InternalError(f"{picture.name}: edges differ from SciPy's by {difference}.")
    return difference


def _save(picture: Picture) -> None:
    """Save, side by side and labelled, the picture, its equalised levels and its edges."""
    from PIL import Image, ImageDraw

    assert picture.equalised is not None and picture.edges is not None  # it was checked
    edges = np.clip(picture.edges, 0, 255).astype(np.uint8)
    after = [np.repeat(plane[..., None], 3, axis=2) for plane in (picture.equalised, edges)]
    panels = np.hstack([picture.pixels, *after])
    strip = Image.new("RGB", (panels.shape[1], 18), "white")
    for i, label in enumerate(LABELS):
        ImageDraw.Draw(strip).text((i * edges.shape[1] + 4, 3), label, "black")
    write_picture(np.vstack([np.asarray(strip), panels]), picture.target)


def write_picture(pixels: np.ndarray[Any, Any], target: Path) -> None:
    """Write a PNG file that is whole whenever it is there, since another process may write it, too.
    A link is replaced, not followed.
    """
    from PIL import Image

    part = target.with_name(f".{uuid.uuid4()}.png")
    try:
        Image.fromarray(pixels).save(part, "PNG")
        os.replace(part, target)
    except OSError as error:
        raise CallerError(f"{target} cannot be written: {error.strerror or error}.") from None
    finally:
        part.unlink(missing_ok=True)


def _report(
    console: Any, device: Device, pictures: list[Picture], stages: list[float], serial: float,
    overlapped: float, turns: list[float], worst: float,
) -> None:  # fmt: skip
    from rich.table import Table

    pixels = sum(p.size for p in pictures)
    table = Table(title=f"{len(pictures)} pictures, {pixels / 1e6:.2f} million pixels")
    table.add_column("stage")
    table.add_column("device ms", justify="right")
    for name, ms in zip(STAGES, stages, strict=True):
        table.add_row(name, f"{ms:,.2f}")
    table.add_section()
    table.add_row(f"one after the other, on {device.label}", f"{serial * 1e3:,.1f}")
    table.add_row("all in flight, four streams", f"{overlapped * 1e3:,.1f}")
    console.print(table)
    longest = max(np.diff(turns), default=0.0) * 1e3
    said = (
        _compared(serial, overlapped),
        f"Meanwhile the event loop had {len(turns):,} turns, the longest of {longest:.1f} ms.",
        f"Same as NumPy and SciPy: levels exactly, edges of {BAND} rows within {worst:.1e} of 255.",
    )
    for line in said:
        console.print(line, highlight=False)
    for folder in sorted({p.target.parent for p in pictures}):
        console.print(f"Before and after: {folder.resolve()}/*-before-after.png", highlight=False)


def _compared(serial: float, overlapped: float) -> str:
    """What it gains to have all pictures in flight, or costs."""
    if overlapped < 0.95 * serial:
        return f"All in flight took {overlapped / serial:.0%} of the time of one after the other."
    return f"All in flight gained nothing here: {overlapped / serial:.0%} of one after the other."
