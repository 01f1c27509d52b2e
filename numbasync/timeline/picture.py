"""A timeline as a picture, which Pillow draws: the lanes and the counters of the page."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

from numbasync.errors import MissingExtraError
from numbasync.timeline.tracks import HOST, Line, Slice, Track

Colours = dict[str, str]
LIGHT: Colours = {
    "back": "#ffffff", "text": "#24292f", "faint": "#57606a", "line": "#d0d7de", "band": "#f6f8fa",
    "work": "#1a7f37", "enqueue": "#0969da", "await": "#b6d4f5", "block": "#cf222e",
    "compile": "#9a6700", "number": "#8250df",
}  # fmt: skip
DARK: Colours = {
    "back": "#0d1117", "text": "#e6edf3", "faint": "#9198a1", "line": "#3d444d", "band": "#151b23",
    "work": "#238636", "enqueue": "#1f6feb", "await": "#1f4b7d", "block": "#da3633",
    "compile": "#9e6a03", "number": "#a371f7",
}  # fmt: skip
KINDS = {"work": "on a device", "enqueue": "enqueued by the host", "await": "awaited",
         "block": "thread blocked", "compile": "compiled"}  # fmt: skip
ROW, GAP, TALL, MARGIN, LEFT, HEAD, SIZE = 26, 8, 40, 16, 300, 104, 15
TICK = 120  # pixels between two times of the axis, at least


def draw(
    tracks: list[Track], lines: list[Line], title: str, seconds: float, width: int, is_dark: bool
) -> Any:
    """The picture, of Pillow: as wide as asked for, and as high as its lanes need."""
    pillow = _pillow()
    rows = [_rows(track) for track in tracks]
    high = HEAD + sum(max(1, len(one)) * ROW + GAP for one in rows) + len(lines) * (TALL + GAP)
    picture = pillow["Image"].new("RGB", (width, high + MARGIN))
    painter = _Painter(
        pillow["ImageDraw"].Draw(picture), pillow["ImageFont"].load_default,
        DARK if is_dark else LIGHT, seconds or 1e-9, width,
    )  # fmt: skip
    painter.head(title, high)
    top = HEAD
    for i, (track, own) in enumerate(zip(tracks, rows, strict=True)):
        top = painter.track(track, own, top, is_banded=i % 2 == 0)
    for line in lines:
        top = painter.line(line, top)
    return picture


def _pillow() -> dict[str, Any]:
    try:
        return {name: import_module(f"PIL.{name}") for name in ("Image", "ImageDraw", "ImageFont")}
    except ImportError as error:
        raise MissingExtraError(
            f"Timeline.to_png needs Pillow, which cannot be imported ({error}): "
            "pip install 'numbasync[demo]'; to_html and save need nothing."
        ) from error


def _rows(track: Track) -> list[list[Slice]]:
    """The slices by how many others they lie inside of."""
    rows: list[list[Slice]] = []
    ends: list[float] = []
    for piece in track.slices:
        while ends and ends[-1] <= piece.began:
            ends.pop()
        if len(ends) == len(rows):
            rows.append([])
        rows[len(ends)].append(piece)
        ends.append(piece.ended)
    return rows


def _amount(value: float, unit: str) -> str:
    if unit == "us":
        return time_text(value / 1e6)
    units = ["B", "KiB", "MiB", "GiB", "TiB"] if unit == "B" else [""]
    power = min(int(math.log(value, 1024)) if value >= 1 else 0, len(units) - 1)
    return f"{value / 1024**power:.4g} {units[power]}".strip()


def time_text(seconds: float) -> str:
    """Seconds in the unit in which they are short to read."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.4g} {unit}"
    return f"{seconds / 1e-6:.4g} us"


class _Painter:
    """Draws on one picture, whose times are 0 to `seconds`."""

    def __init__(
        self, on: Any, font: Callable[..., Any], colours: Colours, seconds: float, width: int
    ) -> None:
        self._on, self._colours, self._seconds, self._width = on, colours, seconds, width
        self._font, self._bold = font(size=SIZE), font(size=SIZE + 4)

    def _x(self, at: float) -> float:
        inside = min(max(at / self._seconds, 0.0), 1.0)
        return LEFT + inside * (self._width - MARGIN - LEFT)

    def _box(self, x: float, y: float, right: float, bottom: float, colour: str) -> None:
        self._on.rectangle((x, y, max(right, x), bottom), fill=self._colours[colour])

    def _text(
        self, x: float, y: float, text: str, colour: str, room: float = math.inf, font: Any = None
    ) -> float:
        """Text in the middle of a row, as far as there is room; where it ends."""
        font = font or self._font
        while text and font.getlength(text) > room:
            text = text[:-2].rstrip() + "…" if len(text) > 2 else ""
        self._on.text((x, y), text, fill=self._colours.get(colour, colour), font=font, anchor="lm")
        return x + float(font.getlength(text))

    def head(self, title: str, bottom: float) -> None:
        """The background, the title, what colours mean, and the axis."""
        self._box(0, 0, self._width, bottom + MARGIN, "back")
        self._text(MARGIN, 22, title, "text", self._width - 2 * MARGIN, self._bold)
        x = float(MARGIN)
        for kind, words in KINDS.items():
            self._box(x, 44, x + 14, 58, kind)
            x = self._text(x + 20, 51, words, "faint") + 22
        least = self._seconds * TICK / max(self._width - MARGIN - LEFT, TICK)
        power = 10.0 ** math.floor(math.log10(least))
        step = next(n * power for n in (1, 2, 5, 10) if n * power >= least * 0.999)
        for k in range(int(self._seconds / step) + 1):
            at = self._x(k * step)
            self._box(at, HEAD - 28, at, bottom, "line")
            self._text(at + 5, HEAD - 21, time_text(k * step) if k else "0", "faint")

    def track(self, track: Track, rows: list[list[Slice]], top: int, is_banded: bool) -> int:
        """A lane; where the next one begins."""
        bottom = top + max(1, len(rows)) * ROW
        if is_banded:
            self._box(0, top - GAP / 2, LEFT - 1, bottom + GAP / 2, "band")
        group = "" if track.group == HOST else track.group
        room = self._font.getlength(group)
        self._text(MARGIN, top + ROW / 2, track.name, "text", LEFT - 3 * MARGIN - room)
        self._text(LEFT - MARGIN - room, top + ROW / 2, group, "faint")
        for depth, row in enumerate(rows):
            y = top + depth * ROW
            for piece in row:
                x, right = self._x(piece.began), self._x(piece.ended)
                self._box(x, y, max(right - 2, x), y + ROW - 3, piece.what)
                if right - x > 40:
                    colour = "text" if piece.what == "await" else "#ffffff"
                    self._text(x + 5, y + ROW / 2 - 1, piece.name, colour, right - x - 10)
        return bottom + GAP

    def line(self, line: Line, top: int) -> int:
        """A number over time; where the next one begins."""
        most = max((value for _, value in line.points), default=0.0)
        name = ", ".join(filter(None, (line.name, "" if line.group == HOST else line.group)))
        self._text(MARGIN, top + 10, name, "text", LEFT - 2 * MARGIN)
        self._text(MARGIN, top + 30, f"at most {_amount(most, line.unit)}", "faint")
        bottom = top + TALL
        ends = [at for at, _ in line.points[1:]] + [self._seconds]
        for (at, value), end in zip(line.points, ends, strict=True):
            if value:
                y = bottom - (TALL - 3) * value / most
                self._box(self._x(at), y, self._x(end), bottom, "number")
        return bottom + GAP
