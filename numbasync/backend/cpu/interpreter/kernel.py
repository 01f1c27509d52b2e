"""Kernels that run as Python: the kernel's own code object is called once for every CUDA thread, so
that `breakpoint()`, `print` and coverage tools work. Numbers are Python's and NumPy's.

In a kernel without barriers a block is a loop over its threads. In one with barriers each thread
of a block is a greenlet, which a barrier suspends until all threads of the block have arrived. The
blocks of a cluster run together if the kernel uses operations of `numbasync.tensor_cores`; others
do not know their cluster.

Kernels that use operations of `numbasync.tensor_cores` always run so: their threads wait for one
another in ways that the barrier regions of `compiler` do not express, and the work of their tiles
is NumPy's. What their tiles lack (a wait, a barrier, a fence) is found in every run. Races of plain
arrays, global ones and shared ones, are not found here, nor reads of elements that are not written,
nor writes to inputs; the race finder runs such a kernel in the order that it asks for.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from numbasync.backend.cpu.interpreter.bind import Binding, combines_values, uses_tensor_cores
from numbasync.backend.cpu.interpreter.block_state import (
    BlockState,
    current,
    leave,
    with_fields,
)
from numbasync.backend.cpu.interpreter.places import Index3
from numbasync.backend.cpu.interpreter.scheduler import Threads
from numbasync.backend.cpu.interpreter.tensor_cores.block import Cluster, TensorCoreBlock
from numbasync.backend.cpu.processor_code import ProcessorCode
from numbasync.backend.cpu.races.shadow_memory import turns
from numbasync.backend.protocols import GENERATED, ArgumentAccess, Checks, Dim3
from numbasync.errors import KernelError, NumbasyncError, OutOfBoundsError

if TYPE_CHECKING:
    from numbasync.backend.cpu.protocols import Workers


class Interpreted(ProcessorCode):
    """A kernel, ready to be run on the CPU device by any worker thread. Names keep the values that
    they have when the kernel is first needed; elements of global arrays do not.
    """

    from_disk = False
    engine = "interpreted"
    why = "NUMBASYNC_CPU_ENGINE=interpreted asks for it"
    static_shared_bytes = 0  # not known before the kernel runs

    def __init__(self, dispatcher: Any, max_threads: int) -> None:
        self.function: types.FunctionType = dispatcher.py_func
        self.name = self.function.__name__
        self.max_threads_per_block = max_threads
        binding = Binding()
        try:
            self._body = binding.function(self.function)
        except NumbasyncError as error:
            error.args = (f"kernel {self.name}: {error}",)
            raise
        self.uses_tensor_cores = uses_tensor_cores(self.function)
        self.has_barriers = (
            binding.has_barriers or self.uses_tensor_cores or combines_values(self.function)
        )
        if self.uses_tensor_cores:
            self.why = "it uses operations of numbasync.tensor_cores"
        self.has_breakpoints = binding.has_breakpoints
        self._files = binding.files - {GENERATED}
        self._cluster = Index3(1, 1, 1)

    def launch_in_clusters(self, cluster: Dim3) -> None:
        if self.uses_tensor_cores:
            self._cluster = Index3(*cluster)

    def suggested_threads(self) -> int:
        # A block costs more here than a thread, and a barrier more than a block.
        return 64 if self.has_barriers else 256

    def short_launch(self, grid: Dim3, block: Dim3, shared_bytes: int) -> None:
        """None: no launch is surely short."""

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
        """Run every cluster, one after the other. Called on a worker thread.

        Args:
            checks: the order of clusters and threads; of accesses, only indices are checked.
            argument_access: not used.
        """
        values = [_value(argument) for argument in args]
        threads = list(_ordered(_indices(block), checks))
        ranks = list(_indices(self._cluster))
        states = [BlockState(Index3(*grid), Index3(*block), shared_bytes) for _ in ranks]
        together: list[Threads] = []
        if self.has_barriers:
            for state in states:
                state.threads = Threads(state, threads, *together[:1])
                together.append(state.threads)
        clusters = Index3(*(n // c for n, c in zip(grid, self._cluster, strict=True)))
        states[0].enter()
        try:
            with np.errstate(all="ignore"):
                for place in _ordered(_indices(clusters), checks):
                    if engine.stopping:
                        return
                    for state, rank in zip(states, ranks, strict=True):
                        state.block = _block(place, self._cluster, rank)
                    if together:
                        self._run_cluster(states, together, values)
                        continue
                    for states[0].thread in threads:
                        self._body(*values)
        except NumbasyncError as error:
            error.args = (f"{self._place()}{error}",)
            raise
        except Exception as error:
            cls = OutOfBoundsError if isinstance(error, IndexError) else KernelError
            text = f"{type(error).__name__}: {error}{self._line(error)}"
            raise cls(f"{self._place()}{text}") from error
        finally:
            leave()
            for one in together:
                one.end()

    def _run_cluster(
        self, states: list[BlockState], together: list[Threads], values: list[Any]
    ) -> None:
        first, *others = together
        if self.uses_tensor_cores:
            cluster = Cluster(len(states), first.count)
            for state, threads in zip(states, together, strict=True):
                state.tensor_cores = TensorCoreBlock(state.dynamic, threads, cluster)
        first.run_blocks(self._body, values, others)
        for state in states:
            if state.tensor_cores is not None:
                state.enter()  # the error of a block names the block
                state.tensor_cores.end()

    def _place(self) -> str:
        """The block and the thread that have run last, for messages."""
        state = current()
        return f"kernel {self.name}, block {tuple(state.block)}, thread {tuple(state.thread)}: "

    def _line(self, error: BaseException) -> str:
        """The innermost line of the kernel, or of its device functions, in a traceback."""
        text = ""
        trace = error.__traceback__
        while trace is not None:
            file = trace.tb_frame.f_code.co_filename
            if file in self._files:
                text = f" ({file}:{trace.tb_lineno})"
            trace = trace.tb_next
        return text


def _value(argument: Any) -> Any:
    """An argument as the kernel's code takes it: a NumPy array, a number, or a tuple of them."""
    if isinstance(argument, tuple):  # a named one may have a field of any name
        values, make = tuple(map(_value, argument)), getattr(argument, "_make", None)
        return values if make is None else make(values)
    array = getattr(argument, "array", None)
    return argument if array is None else with_fields(array)


def _block(cluster: Index3, extent: Index3, rank: Index3) -> Index3:
    """A block's index, from that of its cluster and its place there."""
    return Index3(*(n * c + r for n, c, r in zip(cluster, extent, rank, strict=True)))


def _ordered(indices: Iterator[Index3], checks: Checks | None) -> Iterable[Index3]:
    if checks is None:
        return indices
    known = list(indices)
    return [known[k] for k in turns(checks, len(known))]


def _indices(extent: Dim3) -> Iterator[Index3]:
    """Every index, x fastest, as the hardware numbers threads."""
    return (Index3(x, y, z) for z, y, x in product(*(range(n) for n in reversed(extent))))
