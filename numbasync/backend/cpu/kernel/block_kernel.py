"""Kernels as machine code that runs blocks of threads: over the processors, short, or together."""

from __future__ import annotations

import contextlib
import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from types import FunctionType
from typing import TYPE_CHECKING, Any, NoReturn

from numbasync.backend.cpu.declared_arguments import Formal
from numbasync.backend.cpu.kernel.artifact import LoadedCode
from numbasync.backend.cpu.kernel.memory import (
    BlockMemory,
    memory_of_blocks,
    memory_of_thread,
)
from numbasync.backend.cpu.kernel.scheduling import PARTS, Costs, helpers, workers
from numbasync.backend.cpu.limits import LIMITS
from numbasync.backend.cpu.processor_code import ProcessorCode
from numbasync.backend.protocols import ArgumentAccess, Checks, Dim3
from numbasync.errors import KernelCompileError
from numbasync.native import compiled, known
from numbasync.threads import submit

if TYPE_CHECKING:
    from numbasync.backend.cpu.protocols import Workers

SHORT_THREADS = 1024


class BlockKernel(ProcessorCode, ABC):
    """A kernel, ready to be run on the CPU device by any thread.

    Attributes:
        shared: offset and size of each static shared array in a block's memory.
        cooperative: whether blocks synchronise: each then has memory of its own.
    """

    engine = "compiled"
    why = ""
    formal: Formal | None = None  # by declared signatures
    records: tuple[int, ...] = ()  # positions of structured scalars, which come as arrays
    from_disk: bool
    shared: Sequence[tuple[int, int]]
    cooperative: bool
    _is_straight: bool
    _costs: Costs

    def __init__(self, function: FunctionType, max_threads: int) -> None:
        self.function = function
        self.name = function.__name__
        self.max_threads_per_block = max_threads

    @abstractmethod
    def _made(self, block: Dim3) -> LoadedCode | None:
        """The code for such blocks, if it has been compiled."""

    @abstractmethod
    def _code(self, block: Dim3) -> LoadedCode:
        """The code for such blocks; compiled now if it was not needed before."""

    @abstractmethod
    def fail(self, memory: BlockMemory, error: Exception) -> NoReturn:
        """Raise the error of a kernel that was stopped by `error`, from its record."""
        raise NotImplementedError

    @abstractmethod
    def run_checked(
        self,
        checks: Checks,
        grid: Dim3,
        block: Dim3,
        shared_bytes: int,
        args: Sequence[Any],
        values: Sequence[Any],
        argument_access: Sequence[ArgumentAccess | None],
    ) -> None:
        """Run every block, and check every access."""

    @property
    def static_shared_bytes(self) -> int:
        return sum(nbytes for _, nbytes in self.shared)

    def check_shared_bytes(self) -> None:
        """
        Raises:
            KernelCompileError: the static shared arrays take more than a device has.
        """
        if self.static_shared_bytes > LIMITS.max_shared_bytes:
            raise KernelCompileError(
                f"kernel {self.name}: its shared arrays take {self.static_shared_bytes:,} bytes; a "
                f"device has {LIMITS.max_shared_bytes:,} a block for arrays of a fixed shape.\n"
                "Declare the arrays in na.shared_layout: a launch may take more for those."
            )

    def suggested_threads(self) -> int:
        return 256

    def allow_large_shared(self) -> None:
        """Nothing to do: memory of a block is the host's."""

    def launch_in_clusters(self, cluster: Dim3) -> None:
        """Nothing to do: only operations for tensor cores reach from block to block."""

    def short_launch(self, grid: Dim3, block: Dim3, shared_bytes: int) -> ShortLaunch | None:
        """The launch, if it surely takes less time than waking a thread does: no loops, few
        threads, and nothing left to compile.
        """
        blocks, threads = _count(grid), _count(block)
        code = self._made(block)
        if not self._is_straight or threads * blocks > SHORT_THREADS or code is None:
            return None
        nbytes = code.memory_bytes(threads, shared_bytes)
        return ShortLaunch(self, code, code.blocks(0, blocks, block, grid), nbytes, shared_bytes)

    def run(
        self,
        grid: Dim3,
        block: Dim3,
        shared_bytes: int,
        args: Sequence[Any],
        engine: Workers,
        checks: Checks | None = None,
        argument_access: Sequence[ArgumentAccess | None] = (),
    ) -> None:
        """Run every block. Called on a worker thread, or by the submitter of a short launch.

        Args:
            checks: how to check every access; None: run without checks.
            argument_access: which elements of each argument may be written, for the checks.
        """
        values = [value_of(a) for a in args]
        if checks is not None:
            self.run_checked(checks, grid, block, shared_bytes, args, values, argument_access)
            return
        code = self._code(block)  # before the time is taken
        blocks = _count(grid)
        if self.cooperative:
            # The blocks run together, each with memory of its own.
            self._run(code, 0, blocks, grid, block, shared_bytes, values, blocks)
            return
        threads = blocks * _count(block)
        # A stepped device repeats the order of blocks. `workers` comes last: it takes longer than a
        # short launch.
        shared = (
            blocks > 1
            and engine.stepper is None
            and self._costs.are_shared(threads, blocks)
            and workers() > 1
        )
        began = time.perf_counter()
        if shared:
            self._spread(code, blocks, grid, block, shared_bytes, values, engine)
        else:
            self._run(code, 0, blocks, grid, block, shared_bytes, values)
        self._costs.took(shared, (time.perf_counter() - began) / blocks)

    def _spread(
        self, code: LoadedCode, blocks: int, grid: Dim3, block: Dim3, shared_bytes: int,
        values: list[Any], engine: Workers,
    ) -> None:  # fmt: skip
        parts = min(blocks, workers() * PARTS)
        bounds = [blocks * i // parts for i in range(parts + 1)]
        turn = itertools.count()
        failed: list[tuple[int, BaseException]] = []

        def work() -> None:
            while (part := next(turn)) < parts and not failed and not engine.stopping:
                first, end = bounds[part : part + 2]
                try:
                    self._run(code, first, end, grid, block, shared_bytes, values)
                except BaseException as error:
                    failed.append((part, error))

        others: list[Future[None]] = []  # one by one: those that have begun are waited for
        with contextlib.suppress(RuntimeError):  # no more threads can be started
            for _ in range(workers() - 1):
                others.append(submit(helpers(), work))  # noqa: PERF401 - keeps those before
        work()
        for other in others:
            other.result()
        if failed:
            raise min(failed, key=lambda f: f[0])[1]

    def _run(
        self, code: LoadedCode, first: int, end: int, grid: Dim3, block: Dim3, shared_bytes: int,
        values: list[Any], blocks: int = 1,
    ) -> None:  # fmt: skip
        """Run the blocks `first` to `end`, of which `blocks` have memory at the same time."""
        nbytes = code.memory_bytes(_count(block), shared_bytes)
        alone = blocks == 1
        memory = memory_of_thread(nbytes) if alone else memory_of_blocks(self.name, nbytes, blocks)
        dynamic = [(code.dynamic_offset, shared_bytes)] if shared_bytes else []
        memory.clear([*self.shared, *dynamic])
        numbers, _keep = code.blocks(first, end, block, grid)
        try:
            code.run(*numbers, memory.address, shared_bytes, *values)
        except Exception as error:
            self.fail(memory, error)


def _count(extents: Dim3) -> int:
    return extents[0] * extents[1] * extents[2]


@known
class ShortLaunch:
    """A launch of compiled code that takes less time than waking a thread.

    Attributes:
        is_plain: no argument has to be converted, and no memory to be filled.
    """

    __slots__ = (
        "_entry_point",
        "_extents",
        "_keep",
        "_kernel",
        "_nbytes",
        "_shared",
        "_shared_bytes",
        "is_plain",
    )

    def __init__(
        self,
        kernel: BlockKernel,
        code: LoadedCode,
        extents: tuple[tuple[int, ...], Any],
        nbytes: int,
        shared_bytes: int,
    ) -> None:
        self._kernel = kernel
        self._entry_point = code.run
        self._nbytes = nbytes
        self._extents, self._keep = extents
        self._shared_bytes = shared_bytes
        self._shared = list(kernel.shared)
        if shared_bytes:
            self._shared.append((code.dynamic_offset, shared_bytes))
        self.is_plain = not (self._shared or kernel.formal is not None or kernel.records)

    @compiled
    def run(self, args: Sequence[Any]) -> None:
        """Run every block."""
        memory = memory_of_thread(self._nbytes)
        memory.clear(self._shared)
        try:
            self._entry_point(
                *self._extents, memory.address, self._shared_bytes, *map(_value, args)
            )
        except Exception as error:
            self._kernel.fail(memory, error)


@compiled
def _value(argument: Any) -> Any:
    array = getattr(argument, "array", None)
    if array is not None:
        return array
    if type(argument) is tuple:
        return tuple(_value(a) for a in argument)
    return argument


value_of = _value  # the argument as compiled code takes it
