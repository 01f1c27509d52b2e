"""`CommandBatch`: record operations, run them as one, read what is wanted."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Any

import numpy as np

from numbasync.batch.fusion.tuning import Tuning
from numbasync.batch.operations import Vocabulary
from numbasync.batch.record import element_ops
from numbasync.batch.record.buffer_id import BufferId, how_to_pass
from numbasync.batch.record.nodes import INPUT, Node, live
from numbasync.batch.record.recorder import Recorder
from numbasync.batch.run.compute import Compute
from numbasync.batch.run.plan import Prepared, prepare
from numbasync.batch.run.read import Late, Read
from numbasync.batch.run.replay import BatchGraph
from numbasync.batch.run.report import BatchPlan
from numbasync.batch.run.run import BatchOp, Results
from numbasync.batch.run.state import CAPTURED, BatchRun, Transfers
from numbasync.device.device import Device, chosen_device, default_device
from numbasync.device.stream import AnyStream, as_stream
from numbasync.device.submission import Submission
from numbasync.errors import (
    AlreadySubmittedError,
    BatchStateError,
    CallerError,
    DeviceMismatchError,
    OperationError,
)
from numbasync.ops.constructors import Value
from numbasync.ops.op import DeviceOp
from numbasync.public import Public
from numbasync.tensors.copies import HostArray
from numbasync.tensors.host_arrays import host_array
from numbasync.tensors.tensor import SharedTensor, Tensor


class CommandBatch(Vocabulary, BatchRun, Public):
    """Operations that are recorded first, and run together.

    ```py
    b = na.CommandBatch()
    x = b.upload(array)
    y = b.scale(b.relu(x), 2.0) + x
    result = await b.compute(y)  # one upload, one kernel, one download
    ```

    Shapes and types follow NumPy's rules, and are known when an operation is recorded; so is
    everything that can be wrong with it. What is computed in the end are the ids that somebody
    still holds and that nothing else in the batch is computed from. Others can be read, too:
    what was not written is computed when it is read, by one more kernel; `keep(id)` has it
    written at once.

    Attributes:
        device: where it runs.
        transfers: arrays that went to the device and back: `uploads` and `downloads`.
        kernels_launched: how many kernels have been launched.
        num_operations: how many operations were recorded.
    """

    # What most batches have, on the class.
    _kept: tuple[BufferId, ...] = ()
    _planned: Prepared | None = None

    def __init__(
        self, device: Device | None = None, *, fuse: bool = True, tuning: Tuning | None = None
    ) -> None:
        """An empty batch.

        Args:
            device: where it runs; None: the current one.
            fuse: False: a kernel for each operation. The results are the same.
            tuning: extents of its kernels; None: those that suit the device.
        """
        self.device = chosen_device(device, "CommandBatch")
        tuning = Tuning.suited_to(self.device.limits) if tuning is None else tuning
        if not isinstance(tuning, Tuning):
            raise CallerError(f"CommandBatch: tuning={tuning!r:.60}; write na.batch.Tuning(...).")
        self.recorder = Recorder()
        self.transfers = Transfers()
        self.kernels_launched = 0
        self._there: dict[int, Tensor] = {}
        self._made: dict[int, Submission] = {}
        self._fuse = fuse
        self._tuning = tuning

    # --- recording ---

    def upload(self, array: Any) -> BufferId:
        """An input with the elements of `array` when the batch is executed.

        Args:
            array: a NumPy array of any layout, or what `np.asarray` takes; float16, float32,
                float64, int32, int64 or bool.

        Raises:
            DTypeError: batches do not have its element type.
            OperationError: it is no array of the host.
        """
        self.recorder.check_open("upload")
        if type(array) is np.ndarray:
            return self._source(array)
        if isinstance(array, Tensor | SharedTensor):
            raise OperationError(f"{array!r} is on a device; write b.use(tensor), without a copy.")
        if isinstance(array, BufferId | DeviceOp):
            raise OperationError(
                f"upload takes an array of the host, not {array!r}, which has no elements yet."
            )
        try:
            source = host_array(array)
        except (TypeError, ValueError) as error:
            raise OperationError(
                f"upload takes an array of the host, not {type(array).__name__}: {error}\n"
                "For another library's array on the device, write b.use(na.as_tensor(array))."
            ) from error
        return self._source(source)

    def _source(self, array: HostArray) -> BufferId:
        return self.recorder.source(
            array.shape, element_ops.check_dtype(array.dtype, "upload"), array
        )

    def use(self, tensor: Tensor | SharedTensor) -> BufferId:
        """An input that is on the device; no copy. Its elements are those that it has when the
        batch runs, in order of submission.

        Raises:
            OperationError: it is no tensor.
            DeviceMismatchError: it is on another device.
            DTypeError: batches do not have its element type.
        """
        self.recorder.check_open("use")
        found = tensor.tensor if isinstance(tensor, SharedTensor) else tensor
        if not isinstance(found, Tensor):
            raise OperationError(
                f"use takes a tensor, not {type(tensor).__name__}; {how_to_pass(tensor)}."
            )
        if found.device is not self.device:
            raise DeviceMismatchError(f"{found!r} cannot be used on {self.device.label}.")
        made = self.recorder.source(found.shape, element_ops.check_dtype(found.dtype, "use"), found)
        self.there[made.number] = found
        return made

    def keep(self, *ids: BufferId) -> None:
        """Have these written when the batch runs, also if others are computed from them."""
        self.recorder.check_open("keep")
        self._kept += tuple([self.recorder.check(each, "keep") for each in ids])

    @property
    def num_operations(self) -> int:
        return self.recorder.operations

    @property
    def num_buffers(self) -> int:
        """Ids that were given: uploads and results."""
        return self.recorder.ids

    # --- running ---

    def plan(self) -> BatchPlan:
        """What is fused with what, and why not more; the kernels' sources. Runs nothing.

        Before the batch is executed, of what would be computed now.
        """
        return BatchPlan(self.planned())

    def op(self) -> DeviceOp[Results[Tensor]]:
        """The batch as one operation, which gives its results: `results[id]` is a tensor. To be
        chained, scheduled and awaited like any other; reading is possible once it was run.

        Raises:
            AlreadySubmittedError: there is one already.
        """
        return BatchOp(self, self.closed())

    def closed(self) -> Prepared:
        """What it is to run, once."""
        if self._planned is not None:
            raise AlreadySubmittedError(
                f"{self.recorder.label} was executed, or made an operation: a batch runs once.\n"
                "Record another one. b.graph() makes one that runs many times."
            )
        self._planned = found = self._prepared()
        self.recorder.is_closed = True
        self._state = "not executed yet"
        return found

    def compute_op(self, *ids: BufferId) -> DeviceOp[Any]:
        """The operation behind `compute`. Enqueued by `async_on`, its arrays are filled when the
        stream, or one behind it, has been synchronised.
        """
        if not ids:
            raise CallerError(f"compute of {self.recorder.label}: no id.\nWrite: b.compute(y)")
        reads = tuple([self.recorder.check(each, "compute").number for each in ids])
        self._kept += ids
        return Compute(self, self.closed(), reads)

    def graph(self, stream: AnyStream | None = None) -> BatchGraph:
        """The batch as a graph, which runs as often as wanted, with new uploads:
        `await b.graph().replay({x: array})`. Blocks until it is captured.

        Args:
            stream: where it is replayed; None: a new one.

        Raises:
            AlreadySubmittedError: it was executed before.
            DeviceMismatchError: the stream is another device's.
        """
        runs_on = self.device.new_stream() if stream is None else as_stream(stream, "graph")
        self.check_device(runs_on.device)
        return BatchGraph(self, self.closed(), runs_on)

    def planned(self) -> Prepared:
        """What `op` has planned, or what would be planned now."""
        return self._prepared() if self._planned is None else self._planned

    def execute(self) -> Awaitable[Results[Tensor]]:
        """Run it: `await b.execute()`.

        Raises:
            AlreadySubmittedError: now, if it was executed before.
        """
        found: Awaitable[Results[Tensor]] = self._awaitable(self.op())
        return found

    def execute_sync(self) -> Results[Tensor]:
        """Run it, and block until it is done."""
        return self.op().sync_on(self.device.policy.next_stream())

    def compute(self, *ids: BufferId) -> Awaitable[Any]:
        """Run it and read these, by one submission: `await b.compute(y)` is a new NumPy array of
        `y.shape` and `y.dtype`; of several ids, a tuple of them. Afterwards it is executed.

        Raises:
            AlreadySubmittedError: now, if it was executed before.
            ForeignBufferError, OperationError, CallerError: now, as `read`; without an id.
        """
        found: Awaitable[Any] = self._awaitable(self.compute_op(*ids))
        return found

    def compute_sync(self, *ids: BufferId) -> Any:
        """`compute`, and block until it is done."""
        return self.compute_op(*ids).sync_on(self.device.policy.next_stream())

    def read(self, id: BufferId) -> Awaitable[HostArray]:
        """A value of the batch as a new NumPy array: `await b.read(id)`.

        Raises:
            ForeignBufferError: now, if it is another batch's.
            BatchStateError: now, if the batch has not been executed, or has failed.
            What it fails with on the device, if that is not known yet.
        """
        found: Awaitable[HostArray] = self._awaitable(self.read_op(id))
        return found

    def read_sync(self, id: BufferId) -> HostArray:
        """`read`, and block until it is there."""
        return self.read_op(id).sync_on(self.device.policy.next_stream())

    def read_op(self, id: BufferId) -> DeviceOp[HostArray]:
        """The operation that reads a value."""
        number = self.recorder.check(id, "read").number
        if self._state != "executed":
            what = f"read of {id!r}, but {self.recorder.label}"
            if self._error is not None:
                raise BatchStateError(
                    f"{what} failed, and a batch runs once: record another one.\n{self._error}"
                ) from self._error
            how = "await b.execute()        # or b.execute_sync()"
            if self._state == CAPTURED:
                how = "await graph.replay()     # or graph.replay_sync()"
            raise BatchStateError(f"{what} is {self._state}.\nWrite: {how}")
        if number in self.there:
            made = self.made.get(number)
            if made is None or made.error is None:
                return Read(self, number)
        self._check_made(number, "read")
        if self.recorder.nodes[number].is_source:
            return Value(np.array(self.recorder.values[number]))  # never uploaded, or a number
        return Late(self, self._late(id), number)

    def tensor(self, id: BufferId) -> Tensor:
        """The tensor of a result or an input, on the device, of `id.shape` and `id.dtype`; its data
        is there in order of submission. Of what small batches and graphs upload, and of what a
        small batch has read at once, it is a copy, made now.

        Raises:
            BatchStateError: the batch has not been executed, or did not write it: see `keep`.
            OutOfDeviceMemoryError: there is no room for the copy.
        """
        number = self.recorder.check(id, "tensor").number
        if self._state != "executed":
            raise BatchStateError(f"{id!r} has no tensor: {self.recorder.label} is {self._state}.")
        if number in self.there:
            self._check_made(number, "tensor")
            return self.own(number)
        raise BatchStateError(f"{id!r} has no tensor in {self.absent(number)}")

    def _check_made(self, number: int, what: str) -> None:
        """Refuse what was computed by work that has failed."""
        needed = (number,) if number in self.there else live(self.recorder.nodes, [number])
        for made in self.makers(needed):
            if made.error is not None:
                raise BatchStateError(
                    f"{what} of buffer {number}, but {self.recorder.label} failed on the device:\n"
                    f"{made.error}"
                ) from made.error

    # --- how ---

    def _awaitable(self, op: DeviceOp[Any]) -> Any:
        if self.device is default_device():
            return op
        return op.schedule(self.device.policy)

    def _wanted(self, held: Iterable[int]) -> list[int]:
        """What is to be written: what is held and nothing held needs, and what is kept."""
        nodes = self.recorder.nodes
        covered: set[int] = set()
        wanted = {each.number for each in self._kept}
        for n in sorted(set(held), reverse=True):
            if n not in covered and not nodes[n].is_source:
                wanted.add(n)
                covered |= live(nodes, [n])
        return sorted(wanted)

    def _prepared(self) -> Prepared:
        recorder, held = self.recorder, self.recorder.held()
        kept = tuple([each.number for each in self._kept])
        key = held, kept, self._fuse, self._tuning
        found: Prepared | None = recorder.structure.plans.get(key)
        if found is None:
            found = prepare(recorder.nodes, self._wanted(held), self._fuse, self._tuning)
            recorder.structure.remember_plan(key, found)
        return found

    def _late(self, id: BufferId) -> Prepared:
        """A plan for one value, in which what is on the device is an input."""
        nodes = [
            Node(INPUT, (), node.shape, node.dtype) if n in self.there else node
            for n, node in enumerate(self.recorder.nodes)
        ]
        lent = [n for n in live(nodes, [id.number]) if n in self._lent]
        if lent:
            raise BatchStateError(
                f"{id!r} was not written, and is computed from a tensor of the program, which may "
                "have changed since.\nWrite b.keep(id) before the batch is executed."
            )
        return prepare(nodes, [id.number], self._fuse, self._tuning)

    @property
    def _lent(self) -> set[int]:
        """Inputs that are tensors of the program."""
        return {n for n, value in self.recorder.values.items() if isinstance(value, Tensor)}

    def __repr__(self) -> str:
        counts = f"{self.num_operations} operations, {self.num_buffers} buffers"
        return f"<CommandBatch {counts}, {self._state}, on {self.device.label}>"
