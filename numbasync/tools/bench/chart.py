"""The figures of a run as bars, drawn with Pillow.

A group for each table, bars of one group on one linear scale from zero: a bar twice as long
took twice as long. Our own are orange; lines are quartiles.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

from numbasync.errors import MissingExtraError
from numbasync.tools.bench import report

LEFT, BARS, RIGHT = 420, 620, 130  # pixels: names, bars, figures
LINE, TITLE, SIZE = 24, 44, 14
OURS, OTHERS, INK, FAINT = (230, 126, 34), (127, 140, 141), (20, 20, 20), (90, 90, 90)


def check() -> None:
    """Refuse to draw without Pillow, before anything is measured.

    Raises:
        CallerError: it is not installed.
    """
    try:
        import PIL  # noqa: F401
    except ImportError:
        raise MissingExtraError(
            "--plot draws with Pillow, which is not installed: pip install 'numbasync[demo]'"
        ) from None


def draw(found: report.Record, path: Path) -> None:
    """Write the chart of a run."""
    from PIL import Image, ImageDraw, ImageFont

    groups = _groups(found)
    lines = sum(len(timings) for _, timings in groups)
    height = 3 * LINE + TITLE * len(groups) + LINE * lines
    image = Image.new("RGB", (LEFT + BARS + RIGHT, height), "white")
    pen = ImageDraw.Draw(image)
    font = ImageFont.load_default(SIZE)
    for i, said in enumerate(report.header(found)):
        pen.text((12, 8 + i * LINE), _fitted(pen, said, font, image.width - 24), FAINT, font)
    y = 2 * LINE + 8
    for title, timings in groups:
        pen.text((12, y + TITLE - LINE), title, INK, font)
        y += TITLE
        scale = BARS / (max(t["high"] for t in timings) or 1.0)
        for t in timings:
            _bar(pen, font, y, t, scale)
            y += LINE
    image.save(path, "PNG")


def _groups(found: report.Record) -> list[tuple[str, list[dict[str, Any]]]]:
    """What shares a scale: the timings of a table in one unit."""

    def unit(t: dict[str, Any]) -> str:
        return str(t.get("unit", "us"))

    return [
        (f"{one['what']}, {name}", list(timings))
        for one in report.tables_of(found)
        for name, timings in groupby(sorted(one["timings"], key=unit), key=unit)
    ]


def _bar(pen: Any, font: Any, y: int, t: dict[str, Any], scale: float) -> None:
    name = _fitted(pen, t["name"], font, LEFT - 24)
    pen.text((LEFT - 10 - pen.textlength(name, font), y), name, INK, font)
    colour = OURS if t["name"].startswith("numbasync") else OTHERS
    low, median, high = (LEFT + round(t[k] * scale) for k in ("low", "median", "high"))
    pen.rectangle((LEFT, y + 2, max(median, LEFT + 1), y + LINE - 6), colour)
    pen.line((low, y + LINE // 2 - 2, high, y + LINE // 2 - 2), INK)
    pen.text((high + 8, y), f"{t['median']:,.2f}", INK, font)


def _fitted(pen: Any, text: str, font: Any, width: int) -> str:
    while pen.textlength(text, font) > width:
        text = text[:-2].rstrip(" .") + "."
    return text
