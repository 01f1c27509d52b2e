"""The pictures of the first screen are those that their script draws, of what was recorded."""

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


def test_bars_are_as_long_as_what_was_measured(draw: ModuleType) -> None:
    medians = {row: 10.0 * (i + 1) for i, row in enumerate(draw.WAYS)}
    timings = [{"name": row, "median": median} for row, median in medians.items()]
    table = {"what": "one small kernel, awaited", "timings": timings}
    svg = draw.await_svg({"machine": {"device": "<GPU>"}, "tables": [table]})
    widths = [float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)"', svg)]
    assert [round(width / widths[0], 1) for width in widths] == [1, 2, 3, 4]
    assert "10 us" in texts(svg) and "<GPU>" in " ".join(texts(svg))


def test_a_run_is_recorded(draw: ModuleType, device: na.Device) -> None:
    run: dict[str, Any] = na.run(draw.record((6, 8)))
    assert [kernel["stream"] for kernel in run["kernels"]] == [0, 1, 2, 3] * 2
    assert all(0 <= kernel["from"] <= kernel["to"] for kernel in run["kernels"])
    assert run["turns"] == sorted(run["turns"]) and run["turns"][-1] <= run["ms"]
    run["turns"] = [0.0, 1.0]  # a run may be too short for a second one
    ElementTree.fromstring(draw.loop_svg(run))
