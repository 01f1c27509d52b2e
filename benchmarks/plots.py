"""Bars of what was measured, from the JSON files: `python -m benchmarks.plots` draws them into
`docs/pictures`, each light and dark.

A bar is a figure as in a sentence of a page (`benchmarks/page.py`): a row of a table, the ratio or
the difference of two. Its length is in proportion to the figure; where figures of one plot are
thousands of times apart, to the figure's logarithm, and the plot says so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from benchmarks import page, report

ROOT = Path(__file__).parent.parent
MEASURED = ROOT / "docs/performance"
PICTURES = ROOT / "docs/pictures"
WIDTH = 560  # of a picture
FIGURE, LETTER = 74, 7.2  # wide: the longest figure, and about a letter
FONT = "ui-sans-serif, system-ui, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"
COLOURS = {
    "": {"text": "#24292f", "faint": "#57606a", "line": "#d0d7de", "loop": "#0969da",
         "ours": "#1a7f37", "other": "#8c959f"},
    "-dark": {"text": "#e6edf3", "faint": "#9198a1", "line": "#3d444d", "loop": "#58a6ff",
              "ours": "#238636", "other": "#6e7681"},
}  # fmt: skip


@dataclass(frozen=True)
class Bar:
    """A bar: its name, the figure that it shows (`None`: the heading of those below), and whether
    it is of numbasync.
    """

    name: str
    rows: str | None = None
    table: str | None = None
    is_ours: bool = True


@dataclass(frozen=True)
class Plot:
    """Bars of one file. `said` stands below them, behind it the machine."""

    title: str
    file: str
    said: str
    bars: tuple[Bar, ...]
    is_ratio: bool = False  # with a line at 1
    is_logarithmic: bool = False


def _beside(table: str, ours: dict[str, str], others: dict[str, str]) -> tuple[Bar, ...]:
    """Bars of one table, by the names of their rows."""
    return tuple(
        Bar(name, row, table, is_ours)
        for rows, is_ours in ((ours, True), (others, False))
        for row, name in rows.items()
    )


def _speeds(table: str, *cases: str) -> tuple[Bar, ...]:
    """How many times as fast as PyTorch each case is."""
    return tuple(Bar(case, f"PyTorch: {case} / numbasync: {case}", table) for case in cases)


def _on_the_cpu(case: str) -> tuple[Bar, ...]:
    return (
        Bar(case),
        Bar("numbasync, compiled", "numbasync, compiled", case),
        Bar("parallel njit by hand", "parallel njit by hand", case, is_ours=False),
        Bar("Numba's simulator", "Numba's simulator", case, is_ours=False),
    )


PLOTS = {
    "await": Plot(
        "What one awaited kernel costs", "all-h200",
        "Host time from the call to the result",
        _beside("one small kernel, awaited", {"numbasync: build + await": "await op"}, {
            "Numba: launch + synchronize": "Numba, blocking the loop",
            "Python host callback: packed launch + await": "host callback in Python",
            "cuda.bindings: packed launch, run_in_executor": "run_in_executor",
        }),
    ),
    "launch": Plot(
        "What one launch costs", "all-h200",
        "Host time of one launch that nobody waits for",
        _beside("one small kernel", {"numbasync: build + submit": "numbasync, order included"}, {
            "cuda.bindings: packed launch": "cuda.bindings",
            "CuPy RawKernel: launch": "CuPy, RawKernel",
            "PyTorch: add_(alpha=)": "PyTorch, add_",
            "Triton: launch": "Triton",
            "Numba: launch": "Numba",
        }),
    ),
    "many": Plot(
        "What each of a thousand costs", "all-h200",
        "Host time of each of 1,000 kernels in flight",
        _beside("1,000 in flight, per op", {
            "numbasync: na.gather, build included": "na.gather",
            "numbasync: asyncio.gather, build included": "asyncio.gather of operations",
        }, {
            "cuda.bindings: packed launches, drained outside": "cuda.bindings, launch only",
            "CuPy RawKernel: launches, drained outside": "CuPy, launch only",
            "Numba: launches, drained outside": "Numba, launch only",
            "Python host callback: launches + asyncio.gather": "host callbacks in Python",
        }),
    ),
    "products": Plot(
        "Matrix products beside cuBLAS", "products-h200",
        "Times as fast as PyTorch, which calls cuBLAS",
        _speeds(
            "matrix products", "float16, 1,024, b transposed", "float16, 4,096", "float16, 8,192",
            "bfloat16, 8,192", "tf32, 4,096, b transposed", "tf32, 8,192, b transposed",
            "float32, 4,096", "int8, 8,192, b transposed", "float16 by mma, 4,096",
        ),
        is_ratio=True,
    ),
    "attention": Plot(
        "Attention beside PyTorch", "attention-h200",
        "Times as fast as PyTorch's attention, in float16",
        _speeds(
            "attention of float16", "256 heads of 512 x 64, all keys",
            "64 heads of 2,048 x 64, causal", "256 heads of 512 x 128, all keys",
            "64 heads of 4,096 x 128, all keys", "16 heads of 16,384 x 128, causal",
        ),
        is_ratio=True,
    ),
    "cpu": Plot(
        "Kernels on the CPU device", "bench-cpu",
        "Time of a call. Logarithmic: a line is ten times the one before",
        tuple(bar for case in (
            "saxpy, 16 M elements", "tiled matmul, 256 x 256",
            "histogram with atomics, 1 M elements",
        ) for bar in _on_the_cpu(case)),
        is_logarithmic=True,
    ),
    "serving": Plot(
        "A service under load", "serving-h100",
        "What 99 of 100 answers need at most. Logarithmic: a line is ten times the one before",
        tuple(bar for load, said in (("0.5", "half of the capacity"), ("0.9", "0.9 of it"),
                                     ("1.5", "1.5 times the capacity")) for bar in (
            Bar(said),
            Bar("numbasync, in batches", f"batches, {load}", "p99"),
            Bar("one by one, on threads", f"thread, {load}", "p99", is_ours=False),
            Bar("one by one, blocking the loop", f"blocking, {load}", "p99", is_ours=False),
        )),
        is_logarithmic=True,
    ),
    "devices": Plot(
        "One GPU and two", "scaling-h200", "Time of a call",
        (
            Bar("a product of 8,192 x 8,192"),
            Bar("one GPU", "numbasync: one GPU", "a product of 8192 x 8192 float32", False),
            Bar("half on each of two GPUs", "numbasync: half of the rows on each GPU",
                "a product of 8192 x 8192 float32"),
            Bar("pipelines of 20 launches"),
            Bar("one on one GPU", "numbasync: one pipeline", "pipelines of 20 launches", False),
            Bar("two, one on each GPU", "numbasync: two, one on each GPU",
                "pipelines of 20 launches"),
        ),
    ),
}  # fmt: skip


def plot_svg(plot: Plot, run: report.Record, suffix: str = "") -> str:
    """The plot of a run's figures."""
    colour, parts, y = COLOURS[suffix], list[str](), 8
    figures = {bar: page.value_of(run, bar.rows, bar.table) for bar in plot.bars if bar.rows}
    most = max(figures.values())
    left = 20 + LETTER * max(len(bar.name) for bar in figures)
    space = WIDTH - left - FIGURE
    low = math.floor(math.log10(min(figures.values()))) - 1
    decades = math.log10(most) - low

    def length(figure: float) -> float:
        share = (math.log10(figure) - low) / decades if plot.is_logarithmic else figure / most
        return share * space

    lines = [length(1.0)] if plot.is_ratio else []
    if plot.is_logarithmic:
        lines = [length(10.0**power) for power in range(low, math.ceil(low + decades))]
    for bar in plot.bars:
        if bar not in figures:
            parts.append(text(4, y + 15, bar.name, colour["text"], weight="600"))
            y += 23
            continue
        width, fill = length(figures[bar]), colour["ours" if bar.is_ours else "other"]
        end = max(width, *lines) if plot.is_ratio else width
        said = f"{figures[bar]:.2f}" if plot.is_ratio else _time(figures[bar])
        parts += [
            text(left - 12, y + 15, bar.name, colour["text"], "end"),
            f'<rect x="{left}" y="{y}" width="{width:.1f}" height="20" rx="3" fill="{fill}"/>',
            text(left + end + 8, y + 15, said, colour["text"]),
        ]
        y += 27
    if lines:
        drawn = "".join(f"M{left + at:.1f} 2V{y}" for at in lines)
        parts.insert(0, f'<path d="{drawn}" stroke="{colour["line"]}"/>')
    better = "more is better" if plot.is_ratio else "less is better"
    for line in (f"{plot.said}: {better}.", str(run["machine"]["device"])):
        y += 18
        parts.append(text(4, y, line, colour["faint"]))
    return svg(y + 10, plot.title, f"{plot.said}, {run['machine']['device']}", "".join(parts))


