"""The picture of a timeline: what is where, in which colour."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import numbasync as na
from numbasync.errors import CallerError, MissingExtraError
from numbasync.timeline import picture
from numbasync.timeline.tracks import Line, Slice, Track
from tests.common import add_one

WIDTH = 1000


def test_slices_and_numbers_are_at_their_times() -> None:
    work = [Slice("work", "a", 0.0, 0.25), Slice("work", "b", 0.5, 1.0),
            Slice("await", "c", 0.6, 0.8)]  # fmt: skip
    line = Line("cpu:0", "bytes in use", "B", [(0.5, 1 << 20), (0.75, 1 << 19)])
    for is_dark, colours in ((False, picture.LIGHT), (True, picture.DARK)):
        made = picture.draw([Track("cpu:0", "stream 1", work)], [line], "t", 1.0, WIDTH, is_dark)
        assert made.width == WIDTH

        def colour(at: float, y: float, made: object = made) -> str:
            left, right = picture.LEFT, WIDTH - picture.MARGIN
            return "#{:02x}{:02x}{:02x}".format(
                *made.getpixel((round(left + at * (right - left)), round(y)))  # type: ignore[attr-defined]
            )

        first, second = picture.HEAD + 2, picture.HEAD + picture.ROW + 2  # inside of "b" is "c"
        seen = [colour(at, first) for at in (0.1, 0.3, 0.55, 0.7)]
        assert seen == [colours[name] for name in ("work", "back", "work", "work")]
        assert [colour(at, second) for at in (0.55, 0.7)] == [colours["back"], colours["await"]]
        top = picture.HEAD + 2 * picture.ROW + picture.GAP
        high, low = top + picture.TALL * 0.3, top + picture.TALL * 0.8
        seen = [colour(at, y) for at in (0.45, 0.55, 0.85) for y in (high, low)]
        assert seen == [
            colours[name] for name in ("back", "back", "number", "number", "back", "number")
        ]


def test_a_program_is_drawn_at_any_time(device: na.Device, tmp_path: Path) -> None:
    with na.trace() as t:
        add_one(na.zeros(4)).sync()
        t.to_png(tmp_path / "open.png", dark=True, width=600)
    for one in (t, na.trace()):
        file = one.to_png(tmp_path / "t.png")
        assert file.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_wrong_pictures_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    t = na.trace()
    with pytest.raises(CallerError, match=r"saved as \.png, not as 't\.jpg'"):
        t.to_png(tmp_path / "t.jpg")
    with pytest.raises(CallerError, match="width of to_png"):
        t.to_png(tmp_path / "t.png", width=10)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(MissingExtraError, match=r"numbasync\[demo\]"):
        t.to_png(tmp_path / "t.png")


def test_amounts_are_short() -> None:
    shown = [picture._amount(v, u) for v, u in ((7, ""), (0, "B"), (1536, "B"), (2500, "us"))]
    assert shown == ["7", "0 B", "1.5 KiB", "2.5 ms"]
