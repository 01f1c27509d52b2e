"""The fast path of a plan: generated functions that enqueue a whole batch by one call.

A plan is enqueued in a few ways, which differ in which inputs are tensors of the program, and which
results the same submission copies back. Each way has a generated function of its own: loops over
inputs, results and kernels would take a microsecond more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from numbasync.backend.protocols import Work
from numbasync.device.device import Device
from numbasync.device.storage import MemoryPool
from numbasync.extending import (
    ArraySpec,
    Submission,
    host_mapped,
    is_filled,
    is_large,
    is_written_elsewhere,
    record_read,
)
from numbasync.tensors.tensor import Tensor

if TYPE_CHECKING:
    from numbasync.batch.run.state import BatchRun

COUNTER = np.dtype(np.uint32)


class FlatArray(NamedTuple):
    """An array of one axis in new memory, as kernels take it."""

    offset: int
    shape: tuple[int]
    strides: tuple[int]
    dtype: np.dtype[Any]

    @staticmethod
    def of(count: int, dtype: np.dtype[Any], offset: int = 0) -> FlatArray:
        return FlatArray(offset, (count,), (dtype.itemsize,), dtype)


class New(NamedTuple):
    """A tensor that a run creates: its node, its spec, and the same memory with one axis."""

    number: int
    kind: ArraySpec
    flat: FlatArray


class Scratch(NamedTuple):
    """An allocation that no user sees: the arrays in it, by their names in the source."""

    arrays: dict[str, FlatArray]
    nbytes: int


class Parts(NamedTuple):
    """The work of a plan on one device.

    Attributes:
        constants: nodes, with the types that they are passed as.
        counters: the name of the array that is set to 0 first; empty: none.
        launches: work, with the names of its arguments, or numbers.
        small: every array is small enough for kernels to read inputs and write results in host
            memory, because a copy takes longer.
    """

    inputs: list[New]
    outputs: list[New]
    scratch: list[Scratch]
    constants: list[tuple[int, type]]
    counters: str
    names: tuple[str, ...]
    launches: list[tuple[Work, list[Any]]]
    small: bool


# For each new tensor in turn the storage, or the host block, and the handle; then the values read.
Enqueued = tuple[tuple[Any, ...], Any]


class FastPath:
    """One way to enqueue a plan.

    Attributes:
        enqueue: enqueue a batch, with memory of a pool. Returns None, with nothing done, if memory
            must be requested, an array needs more care, or the run must wait for other submissions.
    """

    __slots__ = ("_borrowed", "_device", "_new", "_on_host", "enqueue")

    def __init__(
        self, device: Device, parts: Parts, borrowed: Sequence[int], reads: Sequence[int]
    ) -> None:
        self._device = device
        uploads = [new for new in parts.inputs if new.number not in borrowed]
        in_place = [new for new in parts.inputs if new.number in borrowed]
        self._new = [*uploads, *parts.outputs]
        self._borrowed = [new.number for new in in_place]
        self._on_host = _on_host(parts, uploads, reads)
        source = _Source(device, parts, in_place, uploads, reads, self._on_host)
        self.enqueue: Callable[[BatchRun, Submission, MemoryPool], Enqueued | None] = (
            source.compiled()
        )

    def tensors(
        self, memory: tuple[Any, ...], tensors: Mapping[int, Tensor], submission: Submission
    ) -> dict[int, Tensor]:
        """The tensors of inputs and results by node: those that `submission` has created, and the
        existing tensors that the run used. Some may be in host memory.
        """
        created = {n: tensors[n] for n in self._borrowed}
        for i, (n, spec, _) in enumerate(self._new):
            storage = memory[2 * i]
            if n in self._on_host:
                created[n] = host_mapped(self._device, storage, spec)
                created[n].storage.writer = submission
                continue
            tensor = created[n] = Tensor.of(self._device, storage, spec)
            if len(spec.shape) == 1:
                tensor.own_handle = memory[2 * i + 1]
        return created


def _on_host(parts: Parts, uploads: list[New], reads: Sequence[int]) -> frozenset[int]:
    """The nodes whose elements kernels read or write in a host block. Empty if nothing is read: the
    program wants the results on the device.
    """
    if not parts.small or not reads:
        return frozenset()
    outputs = {new.number for new in parts.outputs}
    return frozenset([*(new.number for new in uploads), *(n for n in reads if n in outputs)])


class _Source:
    """The source of a fast path's function. For node n: v its value, t a tensor of the program, s
    the storage, h the handle of all elements on one axis, b a page-locked block, w the array in it;
    d are blocks that results are read to, o arrays of the program.
    """

    def __init__(
        self, device: Device, parts: Parts, borrowed: list[New], uploads: list[New],
        reads: Sequence[int], on_host: frozenset[int],
    ) -> None:  # fmt: skip
        self._parts = parts
        self._borrowed = borrowed
        self._uploads = uploads
        self._kinds = {new.number: new.kind for new in (*parts.inputs, *parts.outputs)}
        self._reads = reads
        self._on_host = on_host
        self._backend = backend = device.backend
        self._names: dict[str, Any] = {
            "ZERO": np.uint32(0),
            "array_on": np.ndarray, "backend": backend, "copied": np.array, "copyto": np.copyto,
            "empty": np.empty, "handle": backend.array, "is_filled": is_filled, "partial": partial,
            "is_written_elsewhere": is_written_elsewhere, "locked": backend.host_block,
            "record_read": record_read, "submit_lock": device.submit_lock,
        }  # fmt: skip
        self._lines: list[str] = []
        self._new_blocks: list[str] = []
        self._nbytes = 0

    def compiled(self) -> Any:
        locked = [new.kind for new in self._uploads]
        locked += [self._kinds[n] for n in self._reads if n in self._kinds]
        if any(map(is_large, locked)):
            return lambda *_: None
        self._write()
        exec("\n".join(self._lines), self._names)  # noqa: S102 - of numbers and names of its own
        return self._names["enqueue"]

    def _write(self) -> None:
        """Generate all checks first, then the allocations, and last the work that uses them."""
        self._add(0, "def enqueue(batch, submission, pool):")
        self._add(1, "values = batch.recorder.values")
        self._take()
        self._add(1, "stream = submission.stream")
        self._add(1, "with submit_lock:")
        for n in self._borrowed_numbers:
            # Checked here: under this lock, a graph that another thread captures registers its
            # persistent access.
            self._add(
                2, f"if s{n}.fast_path_device is not backend: return None",
                f"if is_written_elsewhere(s{n}, stream): return None",
            )  # fmt: skip
        self._lease()
        self._run()
        new_memory = [
            f"{'b' if n in self._on_host else 's'}{n}, h{n}, "
            for n, _, _ in (*self._uploads, *self._parts.outputs)
        ]
        reads = [self._read(i, n) for i, n in enumerate(self._reads)]
        returned = reads[0] if len(reads) == 1 else f"({', '.join(reads)})"
        self._add(1, f"return ({''.join(new_memory)}), {returned}")

    def _add(self, depth: int, *lines: str) -> None:
        self._lines += ["    " * depth + line for line in lines]

    def _name(self, value: object) -> str:
        """A name in the source for a value."""
        name = f"c{len(self._names)}"
        self._names[name] = value
        return name

    @property
    def _borrowed_numbers(self) -> list[int]:
        return [new.number for new in self._borrowed]

    # --- the text ---

    def _take(self) -> None:
        """Generate the allocations, and the copies of arrays into page-locked memory."""
        if self._borrowed:
            self._add(1, "tensors = batch.tensors")
        for n, spec, _ in self._borrowed:
            on_one_axis = f"t{n}" if len(spec.shape) == 1 else f"t{n}.reshape(t{n}.size)"
            self._add(
                1, f"t{n} = tensors[{n}]", f"s{n} = t{n}.own_storage",
                f"if s{n} is None: return None",
                f"if t{n}.source is not None or not t{n}.is_contiguous: return None",
                f"h{n} = {on_one_axis}.handle",
            )  # fmt: skip
        for n, spec, flat in self._uploads:
            self._add(1, f"v{n} = values[{n}]")
            self._add(1, f"if v{n}.shape != {self._name(spec.shape)}: return None")  # resized
            self._add(1, f"if not is_filled(v{n}, submission): return None")
            self._lock(f"b{n}", spec.nbytes)
            if n in self._on_host:
                self._reach(n, spec)
                self._add(1, f"w{n}[...] = v{n}")
                continue
            self._allocate(f"s{n}", spec.nbytes)
            self._add(1, f"{self._array(spec, f'b{n}')}[...] = v{n}")
            self._handle(f"h{n}", f"s{n}", flat)
        for n, spec, flat in self._parts.outputs:
            if n in self._on_host:
                self._lock(f"b{n}", spec.nbytes)
                self._reach(n, spec)
            else:
                self._allocate(f"s{n}", spec.nbytes)
                self._handle(f"h{n}", f"s{n}", flat)
        for i, (arrays, nbytes) in enumerate(self._parts.scratch):
            self._allocate(f"r{i}", nbytes)
            for name, flat in arrays.items():
                self._handle(name, f"r{i}", flat)
        for n, passed_as in self._parts.constants:
            element = self._name(passed_as)
            self._add(1, f"v{n} = values[{n}]")
            self._add(1, f"if type(v{n}) is not {element}: v{n} = {element}(v{n})")
        for i, n in self._downloads:
            self._lock(f"d{i}", self._kinds[n].nbytes)
        for i, n in enumerate(self._reads):
            if n in self._on_host:
                spec = self._kinds[n]
                self._add(1, f"o{i} = empty({self._name(spec.shape)}, {self._name(spec.dtype)})")

    def _lock(self, name: str, nbytes: int) -> None:
        self._add(1, f"{name} = locked({nbytes})", f"if {name} is None: return None")
        self._new_blocks.append(name)
        self._nbytes += nbytes

    def _allocate(self, name: str, nbytes: int) -> None:
        self._add(1, f"{name} = pool.reuse({nbytes})", f"if {name} is None: return None")
        self._new_blocks.append(name)
        self._nbytes += nbytes

    def _handle(self, name: str, storage: str, flat: FlatArray) -> None:
        layout = ", ".join(map(self._name, flat))
        self._add(1, f"{name} = handle({storage}.memory, {layout})")

    def _reach(self, n: int, kind: ArraySpec) -> None:
        arrays = self._name(self._backend.host_arrays(kind.shape, kind.dtype))
        self._add(1, f"h{n}, w{n} = {arrays}(b{n})")

    @property
    def _downloads(self) -> list[tuple[int, int]]:
        """The results that are read by a copy: positions among the reads, and nodes."""
        reads = enumerate(self._reads)
        return [(i, n) for i, n in reads if n in self._kinds and n not in self._on_host]

    def _array(self, kind: ArraySpec, block: str) -> str:
        return f"array_on({self._name(kind.shape)}, {self._name(kind.dtype)}, {block})"

    def _lease(self) -> None:
        names = [*self._new_blocks, *(f"s{n}" for n in self._borrowed_numbers)]
        self._add(
            2, f"submission.nbytes += {self._nbytes}",
            f"submission.keep_alive += ({''.join(f'{name}, ' for name in names)})",
            f"submission.launched += {self._name(self._parts.names)}",
        )  # fmt: skip
        for name in self._new_blocks:
            if name[0] in "sr":  # new storages
                self._add(2, f"{name}.writer = submission")
        for n in self._borrowed_numbers:
            self._add(2, f"record_read(s{n}, submission)")

    def _run(self) -> None:
        """Generate the work. Each queue is stored before the next call, which may fail."""
        parts, queue = self._parts, "queue = submission.queue = stream"
        self._add(2, "stream, queue = submission.stream.backend, submission.queue")
        for n, _, _ in self._uploads:
            if n not in self._on_host:
                self._add(2, f"{queue}.upload(h{n}, b{n}, queue)")
        if parts.counters:
            self._add(2, f"{queue}.fill({parts.counters}, ZERO, queue)")
        for work, arguments in parts.launches:
            names = [a if isinstance(a, str) else self._name(a) for a in arguments]
            self._add(2, f"{queue}.launch({self._name(work)}, [{', '.join(names)}], queue)")
        for i, n in self._downloads:
            self._add(2, f"{queue}.download(d{i}, h{n}, queue)")
        for i, n in enumerate(self._reads):
            if n in self._on_host:
                self._add(2, f"submission.on_complete(partial(copyto, o{i}, w{n}))")
        downloads = sum(n in self._kinds for n in self._reads)
        self._add(1, f"batch.kernels_launched += {len(parts.launches)}")
        self._add(1, "transfers = batch.transfers")
        if self._uploads:
            self._add(1, f"transfers.uploads += {len(self._uploads)}")
        if downloads:
            self._add(1, f"transfers.downloads += {downloads}")

    def _read(self, i: int, n: int) -> str:
        """The expression of an id's value: for a number, an array of no axes."""
        if n not in self._kinds:
            return f"copied(values[{n}])"
        if n in self._on_host:
            return f"o{i}"
        return self._array(self._kinds[n], f"d{i}")