def _time(us: float) -> str:
    """A time in the unit that fits."""
    unit, scale = next(
        (u, s) for u, s in (("us", 1.0), ("ms", 1e3), ("s", 1e6)) if us < 1000 * s or u == "s"
    )
    figure = f"{us / scale:.3g}"
    return f"{float(figure):,.0f} {unit}" if "e" in figure else f"{figure} {unit}"


def text(x: float, y: float, words: str, fill: str, anchor: str = "start", weight: str = "") -> str:
    """Words at a place of a picture."""
    bold = f' style="font-weight:{weight}"' if weight else ""
    return (
        f'<text x="{x:.1f}" y="{y}" fill="{fill}" text-anchor="{anchor}"{bold}>'
        f"{escape(words)}</text>"
    )


def svg(height: int, title: str, said: str, drawn: str, style: str = "") -> str:
    """A picture, with what it is called and what it says for who cannot see it."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">\n'
        f"<title>{escape(title)}</title>\n<desc>{escape(said)}</desc>\n"
        f"<style>text{{font:13px {FONT}}}{style}</style>\n{drawn}\n</svg>\n"
    )


def drawn() -> Iterator[tuple[Path, str]]:
    """The file and the text of each plot."""
    for name, plot in PLOTS.items():
        run: report.Record = json.loads((MEASURED / f"{plot.file}.json").read_text("utf-8"))
        for suffix in COLOURS:
            yield PICTURES / f"{name}{suffix}.svg", plot_svg(plot, run, suffix)


if __name__ == "__main__":
    for path, picture in drawn():
        path.write_text(picture, encoding="utf-8")
