"""Kernels of batches, run as plain Python: nothing is compiled, and every index is checked.

The texts that batches write are short: threads meet in `syncthreads` and `shfl_xor_sync`, which
stand in the kernel itself. Both become a `yield` here, so that a thread is a generator and a block
is a list of them. An index is checked against the array that the kernel was given, negative ones
and those of four neighbours included; memory that nobody has written holds 7s; and all threads of a
warp, or of a block, must come to where they meet.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from numbasync.batch.codegen import writer
from numbasync.batch.fusion.tuning import WARP
from numbasync.batch.run.plan import Prepared

Array = np.ndarray[Any, Any]
GARBAGE = 7
ENDED = "ended"
SYNC = "syncthreads"


class OutOfBoundsError(Exception):
    """An index that the array does not have."""


class Memory:
    """An array with one axis, whose indices are checked.

    Args:
        aligned: whether four elements from the first one can be moved at once.
    """

    __slots__ = ("aligned", "array", "name")

    def __init__(self, array: Array, name: str, aligned: bool = True) -> None:
        self.array, self.name, self.aligned = array, name, aligned

    @classmethod
    def new(cls, count: int, dtype: Any, name: str) -> Memory:
        return cls(np.full(count, GARBAGE, dtype), name)

    def check(self, i: Any, count: int = 1) -> int:
        if not isinstance(i, int | np.integer) or not 0 <= i <= len(self.array) - count:
            raise OutOfBoundsError(f"{self.name}[{i!r}], of {len(self.array)} elements")
        return int(i)

    def four(self, i: Any) -> slice:
        at = self.check(i, 4)
        if at % 4 or not self.aligned:
            raise OutOfBoundsError(f"{self.name}[{i!r}] is not where four can be moved at once")
        return slice(at, at + 4)

    def __getitem__(self, i: Any) -> Any:
        return self.array[self.check(i)]

    def __setitem__(self, i: Any, value: Any) -> None:
        self.array[self.check(i)] = value


def _store4(memory: Memory, i: Any, values: Any) -> None:
    memory.array[memory.four(i)] = values


def _inc(memory: Memory, i: Any, most: Any) -> Any:
    before = memory[i]
    memory[i] = 0 if before >= most else before + 1
    return before


class Machine:
    """What a text calls `cuda`: the thread that is running, and the memory of its block."""

    def __init__(self, grid: int, block: int) -> None:
        self.grid, self.block = grid, block
        self.threadIdx, self.blockIdx = SimpleNamespace(x=0), SimpleNamespace(x=0)
        self.blockDim = SimpleNamespace(x=block)
        self.atomic, self.shared = SimpleNamespace(inc=_inc), self
        self._rooms: list[Memory] = []
        self._asked: list[int] = []

    @staticmethod
    def jit(*args: Any, **options: Any) -> Callable[[Any], Any]:
        return lambda function: function

    @staticmethod
    def threadfence() -> None:
        """Threads run one after the other."""

    def array(self, count: int, dtype: Any) -> Memory:
        """Shared memory: the same for all threads that declare it."""
        k = self._asked[self.threadIdx.x]
        self._asked[self.threadIdx.x] += 1
        if k == len(self._rooms):
            self._rooms.append(Memory.new(count, dtype.__name__, f"shared memory {k}"))
        return self._rooms[k]

    def run(self, kernel: Callable[..., Any], arguments: Sequence[Any]) -> None:
        """All blocks, one after the other."""
        meets = inspect.isgeneratorfunction(kernel)
        for block in range(self.grid):
            self.blockIdx.x = block
            self._rooms, self._asked = [], [0] * self.block
            if meets:
                self._block([kernel(*arguments) for _ in range(self.block)])
                continue
            for thread in range(self.block):
                self.threadIdx.x = thread
                kernel(*arguments)

    def _block(self, threads: list[Any]) -> None:
        answers: list[Any] = [None] * len(threads)
        while True:
            asked: list[Any] = []
            for first in range(0, len(threads), WARP):
                asked += self._warp(threads, answers, first)
            if all(ask == ENDED for ask in asked):
                return
            assert set(asked) == {SYNC}, "threads of a block do not meet"

    def _warp(self, threads: list[Any], answers: list[Any], first: int) -> list[Any]:
        """Run threads of a warp until they have ended, or wait for the block."""
        while True:
            asked = []
            for k in range(first, first + WARP):
                self.threadIdx.x = k
                try:
                    asked.append(threads[k].send(answers[k]))
                except StopIteration:
                    asked.append(ENDED)
                answers[k] = None
            if SYNC in asked or ENDED in asked:
                return asked
            assert len({step for _, _, step in asked}) == 1, "threads of a warp do not meet"
            for k, (_, _, step) in enumerate(asked):
                answers[first + k] = asked[k ^ step][1]


def _whole(kind: type) -> Callable[[Any], Any]:
    """A conversion to an integer as a device does it: of what it does not hold, to anything."""

    def convert(x: Any) -> Any:
        return np.asarray(x).astype(kind)[()]

    convert.__name__ = kind.__name__
    return convert


def _erf(x: Any) -> Any:
    return type(x)(math.erf(x))


_NUMPY = SimpleNamespace(
    **{k.__name__: k for k in (np.float16, np.float32, np.float64, np.bool_, np.int8)},
    uint32=np.uint32, uint64=np.uint64,
    int32=_whole(np.int32), int64=_whole(np.int64),
)  # fmt: skip
_MATH = SimpleNamespace(
    exp=np.exp,
    expm1=np.expm1,
    log=np.log,
    log1p=np.log1p,
    sin=np.sin,
    cos=np.cos,
    sqrt=np.sqrt,
    tanh=np.tanh,
    pow=np.power,
    erf=_erf,
    inf=math.inf,
)


_LIBDEVICE = SimpleNamespace(fmul_rn=np.multiply, dmul_rn=np.multiply)


@functools.lru_cache(512)
def _code(source: str) -> Any:
    """What imports is given, and where threads meet, they yield."""
    text = re.sub(r"^(?:import|from) .*$", "", source, flags=re.MULTILINE)
    text = text.replace("cuda.syncthreads()", f"yield {SYNC!r}")
    return compile(text.replace("cuda.shfl_xor_sync(", "yield ("), "<kernel of a batch>", "exec")


def run(plan: Prepared, values: Mapping[int, Any], aligned: bool = True) -> dict[int, Array]:
    """What the kernels of a plan write, by node.

    Args:
        values: of inputs and constants, by node.
        aligned: whether inputs and results lie so that four elements can be moved at once.
    """
    nodes, found = plan.nodes, dict[int, Memory]()
    for n in plan.inputs:
        found[n] = Memory(np.ravel(np.asarray(values[n], nodes[n].dtype)), f"#{n}", aligned)
    with np.errstate(all="ignore"):
        for text in plan.texts:
            machine = Machine(text.grid, text.block)
            names = {
                "cuda": machine, "np": _NUMPY, "math": _MATH, "libdevice": _LIBDEVICE,
                "load4": lambda memory, i: memory.array[memory.four(i)],
                "store4": _store4, "is_aligned": lambda memory: memory.aligned,
            }  # fmt: skip
            exec(_code(text.source), names)
            given: list[Any] = []
            for role, value in text.arguments:
                if role == "write":
                    memory = Memory.new(nodes[value].size, nodes[value].dtype, f"#{value}")
                    memory.aligned = aligned
                    found[value] = memory
                if role in ("read", "write"):
                    given.append(found[value])
                elif role == "constant":
                    given.append(writer.argument_value(values[value], nodes[value].dtype))
                elif role == "partial":
                    part = text.partials[value]
                    given.append(Memory.new(part.extent, part.dtype, f"parts {value}"))
                elif role == "counter":
                    given.append(Memory(np.zeros(text.counters, np.uint32), "counters"))
                else:
                    given.append(value)
            machine.run(names[text.name], given)
    return {n: memory.array.reshape(nodes[n].shape) for n, memory in found.items()}
