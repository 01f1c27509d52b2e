"""A soak of graphs: a hundred thousand launches, with all that is done to graphs in between.

    python -m tests.stress.soak_graphs [launches] [kind] [--steps 10] [--drift 1.1] [--growth 8]

prints what `tests.stress.soak` prints, and fails as it does. The sums that the launches leave are
checked as well: one that is lost, comes twice, or reads memory of others is found.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

import numbasync as na
from tests.common import add_one, copy_to, saxpy
from tests.stress.soak import Step, command, walk

SIZE = 256


class Rounds:
    """A graph that adds `x` to `z`, and what is done with it.

    Attributes:
        expected: what every element of `z` is, once all is done.
    """

    def __init__(self, device: na.Device, tensors: Sequence[na.Tensor]) -> None:
        self._device = device
        self._home, self._other = device.new_stream(), device.new_stream()
        self._z, self._x, self._three, self._aside = tensors
        self._host = np.ones(SIZE, np.int32)
        self._locked = na.pinned(SIZE, np.int32)
        self._value = 0
        self._rounds = 0
        self.expected = 0
        self.graph: na.CudaGraph[Any] = self._op(self._x).graph_on(self._home)
        self._forgotten: na.CudaGraph[Any] = add_one(self._aside).graph_on(self._home)
        self._twice = na.graphed(twice)

    @classmethod
    async def on(cls, device: na.Device) -> Rounds:
        """With tensors of their own."""
        ops = [na.full(SIZE, value, np.int32) for value in (0, 0, 3, 0)]
        return cls(device, await na.gather(*ops))

    def _op(self, x: na.Tensor) -> na.DeviceOp[Any]:
        """What is captured: two kernels, one after the other."""
        return na.zip(saxpy(self._z, 1, x), add_one(self._z))

    def _launched(self, added: int, times: int = 1) -> None:
        self.expected += times * (added + 1)

    async def one(self) -> int:
        """A round; how many launches it had."""
        self._rounds += 1
        launches = await self._updated() + await self._elsewhere() + await self._graphed()
        launches += await self._arguments()
        if self._rounds % 10 == 0:
            launches += await self._recaptured() + await self._nobody_holds_its_memory()
        return launches

    async def _updated(self) -> int:
        """New input before a launch, from an array, a page-locked one, and as a number."""
        graph = self.graph
        self._host[:] = self._value = self._rounds % 7
        graph.update(na.memcpy(self._x, self._host))
        self._host[:] = -1  # it has been read
        await graph.launch()
        self._launched(self._value)
        self._locked[:] = 2
        graph.update(na.memcpy(self._x, self._locked))
        await graph.launch()
        self._launched(2)
        graph.update(na.fill(self._x, self._value))
        graph.launch().sync()
        self._launched(self._value)
        return 3

    async def _elsewhere(self) -> int:
        """On other streams, many at once, and one that nobody waits for any more."""
        graph = self.graph
        graph.launch().async_on(self._other)
        graph.launch().async_on(self._home)
        graph.launch().sync_on(self._other)
        await na.gather(*[graph.launch().schedule(self._other), graph.launch(), graph.launch()])
        task = asyncio.ensure_future(_awaited(self._forgotten.launch().schedule(self._other)))
        await asyncio.sleep(0)
        task.cancel()
        na.spawn(self._forgotten.launch(), self._other)
        self._launched(self._value, 6)
        return 8

    async def _graphed(self) -> int:
        """A function that replays, of tensors and of arrays."""
        both = await na.gather(self._twice(self._three), self._twice(self._three))
        for found in both:
            assert ((await found.to_host()) == 6).all(), "a replayed function was wrong"
        self._host[:] = self._rounds % 11
        array = await self._twice(self._host).then(lambda found: found.to_host())
        assert (array == 2 * (self._rounds % 11)).all(), "a replayed function was wrong"
        return 3

    async def _arguments(self) -> int:
        """Another input for one launch, and the old one again."""
        self.graph.set_args(0, self._z, 1, self._three)
        await self.graph.launch()
        self._launched(3)
        self.graph.set_args(0, self._z, 1, self._x)
        return 1

    async def _recaptured(self) -> int:
        self.graph.recapture(self._op(self._three))
        self.graph.launch().sync_on(self._other)
        self._launched(3)
        self.graph.recapture(self._op(self._x))
        await self.graph.launch()
        self._launched(self._value)
        return 2

    async def _nobody_holds_its_memory(self) -> int:
        """A graph whose buffers no one else has any more, while others overwrite all that is
        free.
        """
        out = await na.zeros(SIZE, np.int32)
        graph = await self._private(out)
        for _ in range(2):
            poison = await na.gather(*[na.full(SIZE, -7, np.int32) for _ in range(8)])
            await graph.launch()
            assert (await out.to_host() == 8).all(), "memory of a graph was given to others"
            del poison
        return 2

    async def _private(self, out: na.Tensor) -> na.CudaGraph[Any]:
        x, hidden = await na.full(SIZE, 4, np.int32), await na.zeros(SIZE, np.int32)
        op = na.zip(copy_to(hidden, x), saxpy(hidden, 1, x), copy_to(out, hidden))
        return op.graph_on(self._other)

    async def check(self) -> None:
        """Raise unless every launch has added its part, once."""
        found = await self._z.to_host()
        assert (found == np.int32(self.expected)).all(), "a launch was lost, or came twice"


async def _awaited(future: na.DeviceFuture[None]) -> None:
    await future


def twice(x: na.Tensor) -> na.DeviceOp[na.Tensor]:
    """Two times x, as a new tensor."""
    return na.zeros(SIZE, np.int32).then(lambda z: saxpy(z, 2, x)).map(lambda r: r.z)


async def soak(device: na.Device, launches: int, steps: int) -> list[Step]:
    """So many launches of graphs."""
    rounds = await Rounds.on(device)
    for _ in range(50):
        await rounds.one()
    found = await walk(device, launches, steps, rounds.one)
    await rounds.check()
    return found


def main(argv: Sequence[str] | None = None) -> int:
    return command(argv, "tests.stress.soak_graphs", __doc__, soak, 100_000)


if __name__ == "__main__":
    sys.exit(main())
