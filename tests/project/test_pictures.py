"""The pictures of the pages are those that their scripts draw, of what was recorded or measured."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

import numbasync as na
from benchmarks import plots

PICTURES = Path(__file__).parent.parent.parent / "docs/pictures"


@pytest.fixture(scope="module")
def draw() -> ModuleType:
    spec = importlib.util.spec_from_file_location("draw_pictures", PICTURES / "draw.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def texts(svg: str) -> list[str]:
    found = ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    return [one.text or "" for one in found]


def test_the_pictures_are_drawn(draw: ModuleType) -> None:
    drawn = draw.drawn()
    assert sorted(drawn) == sorted(PICTURES.glob("*.svg"))
    for path, svg in drawn.items():
        assert path.read_text(encoding="utf-8") == svg, "run: python docs/pictures/draw.py"
        assert len(svg) < 40_000 and "http" not in svg.replace("http://www.w3.org/2000/svg", "")


def test_the_recorded_run_is_in_the_picture(draw: ModuleType) -> None:
    run = json.loads((PICTURES / "loop.json").read_text(encoding="utf-8"))
    svg = draw.loop_svg(run)
    assert svg.count("<rect ") == len(run["kernels"]) + 1  # and the one that is swept
    assert len(re.findall(r"M[\d.]+ 12v26", svg)) == len(run["turns"]) > 100
    kernels = run["kernels"]
    assert any(a["from"] < b["from"] < a["to"] for a in kernels for b in kernels)  # side by side
    assert f"{len(run['turns']):,} turns" in " ".join(texts(svg))


def widths(svg: str) -> list[float]:
    return [float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)"', svg)]


def drawn_of(figures: dict[str, float], **settings: bool) -> str:
    """A plot with a bar for each figure."""
    timings = [{"name": name, "median": median} for name, median in figures.items()]
    bars = (plots.Bar("a heading"), *(plots.Bar(f"<{name}>", name, "t") for name in figures))
    run = {"machine": {"device": "<GPU>"}, "tables": [{"what": "t", "timings": timings}]}
    return plots.plot_svg(plots.Plot("title", "none", "said", bars, **settings), run)


def test_bars_are_as_long_as_what_was_measured() -> None:
    svg = drawn_of({"a": 100.0, "b": 200.0, "c": 4000.0})
    a, b, c = widths(svg)
    assert b == pytest.approx(2 * a, abs=0.1) and c == pytest.approx(40 * a, rel=0.01)
    assert {"a heading", "<a>", "100 us", "200 us", "4 ms", "<GPU>"} <= set(texts(svg))
    assert "less is better" in " ".join(texts(svg)) and "<path" not in svg


def test_bars_of_ratios_have_a_line_at_one() -> None:
    svg = drawn_of({"a": 0.5, "b": 2.0}, is_ratio=True)
    (line,) = re.findall(r"M([\d.]+) 2V", svg)
    left = float(re.findall(r'<rect x="([\d.]+)"', svg)[0])
    assert float(line) - left == pytest.approx(2 * widths(svg)[0], abs=0.2)
    assert {"0.50", "2.00"} <= set(texts(svg)) and "more is better" in " ".join(texts(svg))


def test_logarithmic_bars_have_lines_at_powers_of_ten() -> None:
    svg = drawn_of({"a": 20.0, "b": 200.0, "c": 3e9}, is_logarithmic=True)
    lines = [float(x) for x in re.findall(r"M([\d.]+) 2V", svg)]
    a, b, c = widths(svg)
    step = lines[1] - lines[0]
    assert b - a == pytest.approx(step, abs=0.2) and lines == sorted(lines)
    left = float(re.findall(r'<rect x="([\d.]+)"', svg)[0])
    assert sum(line <= left + c for line in lines) == len(lines) == 10  # 1 to 10^9
    assert "3,000 s" in texts(svg) and a < b < c


def test_each_plot_is_on_the_page_of_measurements() -> None:
    page = (PICTURES.parent / "performance.md").read_text(encoding="utf-8")
    for name in plots.PLOTS:
        light, dark = (f"](pictures/{name}{suffix}.svg#only-" for suffix in plots.COLOURS)
        assert page.count(f"{light}light)") == page.count(f"{dark}dark)") == 1, name


def test_each_picture_is_shown_in_light_and_dark() -> None:
    pages = [p.read_text(encoding="utf-8") for p in PICTURES.parent.glob("**/*.md")]
    for path in PICTURES.glob("*.svg"):
        scheme = "dark" if path.stem.endswith("-dark") else "light"
        assert any(f"pictures/{path.name}#only-{scheme})" in page for page in pages), path.name


def test_a_run_is_recorded(draw: ModuleType, device: na.Device) -> None:
    run: dict[str, Any] = na.run(draw.record((6, 8)))
    assert [kernel["stream"] for kernel in run["kernels"]] == [0, 1, 2, 3] * 2
    assert all(0 <= kernel["from"] <= kernel["to"] for kernel in run["kernels"])
    assert run["turns"] == sorted(run["turns"]) and all(turn <= run["ms"] for turn in run["turns"])
    run["turns"] = [0.0, 1.0]  # a run may be too short for one
    ElementTree.fromstring(draw.loop_svg(run))
