"""The page of a timeline: complete in itself, and used in a browser."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import numbasync as na
from numbasync.timeline.page import page
from numbasync.timeline.records import TracedSample
from numbasync.timeline.summary import summarize
from numbasync.timeline.tracks import lines, tracks
from tests.common import add_one
from tests.timeline.records import operation, wait

EVIL = "</script><script>document.title = 'evil'</script><!-- <b>"
OPERATIONS = [
    operation("first", 1, 1, (0.0, 0.2), line='"program.py", line 7, in main'),
    operation("second", 1, 2, (0.2, 0.4), (0.8, 1.0), kernels=("blur",)),
    operation(EVIL, 2, 1, (0.5, 0.9), nbytes=64),
]
SAMPLES = [
    TracedSample(what="memory in use", where="cpu:0", at=0.25, value=3 << 20),
    TracedSample(what="memory in use", where="cpu:0", at=0.75, value=1 << 20),
    TracedSample(what="loop lag", where="MainThread", at=0.5, value=0.002),
]
WAITS = [wait(1, 2, 0.2, 1.0, name="second", ready=0.999)]


def made_up() -> str:
    found, numbers = tracks(OPERATIONS, WAITS, [], 1.0), lines(OPERATIONS, SAMPLES)
    return page(found, numbers, summarize(OPERATIONS, WAITS, [], 1.0))


def test_the_page_has_all_slices_and_asks_nobody() -> None:
    text = made_up()
    assert re.findall(r"https?://|\bsrc=|\bhref=|@import|\burl\(", text) == []
    assert text.count("<script") == text.count("</script>") == 2
    data = json.loads(re.findall(r'id="data">(.*?)</script>', text, re.S)[0])
    assert [(t["group"], t["name"], len(t["slices"])) for t in data["tracks"]] == [
        ("", "Task-1", 4), ("cpu:0", "stream 1", 3), ("cpu:0", "stream 2", 1),
    ]  # fmt: skip
    assert data["tracks"][2]["slices"][0][:4] == ["work", EVIL, 500000.0, 400000.0]
    assert [(n["group"], n["name"], n["unit"], n["points"][-1]) for n in data["lines"]] == [
        ("cpu:0", "operations in flight", "", [1e6, 0]),
        ("cpu:0", "bytes in flight", "B", [1e6, 0]),
        ("cpu:0", "bytes in use", "B", [750000, 1 << 20]),
        ("", "loop lag of MainThread", "us", [500000, 2000]),
    ]  # fmt: skip
    assert [500000, 64] in data["lines"][1]["points"] and [900000, 0] in data["lines"][1]["points"]
    assert data["us"] == 1e6 and ["advice"] not in [row[:1] for row in data["rows"]]


def test_the_page_of_a_program(device: na.Device, tmp_path: Path) -> None:
    with na.trace() as t:
        add_one(na.zeros(4)).sync()
    assert "add_one" in t.to_html(tmp_path / "t.html").read_text(encoding="utf-8")
    assert na.trace().to_html(tmp_path / "empty.html").exists()


@pytest.mark.full
def test_in_a_browser(tmp_path: Path) -> None:
    api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install '.[docs]'"
    )
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip("no Chromium on the path: apt-get install chromium")
    file = tmp_path / "t.html"
    file.write_text(made_up(), encoding="utf-8")
    errors: list[str] = []
    asked: list[str] = []
    with api.sync_playwright() as running:
        browser = running.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu"]
        )
        for width, scheme in ((1400, "light"), (390, "dark")):
            tab = browser.new_page(
                viewport={"width": width, "height": 700}, color_scheme=scheme,
                bypass_csp=True,  # which lets no test look at the page
            )  # fmt: skip
            tab.set_default_timeout(300_000)
            tab.on("pageerror", lambda error: errors.append(str(error)))
            tab.on("console", lambda message: errors.append(message.text))
            tab.on("request", lambda request: asked.append(request.url))
            tab.goto(file.as_uri())
            _use(tab, width, scheme)
        browser.close()
    assert errors == [] and asked == [file.as_uri()] * 2


def _use(tab: Any, width: int, scheme: str) -> None:
    """Look at the page, point, magnify, move, search, and change the colours."""
    assert tab.title() == "Timeline" and "3 operations" in tab.inner_text("#title")
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert tab.evaluate("document.documentElement.className") == scheme
    assert "stream 1 of cpu:0" in tab.inner_text("#rows")
    tab.wait_for_function("document.getElementById('range').textContent !== ''")
    assert tab.inner_text("#range") == "0 us to 1 s"
    box = tab.locator("#lanes").bounding_box()
    left = 96 if width < 600 else 190
    # The rows are one for what waits, with what was enqueued meanwhile below, and two streams.
    tops = tab.evaluate("data.tracks.map(track => track.top + 10)")

    def point(seconds: float, track: int) -> tuple[float, float]:
        return box["x"] + left + seconds * (width - left), box["y"] + tops[track]

    tab.mouse.move(*point(0.7, 2))
    assert EVIL in tab.inner_text("#tip") and "on a device, 400 ms, from 500 ms" in tab.inner_text(
        "#tip"
    )
    tab.mouse.move(*point(0.1, 1))
    assert 'line: "program.py", line 7, in main' in tab.inner_text("#tip")
    tab.mouse.move(*point(0.5, 1))
    assert tab.is_hidden("#tip")
    tops += tab.evaluate("data.lines.map(line => line.top + 10)")
    for seconds, line, said in ((0.5, 2, "bytes in use, cpu:0\n3 MiB at"), (0.8, 2, "1 MiB at"),
                                (0.9, 3, "loop lag of MainThread\n2 ms at")):  # fmt: skip
        tab.mouse.move(*point(seconds, 3 + line))
        assert said in tab.inner_text("#tip")
    tab.mouse.move(*point(0.1, 3 + 2))
    assert tab.is_hidden("#tip")  # nothing is known yet
    tab.mouse.move(*point(0.9, 1))
    tab.mouse.wheel(0, -400)
    tab.wait_for_function("document.getElementById('range').textContent !== '0 us to 1 s'")
    tab.click("#all")
    tab.wait_for_function("document.getElementById('range').textContent === '0 us to 1 s'")
    tab.fill("#search", "BLUR")
    assert tab.inner_text("#count") == "3 found"  # enqueued once, two spans
    tab.press("#search", "Enter")
    assert tab.inner_text("#count") == "1 of 3"
    tab.fill("#search", "")
    assert tab.inner_text("#count") == ""
    tab.focus("#lanes")
    tab.keyboard.press("0")
    tab.keyboard.press("+")
    tab.wait_for_function("document.getElementById('range').textContent === '150 ms to 850 ms'")
    tab.click("#colours")
    assert tab.evaluate("document.documentElement.className") == {"light": "dark"}.get(
        scheme, "light"
    )
