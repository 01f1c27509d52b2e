"""LLVM's passes and machine code for this processor."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import llvmlite.binding as llvm

from numbasync.backend.cpu.regions.llvm_types import round_up

PLACES = 64  # memory per thread is made for a multiple of so many


@functools.cache
def target_machine(triple: str = "", cpu: str = "", features: str = "", level: int = 3) -> Any:
    """The processor's, or another's, which writes machine code at a level of optimisation."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    if not triple:
        triple, cpu = llvm.get_process_triple(), llvm.get_host_cpu_name()
        features = llvm.get_host_cpu_features().flatten()
    target = llvm.Target.from_triple(triple)
    # LLVM takes pages of memory for each part of the code. Where a driver has reserved most of the
    # addresses, they are far apart, and a distance of 32 bits between them ends the process.
    return target.create_target_machine(
        cpu=cpu, features=features, opt=level, reloc="static", codemodel="large"
    )


def loaded(object_code: bytes) -> Any:
    """The engine that has machine code in memory, and keeps it there as long as it lives."""
    llvm.initialize_native_target()  # Numba does not, where NUMBA_DISABLE_JIT is set
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(object_code))
    engine.finalize_object()
    return engine


def run_passes(
    module: Any, names: Iterable[str] | None = None, machine: Any = None, level: int = 3
) -> None:
    """Run the passes of these names, or all that LLVM runs at a level."""
    options = llvm.create_pipeline_tuning_options(speed_level=level)
    options.loop_vectorization = options.slp_vectorization = True
    options.loop_interleaving = options.loop_unrolling = True
    builder = llvm.create_pass_builder(machine or target_machine(), options)
    if names is None:
        manager = builder.getModulePassManager()
    else:
        manager = llvm.create_new_module_pass_manager()
        for name in names:
            getattr(manager, f"add_{name}_pass")()
    manager.run(module, builder)


@dataclass(slots=True)
class Code:
    """Machine code of a kernel for this processor.

    Attributes:
        object_code: ELF, or what the system has.
        symbol: `i32 symbol(ptr arguments, ptr memory, i64 first, i64 end, i32 wx, wy, wz, gx, gy,
            gz, i64 dynamic_bytes, ptr order)`, which runs the blocks from `first` up to `end`.
        arguments: LLVM's type of each flattened argument, each in a slot of 8 bytes.
        shared: offset and bytes of each static shared array in the memory of a block.
        dynamic_offset: where dynamic shared memory begins there.
        fixed_bytes: what the places of threads take besides.
        thread_bytes: what each thread's places take.
        is_row: only for blocks with one row of threads: `y` and `z` are 1.
        cooperative: blocks that meet: each has memory of its own. A call runs each of them to the
            next barrier of the grid, whose number is then in its memory (`record.WAITS_AT`).
        most_merged: how many threads a block may have that is made of several; 0 if none may be.
        sites: the place of each barrier, by its number.
        notes: what the compilation found, for tests and for whoever measures.
    """

    object_code: bytes
    symbol: str
    arguments: list[str]
    shared: list[tuple[int, int]]
    dynamic_offset: int
    fixed_bytes: int
    thread_bytes: int
    is_row: bool
    cooperative: bool
    most_merged: int
    sites: list[int]
    notes: dict[str, Any] = field(default_factory=dict)
    _engine: Any = field(default=None, repr=False, compare=False)
    _loading: Any = field(default_factory=threading.Lock, repr=False, compare=False)

    def memory_bytes(self, threads: int, dynamic_bytes: int = 0) -> int:
        """Bytes of memory for one block of so many threads; a multiple of 64."""
        return (
            self.dynamic_offset
            + round_up(dynamic_bytes, 64)
            + self.fixed_bytes
            + self.thread_bytes * round_up(threads, PLACES)
        )

    def load(self) -> int:
        """The function's address; the code stays loaded as long as this object lives."""
        with self._loading:
            if self._engine is None:
                self._engine = loaded(self.object_code)
            return int(self._engine.get_function_address(self.symbol))

    def __getstate__(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in _KEPT)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        for name, value in zip(_KEPT, state, strict=True):
            setattr(self, name, value)
        self._engine = None
        self._loading = threading.Lock()


_KEPT = tuple(name for name in Code.__dataclass_fields__ if not name.startswith("_"))
