"""`CommandBatch`: records operations, runs them as one operation, and reads results."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Any

import numpy as np

from numbasync.arguments import shown
from numbasync.batch.fusion.tuning import Tuning
from numbasync.batch.operations import Vocabulary
from numbasync.batch.record import element_ops
from numbasync.batch.record.buffer_id import BufferId, how_to_pass
from numbasync.batch.record.nodes import INPUT, Node, live
from numbasync.batch.record.recorder import Recorder
from numbasync.batch.run.plan import Prepared, prepare
from numbasync.batch.run.read import Late, Read
from numbasync.batch.run.replay import BatchGraph
from numbasync.batch.run.report import BatchPlan
from numbasync.batch.run.run import BatchOp, Compute, Results
from numbasync.batch.run.state import CAPTURED, BatchRun, Transfers
from numbasync.device.device import Device
from numbasync.errors import (
    AlreadySubmittedError,
    BatchStateError,
    CallerError,
    DeviceMismatchError,
    OperationError,
)
from numbasync.extending import (
    AnyStream,
    HostArray,
    Submission,
    as_stream,
    chosen_device,
    host_array,
)
from numbasync.ops.constructors import value as value_op
from numbasync.ops.op import DeviceOp
from numbasync.public import Public
from numbasync.tensors.tensor import SharedTensor, Tensor


class CommandBatch(Vocabulary, BatchRun, Public):
    """Operations that are recorded first, and run together.

    ```py
    b = na.CommandBatch()
    x = b.upload(array)
    y = b.scale(b.relu(x), 2.0) + x
    result = await b.compute(y)  # one upload, one kernel, one download
    ```

    Shapes and types follow NumPy's rules, and are known when an operation is recorded; every error
    of an operation is raised then, too. A run writes the values of the ids that the program still
    holds and from which no other held id is computed. Other ids can be read, too: a value that was
    not written is computed when it is read, by one more kernel; `keep(id)` makes the run write it.

    Attributes:
        device: the device that the batch runs on.
        transfers: arrays copied to the device and back: `uploads` and `downloads`.
        kernels_launched: the number of its own kernels launched so far: those of `cumsum`, `sort`
            and `matmul` do not count.
        num_operations: the number of operations recorded.

    Examples:
        >>> b = na.CommandBatch()
        >>> x = b.upload(np.array([-1, 0, 1, 2], np.float32))
        >>> y = b.scale(b.relu(x), 2.0) + x
        >>> await b.compute(y)
        array([-1.,  0.,  3.,  6.], dtype=float32)
        >>> b.kernels_launched
        1

        Run and read apart, where values stay on the device or are read later:

        >>> b = na.CommandBatch()
        >>> x = b.use(await na.arange(4))  # a tensor, without a copy
        >>> odds = b.softmax(x)
        >>> most, where = b.max(odds), b.argmax(odds, axis=0)
        >>> b.keep(odds)  # written, although `most` is computed from it
        >>> len(b.plan().rows())
        1
        >>> _ = await b.execute()
        >>> (await b.read(where)).tolist(), b.tensor(odds).shape
        (3, (4,))
        >>> b.read_sync(most).round(3)
        np.float32(0.644)

        All operations; those with an operator may be written by it (`x + 1`, `-x`, `x < 1`):

        >>> b = na.CommandBatch()
        >>> x = b.upload(np.array([[0.25, 0.5], [1, 2]], np.float32))
        >>> row = b.upload(np.array([1, 2], np.float32))
        >>> ids = [
        ...     b.add(x, 1), b.sub(x, 1), b.mul(x, 2), b.div(x, 2), b.pow(x, 2), b.neg(x), b.abs(x),
        ...     b.scale(x, 2.0), b.exp(x), b.log(x), b.sqrt(x), b.tanh(x), b.relu(x), b.sigmoid(x),
        ...     b.expm1(x), b.log1p(x), b.sin(x), b.cos(x), b.leaky_relu(x), b.elu(x, alpha=1.5),
        ...     b.swish(x), b.gelu(x), b.maximum(x, 1), b.minimum(x, 1), b.clamp(x, 0.5, 1),
        ...     b.less(x, 1), b.less_equal(x, 1), b.greater(x, 1), b.greater_equal(x, 1),
        ...     b.equal(x, 1), b.not_equal(x, 1), b.where(x < 1, x, 1.0), b.cast(x, np.int32),
        ...     b.argmin(x), b.log_softmax(x), b.cumsum(x), b.sort(x), b.matmul(x, x),
        ...     b.sum(x), b.mean(x, axis=0), b.min(x), b.dot(row, row), b.layer_norm(x),
        ... ]
        >>> [id.shape for id in ids[-5:]]
        [(), (2,), (), (), (2, 2)]
        >>> _ = b.execute_sync()
        >>> b.read_sync(ids[8]).round(2)
        array([[1.28, 1.65],
               [2.72, 7.39]], dtype=float32)

        As operations, which are chained, captured and awaited as all others are:

        >>> b = na.CommandBatch()
        >>> y = b.upload(np.ones(3, np.float32)) * 2
        >>> await b.compute_op(y)
        array([2., 2., 2.], dtype=float32)
        >>> b = na.CommandBatch()
        >>> y = b.upload(np.ones(3, np.float32)) * 2
        >>> b.compute_sync(y)
        array([2., 2., 2.], dtype=float32)
        >>> b = na.CommandBatch()
        >>> y = b.upload(np.ones(3, np.float32)) * 2
        >>> op = b.op()  # `await b.execute()` is `await b.op()`
        >>> _ = await op
        >>> await b.read_op(y)
        array([2., 2., 2.], dtype=float32)
    """

    # The values of most batches are class attributes.
    _kept: tuple[BufferId, ...] = ()
    _planned: Prepared | None = None

    def __init__(
        self, device: Device | None = None, *, fuse: bool = True, tuning: Tuning | None = None
    ) -> None:
        """An empty batch.

        Args:
            device: the device that the batch runs on; None: the current one.
            fuse: False: a kernel for each operation. The results are the same.
            tuning: extents of the batch's kernels; None: those that suit the device.
        """
        self.device = chosen_device(device, "CommandBatch")
        tuning = Tuning.suited_to(self.device.limits) if tuning is None else tuning
        if not isinstance(tuning, Tuning):
            raise CallerError(f"CommandBatch: tuning={shown(tuning)}; write na.batch.Tuning(...).")
        self.recorder = Recorder()
        self.transfers = Transfers()
        self.kernels_launched = 0
        self._tensors: dict[int, Tensor] = {}
        self._producers: dict[int, Submission] = {}
        self._fuse = fuse
        self._tuning = tuning

    # --- recording ---

    def upload(self, array: Any) -> BufferId:
        """An input with the elements that `array` has when the batch is executed.

        Args:
            array: a NumPy array of any layout, or a value that `np.asarray` takes; float16,
                float32, float64, int32, int64 or bool.

        Raises:
            DTypeError: batches do not support the element type.
            OperationError: the value is not a host array.
        """
        self.recorder.check_open("upload")
        if type(array) is np.ndarray:
            return self._source(array)
        if isinstance(array, Tensor | SharedTensor):
            raise OperationError(
                f"{shown(array)} is on a device; write b.use(tensor), without a copy."
            )
        if isinstance(array, BufferId | DeviceOp):
            raise OperationError(
                f"upload takes an array of the host, not {shown(array)}, which has no elements yet."
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
        """An input that is already on the device; no copy. The batch reads the elements that the
        tensor has when the batch runs, in order of submission.

        Raises:
            OperationError: the value is not a tensor.
            DeviceMismatchError: the tensor is on another device.
            DTypeError: batches do not support the element type.
        """
        self.recorder.check_open("use")
        source = tensor.tensor if isinstance(tensor, SharedTensor) else tensor
        if not isinstance(source, Tensor):
            raise OperationError(
                f"use takes a tensor, not {type(tensor).__name__}; {how_to_pass(tensor)}."
            )
        if source.device is not self.device:
            raise DeviceMismatchError(f"{shown(source)} cannot be used on {self.device.label}.")
        buffer = self.recorder.source(
            source.shape, element_ops.check_dtype(source.dtype, "use"), source
        )
        self.tensors[buffer.number] = source
        return buffer

    def keep(self, *ids: BufferId) -> None:
        """Make the run write the values of these ids, also if other values are computed
        from them.
        """
        self.recorder.check_open("keep")
        self._kept += tuple([self.recorder.check(buffer, "keep") for buffer in ids])

    @property
    def num_operations(self) -> int:
        return self.recorder.operations

    @property
    def num_buffers(self) -> int:
        """The number of ids created: uploads and results."""
        return self.recorder.ids

    # --- running ---

    def plan(self) -> BatchPlan:
        """The kernels of the batch, the reasons why there are not fewer, and their sources. Runs
        nothing.

        Before the batch is executed, the plan covers the values that a run would compute now.
        """
        return BatchPlan(self.planned())

    def op(self) -> DeviceOp[Results[Tensor]]:
        """The batch as one operation that returns its results: `results[id]` is a tensor. The
        operation can be chained, scheduled and awaited like any other; values can be read once it
        has run.

        Raises:
            AlreadySubmittedError: the batch was executed, or made an operation, before.
        """
        return BatchOp(self, self.closed())

    def closed(self) -> Prepared:
        """Close the recording and return the plan of the run. May be called once."""
        if self._planned is not None:
            raise AlreadySubmittedError(
                f"{self.recorder.label} was executed, or made an operation: a batch runs once.\n"
                "Record another one. b.graph() makes one that runs many times."
            )
        self._planned = plan = self._prepared()
        self.recorder.is_closed = True
        self._state = "not executed yet"
        return plan

    def compute_op(self, *ids: BufferId) -> DeviceOp[Any]:
        """The operation behind `compute`. If `async_on` enqueues it, its arrays are filled when the
        stream, or a later one ordered behind it, has been synchronised.
        """
        if not ids:
            raise CallerError(f"compute of {self.recorder.label}: no id.\nWrite: b.compute(y)")
        reads = tuple([self.recorder.check(buffer, "compute").number for buffer in ids])
        self._kept += ids
        return Compute(self, self.closed(), reads)

    def graph(self, stream: AnyStream | None = None) -> BatchGraph:
        """The batch as a graph that runs any number of times, with new uploads:
        `await b.graph().replay({x: array})`. Blocks until the graph is captured.

        Args:
            stream: the stream that replays the graph; None: a new one.

        Raises:
            AlreadySubmittedError: the batch was executed before.
            DeviceMismatchError: the stream belongs to another device.

        Examples:
            >>> b = na.CommandBatch()
            >>> x = b.upload(np.zeros(3, np.float32))
            >>> y = x + 1
            >>> results = await b.graph().replay({x: np.ones(3, np.float32)})
            >>> results[y]
            array([2., 2., 2.], dtype=float32)
        """
        runs_on = self.device.new_stream() if stream is None else as_stream(stream, "graph")
        self.check_device(runs_on.device)
        return BatchGraph(self, self.closed(), runs_on)

    def planned(self) -> Prepared:
        """The plan of `op`, or the plan that a run would have now."""
        return self._prepared() if self._planned is None else self._planned

    def execute(self) -> Awaitable[Results[Tensor]]:
        """Run the batch: `await b.execute()`.

        Raises:
            AlreadySubmittedError: raised by the call itself, if the batch was executed before.
        """
        return self.op()

    def execute_sync(self) -> Results[Tensor]:
        """Run the batch, and block until it is done."""
        return self.op().sync()

    def compute(self, *ids: BufferId) -> Awaitable[Any]:
        """Run the batch and read the values of these ids, by one submission: `await b.compute(y)`
        is a new NumPy array of `y.shape` and `y.dtype`; of several ids, a tuple of arrays. The
        batch then counts as executed.

        Raises:
            AlreadySubmittedError: raised by the call itself, if the batch was executed before.
            ForeignBufferError, OperationError, CallerError: raised by the call itself, as by
                `read`; or without an id.
        """
        return self.compute_op(*ids)

    def compute_sync(self, *ids: BufferId) -> Any:
        """`compute`, blocking until the arrays are filled."""
        return self.compute_op(*ids).sync()

    def read(self, id: BufferId) -> Awaitable[HostArray]:
        """A value of the batch as a new NumPy array: `await b.read(id)`.

        Raises:
            ForeignBufferError: raised by the call itself, if the id belongs to another batch.
            BatchStateError: raised by the call itself, if the batch has not been executed, or has
                failed.
            Any error of the batch on the device that is not known at the call.
        """
        return self.read_op(id)

    def read_sync(self, id: BufferId) -> HostArray:
        """`read`, blocking until the array is filled."""
        return self.read_op(id).sync()

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
        if number in self.tensors:
            producer = self.producers.get(number)
            if producer is None or producer.error is None:
                return Read(self, number)
        self._check_computed(number, "read")
        if self.recorder.nodes[number].is_source:
            return value_op(np.array(self.recorder.values[number]))  # never uploaded, or a number
        return Late(self, self._late(id), number)

    def tensor(self, id: BufferId) -> Tensor:
        """The tensor of a result or an input, on the device, of `id.shape` and `id.dtype`; its data
        is available in order of submission. For uploads of small batches and graphs, and for
        results that a small batch has copied to the host itself, the tensor is a copy, made by this
        call.

        Raises:
            BatchStateError: the batch has not been executed, or did not write the value: see
                `keep`.
            OutOfDeviceMemoryError: the device has no memory for the copy.
        """
        number = self.recorder.check(id, "tensor").number
        if self._state != "executed":
            raise BatchStateError(f"{id!r} has no tensor: {self.recorder.label} is {self._state}.")
        if number in self.tensors:
            self._check_computed(number, "tensor")
            return self.own(number)
        raise BatchStateError(f"{id!r} has no tensor in {self.absent(number)}")

    def _check_computed(self, number: int, what: str) -> None:
        """Refuse a value computed by a submission that has failed."""
        needed = (number,) if number in self.tensors else live(self.recorder.nodes, [number])
        for producer in self.producers_of(needed):
            if producer.error is not None:
                raise BatchStateError(
                    f"{what} of buffer {number}, but {self.recorder.label} failed on the device:\n"
                    f"{producer.error}"
                ) from producer.error

    # --- how ---

    def _wanted(self, held: Iterable[int]) -> list[int]:
        """The nodes to write: the held ones from which no other held node is computed, and the kept
        ones.
        """
        nodes = self.recorder.nodes
        covered: set[int] = set()
        outputs = {buffer.number for buffer in self._kept}
        for n in sorted(set(held), reverse=True):
            if n not in covered and not nodes[n].is_source:
                outputs.add(n)
                covered |= live(nodes, [n])
        return sorted(outputs)

    def _prepared(self) -> Prepared:
        recorder, held = self.recorder, self.recorder.held()
        kept = tuple([buffer.number for buffer in self._kept])
        key = held, kept, self._fuse, self._tuning
        plan: Prepared | None = recorder.structure.plans.get(key)
        if plan is None:
            plan = prepare(recorder.nodes, self._wanted(held), self._fuse, self._tuning)
            recorder.structure.remember_plan(key, plan)
        return plan

    def _late(self, id: BufferId) -> Prepared:
        """A plan for one value, in which the nodes that are on the device are inputs."""
        nodes = [
            Node(INPUT, (), node.shape, node.dtype) if n in self.tensors else node
            for n, node in enumerate(self.recorder.nodes)
        ]
        borrowed = [n for n in live(nodes, [id.number]) if n in self._lent]
        if borrowed:
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
