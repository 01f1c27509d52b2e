"""Forms of a plan: functions that enqueue a batch all at once.

A plan is enqueued in few ways: by which of its inputs are tensors of the program, and which results
are copied back by the same submission. Each has a function of its own, written for it: loops over
inputs, results and kernels would take a microsecond more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from numbasync.backend import protocols
from numbasync.batch.run.host_tensors import reached
from numbasync.device import access
from numbasync.device.device import Device
from numbasync.device.storage import MemoryPool
from numbasync.device.submission import Submission
from numbasync.tensors.array_spec import ArraySpec
from numbasync.tensors.parallel_copy import LARGE
from numbasync.tensors.tensor import Tensor

if TYPE_CHECKING:
    from numbasync.batch.run.state import BatchRun

COUNTER = np.dtype(np.uint32)


class Line(NamedTuple):
    """An array of one axis in new memory, as kernels take it."""

    offset: int
    shape: tuple[int]
    strides: tuple[int]
    dtype: np.dtype[Any]

    @staticmethod
    def of(count: int, dtype: np.dtype[Any], offset: int = 0) -> Line:
        return Line(offset, (count,), (dtype.itemsize,), dtype)


class New(NamedTuple):
    """A tensor that a run makes: its node, what it is like, the same with one axis."""

    number: int
    kind: ArraySpec
    line: Line


class Scratch(NamedTuple):
    """An allocation that nobody sees: the arrays in it, by their names in the text."""

    lines: dict[str, Line]
    nbytes: int


class Parts(NamedTuple):
    """What a plan enqueues on one device.

    Attributes:
        constants: nodes, with the types that they are passed as.
        counters: what is set to 0 first, by its name; empty: nothing.
        launches: work, with the names of its arguments, or numbers.
        small: every array is so small that kernels read inputs, and write what is read, where the
            host has them: a copy takes longer.
    """

    inputs: list[New]
    outputs: list[New]
    scratch: list[Scratch]
    constants: list[tuple[int, type]]
    counters: str
    names: tuple[str, ...]
    launches: list[tuple[protocols.Work, list[Any]]]
    small: bool


# Of new tensors in turn the storage, or the block of the host, and the handle; then what was read.
Found = tuple[tuple[Any, ...], Any]


class Form:
    """One way to enqueue a plan.

    Attributes:
        enqueue: do so, for a batch, with memory of a pool. None, and nothing has happened, if
            memory must be asked for, an array needs more care, or others must be waited for.
    """

    __slots__ = ("_device", "_lent", "_new", "_on_host", "enqueue")

    def __init__(
        self, device: Device, parts: Parts, lent: Sequence[int], reads: Sequence[int]
    ) -> None:
        self._device = device
        uploads = [new for new in parts.inputs if new.number not in lent]
        used = [new for new in parts.inputs if new.number in lent]
        self._new = [*uploads, *parts.outputs]
        self._lent = [new.number for new in used]
        self._on_host = _on_host(parts, uploads, reads)
        text = _Text(device, parts, used, uploads, reads, self._on_host)
        self.enqueue: Callable[[BatchRun, Submission, MemoryPool], Found | None] = text.made()

    def tensors(
        self, made: tuple[Any, ...], there: Mapping[int, Tensor], submission: Submission
    ) -> dict[int, Tensor]:
        """The tensors of inputs and results by node, of what `submission` has made and of those
        that were there. Some may lie with the host.
        """
        found = {n: there[n] for n in self._lent}
        for i, (n, kind, _) in enumerate(self._new):
            storage = made[2 * i]
            if n in self._on_host:
                found[n] = reached(self._device, storage, kind)
                found[n].storage.writer = submission
                continue
            tensor = found[n] = Tensor.of(self._device, storage, kind)
            if len(kind.shape) == 1:
                tensor.own_handle = made[2 * i + 1]
        return found


def _on_host(parts: Parts, uploads: list[New], reads: Sequence[int]) -> frozenset[int]:
    """The nodes whose elements kernels read or write in a block of the host. None, if nothing is
    read: somebody wants results on the device.
    """
    if not parts.small or not reads:
        return frozenset()
    outputs = {new.number for new in parts.outputs}
    return frozenset([*(new.number for new in uploads), *(n for n in reads if n in outputs)])


class _Text:
    """A form's function. For node n: v its value, t a tensor of the program, s the storage, h the
    handle of all elements on one axis, b a page-locked block, w the array in it; d are blocks that
    are read to, o arrays of the program.
    """

    def __init__(
        self, device: Device, parts: Parts, lent: list[New], uploads: list[New],
        reads: Sequence[int], on_host: frozenset[int],
    ) -> None:  # fmt: skip
        self._parts = parts
        self._lent = lent
        self._uploads = uploads
        self._kinds = {new.number: new.kind for new in (*parts.inputs, *parts.outputs)}
        self._reads = reads
        self._on_host = on_host
        self._backend = backend = device.backend
        self._names: dict[str, Any] = {
            **access.NAMES, "ZERO": np.uint32(0),
            "array_on": np.ndarray, "backend": backend, "copied": np.array, "copyto": np.copyto,
            "empty": np.empty, "handle": backend.array, "partial": partial,
            "submit_lock": device.submit_lock,
            "locked": backend.host_block,
        }  # fmt: skip
        self._lines: list[str] = []
        self._kept: list[str] = []
        self._nbytes = 0

    def made(self) -> Any:
        locked = [new.kind.nbytes for new in self._uploads]
        locked += [self._kinds[n].nbytes for n in self._reads if n in self._kinds]
        if any(nbytes > LARGE for nbytes in locked):
            return lambda *_: None
        self._write()
        exec("\n".join(self._lines), self._names)  # noqa: S102 - of numbers and names of its own
        return self._names["enqueue"]

    def _write(self) -> None:
        """First all questions. Then what keeps memory, and last what uses it."""
        self._add(0, "def enqueue(batch, submission, pool):")
        self._add(1, "values = batch.recorder.values")
        self._take()
        self._add(1, "stream = submission.stream")
        self._add(1, "with submit_lock:")
        for n in self._lent_numbers:
            # Asked here: a graph that another thread captures stands at it under this lock.
            self._add(
                2, f"if s{n}.fast_path_device is not backend: return None",
                *access.questions(f"s{n}", False, "return None"),
            )  # fmt: skip
        self._lease()
        self._run()
        made = [
            f"{'b' if n in self._on_host else 's'}{n}, h{n}, "
            for n, _, _ in (*self._uploads, *self._parts.outputs)
        ]
        reads = [self._read(i, n) for i, n in enumerate(self._reads)]
        given = reads[0] if len(reads) == 1 else f"({', '.join(reads)})"
        self._add(1, f"return ({''.join(made)}), {given}")

    def _add(self, depth: int, *lines: str) -> None:
        self._lines += ["    " * depth + line for line in lines]

    def _name(self, value: object) -> str:
        """A name of the text for a value."""
        name = f"c{len(self._names)}"
        self._names[name] = value
        return name

    @property
    def _lent_numbers(self) -> list[int]:
        return [new.number for new in self._lent]

    # --- the text ---

    def _take(self) -> None:
        """Memory, and the elements of arrays in it."""
        if self._lent:
            self._add(1, "there = batch.there")
        for n, kind, _ in self._lent:
            flat = f"t{n}" if len(kind.shape) == 1 else f"t{n}.reshape(t{n}.size)"
            self._add(
                1, f"t{n} = there[{n}]", f"s{n} = t{n}.own_storage",
                f"if s{n} is None: return None",
                f"if t{n}.source is not None or not t{n}.is_contiguous: return None",
                f"h{n} = {flat}.handle",
            )  # fmt: skip
        for n, kind, line in self._uploads:
            self._add(1, f"v{n} = values[{n}]")
            self._lock(f"b{n}", kind.nbytes)
            if n in self._on_host:
                self._reach(n, kind)
                self._add(1, f"w{n}[...] = v{n}")
                continue
            self._allocate(f"s{n}", kind.nbytes)
            self._add(1, f"{self._array(kind, f'b{n}')}[...] = v{n}")
            self._handle(f"h{n}", f"s{n}", line)
        for n, kind, line in self._parts.outputs:
            if n in self._on_host:
                self._lock(f"b{n}", kind.nbytes)
                self._reach(n, kind)
            else:
                self._allocate(f"s{n}", kind.nbytes)
                self._handle(f"h{n}", f"s{n}", line)
        for i, (lines, nbytes) in enumerate(self._parts.scratch):
            self._allocate(f"r{i}", nbytes)
            for name, line in lines.items():
                self._handle(name, f"r{i}", line)
        for n, passed_as in self._parts.constants:
            element = self._name(passed_as)
            self._add(1, f"v{n} = values[{n}]")
            self._add(1, f"if type(v{n}) is not {element}: v{n} = {element}(v{n})")
        for i, n in self._downloads:
            self._lock(f"d{i}", self._kinds[n].nbytes)
        for i, n in enumerate(self._reads):
            if n in self._on_host:
                kind = self._kinds[n]
                self._add(1, f"o{i} = empty({self._name(kind.shape)}, {self._name(kind.dtype)})")

    def _lock(self, name: str, nbytes: int) -> None:
        self._add(1, f"{name} = locked({nbytes})", f"if {name} is None: return None")
        self._kept.append(name)
        self._nbytes += nbytes

    def _allocate(self, name: str, nbytes: int) -> None:
        self._add(1, f"{name} = pool.reuse({nbytes})", f"if {name} is None: return None")
        self._kept.append(name)
        self._nbytes += nbytes

    def _handle(self, name: str, storage: str, line: Line) -> None:
        at = ", ".join(map(self._name, line))
        self._add(1, f"{name} = handle({storage}.memory, {at})")

    def _reach(self, n: int, kind: ArraySpec) -> None:
        arrays = self._name(self._backend.host_arrays(kind.shape, kind.dtype))
        self._add(1, f"h{n}, w{n} = {arrays}(b{n})")

    @property
    def _downloads(self) -> list[tuple[int, int]]:
        """What is read by a copy: places among the reads, and nodes."""
        reads = enumerate(self._reads)
        return [(i, n) for i, n in reads if n in self._kinds and n not in self._on_host]

    def _array(self, kind: ArraySpec, block: str) -> str:
        return f"array_on({self._name(kind.shape)}, {self._name(kind.dtype)}, {block})"

    def _lease(self) -> None:
        kept = [*self._kept, *(f"s{n}" for n in self._lent_numbers)]
        self._add(
            2, f"submission.nbytes += {self._nbytes}",
            f"submission.kept += ({''.join(f'{name}, ' for name in kept)})",
            f"submission.launched += {self._name(self._parts.names)}",
        )  # fmt: skip
        for name in self._kept:
            if name[0] in "sr":  # new storages
                self._add(2, f"{name}.writer = submission")
        for n in self._lent_numbers:
            self._add(2, *access.records(f"s{n}", False))

    def _run(self) -> None:
        """Each queue is noted at once: what comes behind it may fail."""
        parts, queue = self._parts, "queue = submission.queue = stream"
        self._add(2, "stream, queue = submission.stream.backend, submission.queue")
        for n, _, _ in self._uploads:
            if n not in self._on_host:
                self._add(2, f"{queue}.upload(h{n}, b{n}, queue)")
        if parts.counters:
            self._add(2, f"{queue}.fill({parts.counters}, ZERO, queue)")
        for work, arguments in parts.launches:
            given = [a if isinstance(a, str) else self._name(a) for a in arguments]
            self._add(2, f"{queue}.launch({self._name(work)}, [{', '.join(given)}], queue)")
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
        """What is given for an id: of a number, an array of no axes."""
        if n not in self._kinds:
            return f"copied(values[{n}])"
        if n in self._on_host:
            return f"o{i}"
        return self._array(self._kinds[n], f"d{i}")
