"""Train a small network on all devices at once: each takes a part of the data, and the gradients
are summed over the devices. The losses are drawn to numbasync-demo/data_parallel.png.

    python examples/12_data_parallel.py
"""

import math
import sys
from pathlib import Path

import numpy as np
from numba import cuda
from PIL import Image, ImageDraw

import numbasync as na

HIDDEN = 32
# The parameters are one array: weights and biases of the hidden layer, then of the output.
BIAS, OUT, COUNT = 2 * HIDDEN, 3 * HIDDEN, 4 * HIDDEN + 1
STEPS, RATE = 300, 2.0


@na.launcher
@cuda.jit
def forward(
    error: na.KernelOutput, loss: na.KernelOutput, h: na.KernelOutput,
    x: na.KernelInput, y: na.KernelInput, p: na.KernelInput,
):  # fmt: skip
    """Of each point: the hidden units, the output's error, and the cross-entropy."""
    i = cuda.grid(1)
    if i < error.size:
        z = p[COUNT - 1]
        for j in range(HIDDEN):
            h[i, j] = math.tanh(x[i, 0] * p[2 * j] + x[i, 1] * p[2 * j + 1] + p[BIAS + j])
            z += h[i, j] * p[OUT + j]
        error[i] = 1 / (1 + math.exp(-z)) - y[i]
        loss[i] = math.log1p(math.exp(-abs(z))) + max(z, 0) - z * y[i]


@na.launcher
@cuda.jit
def backward(
    g: na.KernelOutput, x: na.KernelInput, h: na.KernelInput, error: na.KernelInput,
    p: na.KernelInput,
):  # fmt: skip
    """The gradient, summed over the points: one thread for each parameter."""
    k = cuda.grid(1)
    if k < g.size:
        total = 0.0
        for i in range(error.size):
            if k >= OUT:
                total += error[i] * (h[i, k - OUT] if k < COUNT - 1 else 1.0)
            else:
                j = k - BIAS if k >= BIAS else k // 2
                through = error[i] * p[OUT + j] * (1 - h[i, j] * h[i, j])
                total += through * (1.0 if k >= BIAS else x[i, k % 2])
        g[k] = total


@na.launcher
@cuda.jit
def descend(p: na.KernelOutput, g: na.KernelInput, rate: float):
    k = cuda.grid(1)
    if k < p.size:
        p[k] -= rate * g[k]


class Replica:
    """The network on one device, with that device's part of the points."""

    def __init__(self, device: na.Device) -> None:
        self.device = device

    async def start(self, x: na.Tensor, y: na.Tensor, p: na.Tensor) -> None:
        n = len(y)
        with na.use_device(self.device):
            self.x, self.y, self.p = x, y, p
            self.h, self.g = await na.zeros((n, HIDDEN)), await na.zeros(COUNT)
            self.error, self.loss = await na.zeros(n), await na.zeros(n)

    async def gradient(self) -> na.Tensor:
        await forward(self.error, self.loss, self.h, self.x, self.y, self.p)
        await backward(self.g, self.x, self.h, self.error, self.p)
        return self.g

    async def update(self, total: na.Tensor, rate: float) -> None:
        await descend(self.p, total, rate)

    async def losses(self) -> np.ndarray:
        return await self.loss.to_host()


def circles(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Points of two rings, which no line parts; 0 for the inner one, 1 for the outer one."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, n).astype(np.float32)
    angle, radius = rng.uniform(0, 2 * np.pi, n), 0.5 + y + rng.normal(0, 0.12, n)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).astype(np.float32), y


async def train(devices: list[na.Device], n: int = 1200, steps: int = STEPS) -> list[float]:
    """The mean loss before each step."""
    x, y = circles(n)
    first = np.random.default_rng(1).normal(0, 1, COUNT).astype(np.float32)
    replicas = [Replica(device) for device in devices]
    parts = zip(
        replicas,
        await na.scatter(x, devices),
        await na.scatter(y, devices),
        await na.replicate(first, devices),
        strict=True,
    )
    for replica, *tensors in parts:
        await replica.start(*tensors)
    curve = []
    for _ in range(steps):
        gradients = await na.gather(*(replica.gradient() for replica in replicas))
        totals = await na.collective.all_reduce(gradients)
        await na.gather(*(r.update(t, RATE / n) for r, t in zip(replicas, totals, strict=True)))
        curve.append(float(np.concatenate([await r.losses() for r in replicas]).mean()))
    return curve


def draw(curve: list[float], path: Path) -> None:
    width, height, edge = 640, 360, 40
    image = Image.new("RGB", (width, height), "white")
    lines = ImageDraw.Draw(image)
    lines.line([(edge, edge), (edge, height - edge), (width - edge, height - edge)], "black")
    across = (width - 2 * edge) / max(len(curve) - 1, 1)
    up = (height - 2 * edge) / max(curve)
    points = [(edge + i * across, height - edge - loss * up) for i, loss in enumerate(curve)]
    lines.line(points, "blue", 2)
    lines.text((edge + 8, edge - 20), f"loss {curve[0]:.3f} -> {curve[-1]:.4f}", "black")
    lines.text((width - edge - 70, height - edge + 10), f"{len(curve)} steps", "black")
    image.save(path)


async def main() -> None:
    devices = na.devices("cuda") or na.devices("cpu")
    curve = await train(devices)
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "numbasync-demo/data_parallel.png")
    path.parent.mkdir(parents=True, exist_ok=True)
    draw(curve, path)
    print(f"{len(devices)} devices: loss {curve[0]:.3f} -> {curve[-1]:.4f}, in {path}")
    assert curve[-1] < 0.1 * curve[0]


if __name__ == "__main__":
    na.run(main())
