"""`numbasync demo --scene NAME`: a simulation, a step a launch, and pictures of its course.

Each scene yields frames: levels of a square, uint8, and the name of the frame. The last step of
each is compared with NumPy's.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np

import numbasync as na
from numbasync.device.device import Device
from numbasync.errors import InternalError, MissingExtraError
from numbasync.tools.demo_pictures import title, write_picture

SIZE = 256  # points along each side
FRAMES = 4
Frame = tuple[str, "np.ndarray[Any, Any]"]


def _check(name: str, got: Any, want: Any, bound: float) -> None:
    if not np.abs(got - want).max() <= bound:
        raise InternalError(f"the last step of {name} differs from NumPy's.")


async def _heat(steps: int) -> AsyncIterator[Frame]:
    """A hot square and a hot edge in a cold plate."""
    from numbasync_kernels import simulation

    u = np.zeros((SIZE, SIZE), np.float32)
    u[96:160, 96:160] = u[:, 0] = 255
    now, after = await na.gather(na.from_host(u), na.zeros(u.shape))
    for step in range(FRAMES * steps):
        if step % steps == 0:
            yield f"step {step}", (await now.to_host()).astype(np.uint8)
        await simulation.heat(after, now, 0.25)
        now, after = after, now
    want = simulation.heat_reference(await after.to_host(), 0.25)
    _check("heat", await now.to_host(), want, 255 * 12 * 2.0**-24)


async def _wave(steps: int) -> AsyncIterator[Frame]:
    """A drop in a basin."""
    from numbasync_kernels import simulation

    y, x = np.mgrid[:SIZE, :SIZE]
    u = np.exp(-((y - 90) ** 2 + (x - 120) ** 2) / 50).astype(np.float32)
    before, now, after = await na.gather(na.from_host(u), na.from_host(u), na.zeros(u.shape))
    for step in range(FRAMES * steps):
        if step % steps == 0:
            heights = await now.to_host()
            yield f"step {step}", np.clip(128 + 300 * heights, 0, 255).astype(np.uint8)
        await simulation.wave(after, now, before, 0.25)
        before, now, after = now, after, before
    want = simulation.wave_reference(await before.to_host(), await after.to_host(), 0.25)
    _check("wave", await now.to_host(), want, 20 * 2.0**-24)


async def _life(steps: int) -> AsyncIterator[Frame]:
    """A third of all cells alive."""
    from numbasync_kernels import simulation

    cells = (np.random.default_rng(1).random((SIZE, SIZE)) < 1 / 3).astype(np.uint8)
    now, after = await na.gather(na.from_host(cells), na.zeros(cells.shape, np.uint8))
    for step in range(FRAMES * steps):
        if step % steps == 0:
            yield f"generation {step}", 255 * await now.to_host()
        await simulation.life(after, now)
        now, after = after, now
    want = simulation.life_reference(await after.to_host())
    _check("life", (await now.to_host()).astype(int), want, 0)


async def _bodies(steps: int) -> AsyncIterator[Frame]:
    """A turning cloud of 512 bodies, by leaps in places and speeds."""
    from numbasync_kernels import simulation

    n, soft, leap = 512, 0.05, 0.01
    rng = np.random.default_rng(1)
    angle, far = rng.uniform(0, 2 * np.pi, n), np.sqrt(rng.uniform(0.05, 1, n))
    bodies = np.stack(
        [far * np.cos(angle), far * np.sin(angle), rng.normal(0, 0.05, n), np.full(n, 1 / n)], 1
    ).astype(np.float32)
    speeds = np.stack([-bodies[:, 1], bodies[:, 0], np.zeros(n, np.float32)], 1)
    pulls = await na.zeros((n, 3))
    got = want = np.zeros((n, 3))
    for step in range(FRAMES * steps):
        if step % steps == 0:
            places = np.clip(SIZE / 2 + SIZE / 4 * bodies[:, :2], 0, SIZE - 1).astype(int)
            levels = np.zeros((SIZE, SIZE), np.uint8)
            levels[places[:, 1], places[:, 0]] = 255
            yield f"step {step}", levels
        await simulation.accelerations[-(-n // 128), 128](pulls, bodies, soft)
        got = await pulls.to_host()
        if step == FRAMES * steps - 1:
            want = simulation.accelerations_reference(bodies, soft)
        speeds += np.float32(leap) * got
        bodies[:, :3] += np.float32(leap) * speeds
    _check("bodies", got, want, (n + 16) * 2.0**-24 / soft**2)


SCENES: dict[str, tuple[Callable[[int], AsyncIterator[Frame]], int]] = {
    "heat": (_heat, 300), "wave": (_wave, 60), "life": (_life, 50), "bodies": (_bodies, 40),
}  # fmt: skip


def run(name: str, device: Device, out: Path | None) -> int:
    """Run the scene, and write a picture of its frames. Returns the exit status."""
    if importlib.util.find_spec("PIL") is None:
        raise MissingExtraError(
            "a scene needs PIL, which is not installed: pip install 'numbasync[demo]'"
        )
    folder = Path("numbasync-demo") if out is None else out
    folder.mkdir(parents=True, exist_ok=True)
    with na.use_device(device):
        na.run(_main(name, device, folder / f"{name}.png"))
    return 0


async def _main(name: str, device: Device, target: Path) -> None:
    scene, steps = SCENES[name]
    begin = time.perf_counter()
    frames = [frame async for frame in scene(steps)]
    seconds = time.perf_counter() - begin
    columns = [
        np.vstack([title(text, SIZE), np.repeat(levels[..., None], 3, axis=2)])
        for text, levels in frames
    ]
    write_picture(np.hstack(columns), target)
    said = f"{name}: {FRAMES * steps} steps on {device.label} in {seconds:.2f} s, as NumPy's"
    print(f"{said}\n{target}")  # noqa: T201 - a command's output
