"""Two devices in one process: parts of an array worked on by each, and one result.

`scatter` puts the parts on the devices, `DeviceGroup.map` runs an operation for each where it
lies, and `gather_parts` joins the results on one device. Copies are operations like all others:
events order them with what writes and reads the tensors, on both devices.

Without two GPUs it runs on two CPU devices.

    python examples/11_two_devices.py
"""

import numpy as np
from numba import cuda

import numbasync as na


@na.launcher
@cuda.jit
def smooth(out: na.KernelOutput, x: na.KernelInput):
    """The mean of each number and its neighbours."""
    i = cuda.grid(1)
    if 0 < i < out.shape[0] - 1:
        out[i] = (x[i - 1] + x[i] + x[i + 1]) / 3


# The table may lie anywhere: the launch copies it to the device of `out`.
@na.launcher(move_inputs=True)
@cuda.jit
def scale(out: na.KernelOutput, table: na.KernelInput):
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i] *= table[0]


async def main() -> None:
    devices = na.devices("cuda")[:2]
    if len(devices) < 2:
        devices = na.devices("cpu")[:2]
    group = na.DeviceGroup(devices)
    array = np.linspace(0, 1, 10_000, dtype=np.float32)
    table = await na.to_device(np.full(1, 2, np.float32), devices[0])

    def work(part: na.Tensor) -> na.DeviceOp[na.Tensor]:
        """Runs on the part's device, which is the current one here."""
        return part.dup().then(lambda out: smooth(out, part)).output()

    parts = await na.scatter(array, devices)
    smoothed = await group.map(work, parts)
    for part in smoothed:
        await scale(part, table)
    whole = await na.gather_parts(smoothed, device=devices[0])

    doubled = await whole.to_host()
    inner = np.array_split(array, len(devices))
    for part in inner:
        part[1:-1] = (part[:-2] + part[1:-1] + part[2:]) / 3
    np.testing.assert_allclose(doubled, 2 * np.concatenate(inner), rtol=1e-6)
    print(f"{len(doubled):,} numbers by {group!r}: {group.statistics()}")


na.run(main())
