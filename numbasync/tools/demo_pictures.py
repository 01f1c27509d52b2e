"""The pictures of `numbasync demo`: which, read, and written beside what became of them."""

from __future__ import annotations

import importlib.util
import os
import struct
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from numbasync.device.event import Event
from numbasync.errors import CallerError, MissingExtraError

PHOTOGRAPHS = (
    "astronaut.png", "camera.png", "chelsea.png", "coffee.png", "coins.png", "moon.png",
    "motorcycle_left.png", "rocket.jpg", "hubble_deep_field.jpg", "retina.jpg", "brick.png",
    "grass.png",
)  # fmt: skip
SIGMA = 1.2  # of the blur, pixels
COLUMNS = ("original", "levels equalised", f"edges, after a blur of {SIGMA} pixels")
TITLE = 14  # pixels of the letters above a picture


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


def choose_targets(pictures: list[Picture], images: Sequence[Path], out: Path | None) -> None:
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
        name = f"{picture.name}-levels-edges"
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


def save(picture: Picture) -> None:
    """Save, side by side and with a title each, the picture, its equalised levels and its edges."""
    assert picture.equalised is not None and picture.edges is not None  # it was computed
    edges = np.clip(picture.edges, 0, 255).astype(np.uint8)
    grey = [np.repeat(plane[..., None], 3, axis=2) for plane in (picture.equalised, edges)]
    columns = [
        np.vstack([title(text, pixels.shape[1]), pixels])
        for text, pixels in zip(COLUMNS, [picture.pixels, *grey], strict=True)
    ]
    write_picture(np.hstack(columns), picture.target)


def title(text: str, width: int) -> np.ndarray[Any, Any]:
    """A strip with the text in white on black, as large as fits, cut off where nothing does.
    Shape `(2 * TITLE, width, 3)`, uint8.
    """
    from PIL import Image, ImageDraw, ImageFont

    strip = Image.new("RGB", (width, 2 * TITLE))
    draw = ImageDraw.Draw(strip)
    size = TITLE
    font = ImageFont.load_default(size)
    while draw.textlength(text, font) > width - 8 and size > 7:
        size -= 1
        font = ImageFont.load_default(size)
    draw.text((4, TITLE), text, "white", font, anchor="lm")
    return np.asarray(strip)


def write_picture(pixels: np.ndarray[Any, Any], target: Path) -> None:
    """Write a PNG file that is whole whenever it is there, since another process may write it, too.
    A link is replaced, not followed.
    """
    from PIL import Image

    part = target.with_name(f".{uuid.uuid4()}.png")
    try:
        Image.fromarray(pixels).save(part, "PNG", compress_level=1)  # the others take seconds
        os.replace(part, target)
    except OSError as error:
        raise CallerError(f"{target} cannot be written: {error.strerror or error}.") from None
    finally:
        part.unlink(missing_ok=True)
