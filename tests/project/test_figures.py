"""Measured figures in sentences: they are filled from the tables, or the sentence has none."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import page
from tests import subpackages

ROOT = Path(__file__).parent.parent.parent
# Pages of what was measured. What else has figures says there how they came about.
PAGES = (
    "README.md", "docs/index.md", "docs/limits.md", "docs/performance.md", "docs/cpu-device.md",
    "docs/performance-history.md", "docs/batches.md",
    "docs/kernels-guide.md", "docs/tensor-cores.md",
    *(path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob("docs/performance/*.md"))),
)  # fmt: skip

# What is no sentence, or is filled: code, tables, figures, the targets of links.
FILLED = re.compile(
    page.BLOCK.pattern + "|" + page.FIGURE.pattern +
    r"|^\ *```.*?^\ *```|^\|[^\n]*$|`[^`\n]*`|\]\([^)\n]*\)",
    re.M | re.S,
)  # fmt: skip
UNIT = (
    r"(?:[unm]?s|[GTM]i?B/s|[GT]FLOP/s|MHz|W|times|instructions|(?:micro|milli)?seconds?|minutes?)"
)
FIGURE = re.compile(rf"(?<![\w.,^-])\d[\d,]*(?:\.\d+)?(?:\ ?%|[ -]{UNIT}\b)|(?<![\w.,^-])\d+\.\d+")
VERSION = re.compile(r"(?:Python|PyTorch|[Cc]apability|numba-cuda) \(?\d+\.\d+|\(for all; 9\.0\)")

# Figures that were chosen, and not measured.
CHOSEN = {
    "docs/performance/method.md": ("sleeps 5 ms at a time", "(60 s) bounds a case"),
    "docs/performance/h200.md": ("a ticker of 5 ms",),
    "docs/performance/two-h200.md": (
        "300 or 1,000 us in which the host computes", "300 us of host work",
    ),
    "docs/cpu-device.md": ("of 1.75 is 2",),
}  # fmt: skip


def bare_figures(text: str, chosen: tuple[str, ...] = ()) -> list[str]:
    """The figures in a page's sentences that nothing fills."""
    sentences = " ".join(FILLED.sub("~", text).split())
    for words in chosen:
        assert words in sentences, f"no longer there: {words}"
        sentences = sentences.replace(words, "")
    found = FIGURE.finditer(VERSION.sub("", sentences))
    return [
        f"{one[0]} in: {one.string[max(0, one.start() - 60) : one.end() + 20]}" for one in found
    ]


@pytest.mark.parametrize("name", PAGES)
def test_figures_in_sentences_are_filled(name: str) -> None:
    found = bare_figures((ROOT / name).read_text(encoding="utf-8"), CHOSEN.get(name, ()))
    assert found == [], "fill it from a JSON file, or say it in words; see tests/subpackages.py"


@pytest.mark.parametrize("path", subpackages.PAGES, ids=lambda path: path.name)
def test_no_figure_begins_a_line(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    beginning = [line for line in lines if page.FIGURE.match(line.lstrip())]
    assert beginning == [], "Markdown takes such a line out of its paragraph: put a word before it"


@pytest.mark.parametrize(
    "figure",
    ["3.5 us", "12 times", "12 times\nas long", "7%", "0.6 %", "395 GB/s", "1,459 ms", "0.97",
     "2,036 instructions", "(1.3)", "648 TFLOP/s", "a 30-second wait"],
)  # fmt: skip
def test_a_bare_figure_is_found(figure: str) -> None:
    text = f"A launch takes {figure} there.\n\n| case | us |\n|---|---|\n| a | 3.5 us |\n"
    assert len(bare_figures(text)) == 1
    assert len(bare_figures(text, (" ".join(figure.split()),))) == 0


def test_no_other_number_is_found() -> None:
    text = (
        "With 1,024 elements of float32 on one H200, 2^28 in 64 MiB, PyTorch 2.11 takes\n"
        "<!-- a? b / c -->1.3<!-- / --> times as long (`-k 3.5 us`), [see](5.0.md).\n"
        "<!-- a: b -->\n\n| 7 us |\n3.5 us, 4 %\n<!-- end -->\n```sh\nwait 3 s\n```\n"
    )
    assert bare_figures(text) == []


def table(what: str, **medians: float) -> dict[str, Any]:
    timings = [{"name": name, "median": median} for name, median in medians.items()]
    return {"what": what, "timings": timings}


def test_figures_are_those_of_the_tables() -> None:
    run = {"tables": [table("one", a=1.0, b=3.0), table("two", a=12.345, c=2.0, d=3456.7)]}
    assert page.figure_of(run, "a") == "1" and page.figure_of(run, "a", "two") == "12.3"
    assert page.figure_of(run, "a / b") == "0.33" and page.figure_of(run, "a / c") == "6.2"
    assert page.figure_of(run, "b - a") == "2" and page.figure_of(run, "c - a") == "-10"
    assert page.figure_of(run, "d") == "3,460" and page.figure_of(run, "d / c") == "1,700"
    for rows in ("b / c", "b - c", "e"):
        with pytest.raises(KeyError, match=rows):
            page.figure_of(run, rows)


def test_figures_of_the_cpu_device_are_in_microseconds() -> None:
    cases = [("p", "x", 2e-6), ("p", "y", 1e-6), ("q", "x", 5e-3), ("q", "z", None)]
    run = {"results": [{"case": case, "by": by, "median": got} for case, by, got in cases]}
    assert page.figure_of(run, "x") == "2" and page.figure_of(run, "x", "q") == "5,000"
    assert page.figure_of(run, "x / y") == "2"
    with pytest.raises(KeyError, match="z"):
        page.figure_of(run, "z")


def test_a_figure_may_end_a_line(tmp_path: Path) -> None:
    run: dict[str, Any] = {"machine": {}, "versions": {}}
    shown: dict[str, Any] = table("t", a=3.0, b=2.0) | {"base": "a"}
    run["tables"] = [shown]
    for timing in shown["timings"]:
        timing |= {"low": 0.0, "high": 9.0}
    (tmp_path / "x.json").write_text(json.dumps(run))
    text = "Of <!-- x: t? a / b -->?<!-- / -->\ntimes.\n\n<!-- x: t -->\nold\n<!-- end -->\n"
    filled = page.filled(text, tmp_path)
    assert filled.startswith(
        "Of <!-- x: t? a / b -->1.5<!-- / -->\ntimes.\n\n<!-- x: t -->\n\n| t |"
    )
    assert page.filled(filled, tmp_path) == filled and page.names(filled) == ["x"]
