"""Draws the pictures of the pages: `python docs/pictures/draw.py`, each light and dark.

`loop.svg` is a recorded run: the turns of the event loop, and the kernels of eight frames on the
streams that ran them. `python docs/pictures/draw.py record` runs it again, on the default device.
`life.svg` and `order.svg` explain: the stages of an operation, and which kernels wait for which.
What was measured is drawn by `benchmarks/plots.py`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numba import cuda

import numbasync as na
from benchmarks import plots
from benchmarks.plots import COLOURS, WIDTH, svg, text

HERE = Path(__file__).parent
RUN = HERE / "loop.json"
FRAMES = 8
LEFT, RIGHT = 84, 18  # the space beside the lanes
SECONDS = 4.5  # of the animation, which runs once


@na.launcher
@cuda.jit
def mandelbrot(frame: na.KernelOutput, width: float) -> None:
    """Steps until each point leaves the circle of radius 2, at most 500."""
    y, x = cuda.grid(2)
    if y < frame.shape[0] and x < frame.shape[1]:
        c = complex((x / 480 - 0.5) * width - 0.7436, (y / 360 - 0.5) * width + 0.1318)
        z, n = 0j, 0
        while n < 500 and z.real**2 + z.imag**2 < 4:
            z, n = z * z + c, n + 1
        frame[y, x] = n


async def record(shape: tuple[int, int] = (360, 480)) -> dict[str, Any]:
    """Compute the frames beside a heartbeat. Times are milliseconds from the first submission."""
    device = na.default_device()
    await mandelbrot(na.empty((1, 1), np.int32), 1.0)  # compiles
    streams = [device.new_stream() for _ in range(4)]
    turns: list[float] = []

    async def heartbeat() -> None:
        while True:
            turns.append(time.perf_counter())
            await asyncio.sleep(0.001)

    def measured(k: int) -> na.DeviceOp[Any]:
        def mark(ctx: na.Context, value: Any = None) -> na.DeviceOp[Any]:
            marks[k].append(ctx.device.new_event().record(ctx.stream))
            return na.value(value)

        def launch(frame: Any) -> na.DeviceOp[Any]:
            before = na.with_context(mark)
            return before.then(lambda _: mandelbrot(frame, 3 / 2**k)).then_with_context(mark)

        return na.empty(shape, np.int32).then(launch)

    marks: list[list[na.Event]] = [[] for _ in range(FRAMES)]
    start = device.new_event().record(streams[0])
    await start
    began = time.perf_counter()
    beating = asyncio.create_task(heartbeat())
    spawned = [na.spawn(measured(k), streams[k % 4]) for k in range(FRAMES)]
    await na.gather(*spawned)
    ended = time.perf_counter()
    beating.cancel()
    kernels = [
        {
            "stream": k % 4,
            "from": _rounded(start.elapsed_ms(a)),
            "to": _rounded(start.elapsed_ms(b)),
        }
        for k, (a, b) in enumerate(marks)
    ]
    name = device.name if device.kind == "cuda" else f"CPU device, {os.cpu_count()} cores"
    return {
        "machine": {"device": name, "system": platform.system(), "frame": list(shape)},
        "ms": _rounded((ended - began) * 1e3),
        "turns": [_rounded((t - began) * 1e3) for t in turns],
        "kernels": kernels,
    }


def _rounded(ms: float) -> float:
    return round(ms, 2)


def loop_svg(run: dict[str, Any], suffix: str = "") -> str:
    """The lane of the loop with a line for each of its turns, and the lanes of the streams."""
    colour = COLOURS[suffix]
    scale = (WIDTH - LEFT - RIGHT) / run["ms"]
    longest = max(b - a for a, b in itertools.pairwise(run["turns"]))
    parts, y = [], 12
    turns = "".join(f"M{LEFT + t * scale:.1f} {y}v26" for t in run["turns"])
    moving = [f'<path d="{turns}" stroke="{colour["loop"]}" stroke-width=".7"/>']
    parts.append(text(LEFT - 12, y + 17, "event loop", colour["text"], "end"))
    for stream in range(4):
        y += 38 if stream == 0 else 28
        parts.append(text(LEFT - 12, y + 15, f"stream {stream + 1}", colour["text"], "end"))
        for frame, kernel in enumerate(run["kernels"]):
            if kernel["stream"] != stream:
                continue
            x, width = LEFT + kernel["from"] * scale, (kernel["to"] - kernel["from"]) * scale
            moving.append(
                f'<rect x="{x:.1f}" y="{y}" width="{max(width - 1, 1):.1f}" height="22" rx="3" '
                f'fill="{colour["ours"]}"/>'
            )
            if width > 58:
                moving.append(text(x + width / 2, y + 15, f"frame {frame + 1}", "#fff", "middle"))
    y += 34
    parts.append(
        f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="{colour["line"]}" stroke-width="1"/>'
    )
    for ms in np.arange(0, run["ms"], _step(run["ms"])):
        x = LEFT + float(ms) * scale
        anchor = "start" if ms == 0 else "middle"
        parts.append(text(x, y + 16, f"{ms:,.0f} ms", colour["faint"], anchor))
    said = (
        f"{len(run['kernels'])} frames on four streams of: {run['machine']['device']}. "
        f"Meanwhile {len(run['turns']):,} turns of the loop, the longest {longest:.0f} ms."
    )
    for line in said.split(". "):
        y += 19
        parts.append(text(LEFT, y + 19, line.rstrip("."), colour["faint"]))
    sweep = (
        "@media (prefers-reduced-motion:no-preference){.sweep{transform-origin:"
        f"{LEFT}px 0;animation:s {SECONDS}s linear}}}}@keyframes s{{from{{transform:scaleX(0)}}}}"
    )
    clip = f'<clipPath id="c"><rect class="sweep" x="{LEFT}" width="{WIDTH - LEFT}" height="{y}"/>'
    drawn = f'{clip}</clipPath><g clip-path="url(#c)">{"".join(moving)}</g>{"".join(parts)}'
    return svg(y + 30, "The event loop turns while kernels run", said, drawn, sweep)


# The stages of an operation, and where they run.
STAGES = (
    ("call", "checks"), ("compose", "then, zip"), ("submit", "a stream"),
    ("enqueue", "its queue"), ("run", "the kernel"), ("await", "the result"),
)  # fmt: skip
# Kernels of two streams: stream, from, to, name.
ORDERED = ((1, 0, 3, "A writes x"), (1, 3.1, 5, "C reads y"), (2, 3.1, 6, "B reads x"))


def life_svg(suffix: str = "") -> str:
    """A box for each stage, in a row."""
    colour, width = COLOURS[suffix], WIDTH / len(STAGES)
    parts = []
    for i, (stage, what) in enumerate(STAGES):
        x, of_device = i * width + 4, stage == "run"
        fill = colour["ours" if of_device else "loop"]
        parts += [
            f'<rect x="{x:.1f}" y="8" width="{width - 18:.1f}" height="34" rx="4" fill="{fill}"/>',
            text(
                x + (width - 18) / 2,
                30,
                stage,
                "#fff" if of_device or not suffix else "#000",
                "middle",
            ),
            text(x + (width - 18) / 2, 60, what, colour["faint"], "middle"),
        ]
        if i:
            parts.append(
                f'<path d="M{x - 12:.1f} 25h8m-4 -4l4 4l-4 4" fill="none" '
                f'stroke="{colour["text"]}"/>'
            )
    said = "Blue: on the host. Green: on the device, while the event loop runs other tasks."
    parts.append(text(4, 86, said, colour["faint"]))
    return svg(96, "The stages of an operation", said, "".join(parts))


def order_svg(suffix: str = "") -> str:
    """Two lanes with three kernels, of which one waits for another of the other lane."""
    colour, scale = COLOURS[suffix], (WIDTH - LEFT - RIGHT) / 6
    parts = [
        text(LEFT - 12, 8 + 40 * (lane - 1) + 17, f"stream {lane}", colour["text"], "end")
        for lane in (1, 2)
    ]
    for lane, start, end, name in ORDERED:
        x, y = LEFT + start * scale, 8 + 40 * (lane - 1)
        parts.append(
            f'<rect x="{x:.1f}" y="{y}" width="{(end - start) * scale - 2:.1f}" height="26" rx="3" '
            f'fill="{colour["ours"]}"/>'
        )
        parts.append(text(x + (end - start) * scale / 2, y + 18, name, "#fff", "middle"))
    x = LEFT + 3 * scale
    parts.append(
        f'<path d="M{x - 8:.1f} 34V61H{x + 2:.1f}m-4 -4l4 4l-4 4" fill="none" '
        f'stroke="{colour["text"]}"/>'
    )
    said = (
        "B waits for A, by an event on the device: both use x. C waits for nothing but its stream."
    )
    parts.append(text(LEFT, 94, "B waits for A on the device, since both use x.", colour["faint"]))
    return svg(104, "Order across streams", said, "".join(parts))


def _step(ms: float) -> float:
    """A round number of milliseconds, of which about six fit."""
    power = 10 ** np.floor(np.log10(ms / 6))
    return float(min((power * m for m in (1, 2, 5, 10)), key=lambda step: abs(ms / step - 6)))


def drawn() -> dict[Path, str]:
    """Each picture's file and text, from the recorded run and the measurements."""
    run = json.loads(RUN.read_text(encoding="utf-8"))
    pictures = dict(plots.drawn())
    for suffix in COLOURS:
        pictures[HERE / f"loop{suffix}.svg"] = loop_svg(run, suffix)
        pictures[HERE / f"life{suffix}.svg"] = life_svg(suffix)
        pictures[HERE / f"order{suffix}.svg"] = order_svg(suffix)
    return pictures


if __name__ == "__main__":
    if sys.argv[1:] == ["record"]:
        recorded = json.dumps(na.run(record()), separators=(",", ":"))
        RUN.write_text(recorded.replace(',"', ',\n"') + "\n", encoding="utf-8")
    for path, picture in drawn().items():
        path.write_text(picture, encoding="utf-8")
