"""Draws the pictures of the pages: `python docs/pictures/draw.py`, each light and dark.

`loop.svg` is a recorded run: the turns of the event loop, and the kernels of eight frames on the
streams that ran them. `python docs/pictures/draw.py record` runs it again, on the default device.
The other drawings explain: the stages of an operation, which kernels wait for which, what a graph
saves, what becomes of an operation that is cancelled, tiles and their blocks, the way of a copy,
and a launch on the CPU device.
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


# Kernels launched one by one, and as a graph: lane, kind, from, to, name.
ONE_BY_ONE = tuple(
    box for k in range(4) for box in (
        (0, "loop", 1.4 * k, 1.4 * k + 1.2, "submit"),
        (1, "ours", 1.4 * k + 1.2, 1.4 * k + 2.1, f"kernel {k + 1}"),
    )
)  # fmt: skip
AS_A_GRAPH = (
    (2, "loop", 0, 1.2, "launch"),
    *((3, "ours", 1.2 + 0.92 * k, 2.1 + 0.92 * k, f"kernel {k + 1}") for k in range(4)),
)
# An operation of two kernels, cancelled at the time 3: lane, kind, from, to, name.
CANCELLED = (
    (0, "loop", 0, 3, "waits for a limit"),
    (1, "loop", 0, 1.2, "enqueues"), (1, "ours", 1.2, 3.6, "kernel 1"),
    (2, "loop", 0, 1.2, "enqueues"), (2, "ours", 1.2, 3.6, "kernel 1"),
    (2, "ours", 3.65, 5.6, "kernel 2"),
)  # fmt: skip
ENDS = ((0, 3.1, "nothing runs"), (1, 3.7, "kernel 2 is not enqueued"), (2, 5.7, "both run"))


def graph_svg(suffix: str = "") -> str:
    """Four lanes: the host and the device, with a call for each kernel, and with one for all."""
    colour, left = COLOURS[suffix], 108
    scale = (WIDTH - left - RIGHT) / 6.3
    lanes = [(8, "host"), (36, "device"), (84, "host, graph"), (112, "device, graph")]
    parts = [text(left - 12, y + 16, name, colour["text"], "end") for y, name in lanes]
    for lane, kind, start, end, name in (*ONE_BY_ONE, *AS_A_GRAPH):
        parts += _box(
            left + start * scale, lanes[lane][0], (end - start) * scale, name, kind, suffix
        )
    said = "Blue: the host's calls. Green: kernels. A graph launches all of them by one call."
    parts.append(text(4, 158, said, colour["faint"]))
    return svg(170, "Kernels one by one, and as a graph", said, "".join(parts))


def cancel_svg(suffix: str = "") -> str:
    """Three lanes with an operation that is cancelled: before, while and after it is enqueued."""
    colour, left = COLOURS[suffix], 124
    scale = (WIDTH - left - RIGHT) / 7.2
    lanes = ("not enqueued", "half enqueued", "enqueued")
    parts = [
        text(left - 12, 24 + 32 * lane + 16, name, colour["text"], "end")
        for lane, name in enumerate(lanes)
    ]
    for lane, kind, start, end, name in CANCELLED:
        x, y = left + start * scale, 24 + 32 * lane
        parts += _box(x, y, (end - start) * scale, name, kind, suffix)
    parts += [
        text(left + x * scale, 24 + 32 * lane + 16, end, colour["faint"]) for lane, x, end in ENDS
    ]
    x = left + 3 * scale
    parts.append(f'<path d="M{x:.1f} 18V118" stroke="{colour["text"]}" stroke-width="2"/>')
    parts.append(text(x, 13, "cancel()", colour["text"], "middle"))
    said = "What is enqueued runs to its end, and its memory is kept until then."
    parts.append(text(4, 138, said, colour["faint"]))
    return svg(150, "An operation of two kernels is cancelled", said, "".join(parts))


def tiles_svg(suffix: str = "") -> str:
    """A row of 70 elements in tiles of 32, and the block of threads of each."""
    colour, left = COLOURS[suffix], 108
    scale = (WIDTH - left - RIGHT) / 96
    names = ("tensor", "blocks")
    parts = [
        text(left - 12, 8 + 44 * lane + 16, name, colour["text"], "end")
        for lane, name in enumerate(names)
    ]
    for block, length in enumerate((32, 32, 6)):
        x = left + 32 * block * scale
        parts += _box(x, 8, length * scale, f"{length}", "loop", suffix)
        parts += _box(x, 52, 32 * scale, f"block {block}, 32 threads", "ours", suffix)
        parts.append(f'<path d="M{x + 3 * scale:.1f} 34v16" stroke="{colour["text"]}"/>')
    said = "70 elements in tiles of 32: three blocks. The last tile has 6, so a kernel checks."
    parts.append(text(4, 98, said, colour["faint"]))
    return svg(108, "A tensor in tiles", said, "".join(parts))


def copies_svg(suffix: str = "") -> str:
    """The way of a large array to the device, chunk by chunk."""
    colour = COLOURS[suffix]
    x = (4, 196, 388)
    heads = ("NumPy array", "page-locked chunks", "device memory")
    parts = [text(at, 18, head, colour["text"]) for at, head in zip(x, heads, strict=True)]
    for chunk in range(4):
        y = 28 + 28 * chunk
        parts += _box(x[0], y, 140, f"part {chunk + 1}", "loop", suffix)
        if chunk in (1, 2):
            parts += _box(x[1], y, 140, f"part {chunk + 1}", "loop", suffix)
            parts += [_arrow(x[0] + 142, y + 12, 46, suffix)]
        if chunk < 2:
            parts += _box(x[2], y, 140, f"part {chunk + 1}", "ours", suffix)
    parts.append(_arrow(x[1] + 142, 68, 46, suffix))
    said = "Threads fill part 3 while the device copies part 2. The chunks are used again."
    parts.append(text(4, 158, said, colour["faint"]))
    return svg(168, "An upload in chunks", said, "".join(parts))


def workers_svg(suffix: str = "") -> str:
    """A launch of six blocks on two processors, beside the event loop."""
    colour, left = COLOURS[suffix], 108
    scale = (WIDTH - left - RIGHT) / 6
    lanes = ("event loop", "processor 1", "processor 2")
    parts = [
        text(left - 12, 8 + 32 * lane + 16, name, colour["text"], "end")
        for lane, name in enumerate(lanes)
    ]
    parts += _box(left, 8, 0.9 * scale, "submit", "loop", suffix)
    parts += _box(left + 0.95 * scale, 8, 4.1 * scale, "other tasks", "loop", suffix)
    parts += _box(left + 5.1 * scale, 8, 0.9 * scale, "result", "loop", suffix)
    for block in range(6):
        x, y = left + (0.95 + 1.37 * (block // 2)) * scale, 40 + 32 * (block % 2)
        parts += _box(x, y, 1.35 * scale, f"block {block}", "ours", suffix)
    said = "A block is a loop over its threads. Blocks of a large launch are shared out."
    parts.append(text(4, 124, said, colour["faint"]))
    return svg(134, "A launch on the CPU device", said, "".join(parts))


def _arrow(x: float, y: float, width: float, suffix: str) -> str:
    path = f"M{x} {y}h{width}m-4 -4l4 4l-4 4"
    return f'<path d="{path}" fill="none" stroke="{COLOURS[suffix]["text"]}"/>'


def _box(x: float, y: float, width: float, name: str, kind: str, suffix: str) -> list[str]:
    """A box of a lane, with its name in it: `loop` for the host, `ours` for the device."""
    over = "#000" if kind == "loop" and suffix else "#fff"
    fill = COLOURS[suffix][kind]
    rect = f'<rect x="{x:.1f}" y="{y}" width="{width - 2:.1f}" height="24" rx="3" fill="{fill}"/>'
    return [rect, text(x + width / 2 - 1, y + 16, name, over, "middle")]


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
        pictures[HERE / f"graph{suffix}.svg"] = graph_svg(suffix)
        pictures[HERE / f"cancel{suffix}.svg"] = cancel_svg(suffix)
        pictures[HERE / f"tiles{suffix}.svg"] = tiles_svg(suffix)
        pictures[HERE / f"copies{suffix}.svg"] = copies_svg(suffix)
        pictures[HERE / f"workers{suffix}.svg"] = workers_svg(suffix)
    return pictures


if __name__ == "__main__":
    if sys.argv[1:] == ["record"]:
        recorded = json.dumps(na.run(record()), separators=(",", ":"))
        RUN.write_text(recorded.replace(',"', ',\n"') + "\n", encoding="utf-8")
    for path, picture in drawn().items():
        path.write_text(picture, encoding="utf-8")
