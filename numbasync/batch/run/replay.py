"""Batches as graphs: recorded and allocated once, replayed with new uploads.

A replay is one graph: copies from page-locked memory, the kernels, and copies of the results back
to page-locked memory. If all arrays are small, the graph contains kernels alone, which read that
memory, and write results there as well as to the device. The host copies elements in before the
replay, and out afterwards; a replay therefore waits until the previous one is complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from numbasync.arguments import with_type
from numbasync.batch.record.buffer_id import BufferId
from numbasync.batch.run.plan import Prepared, with_copies
from numbasync.batch.run.run import BatchOp, Results
from numbasync.device.device import Device
from numbasync.device.storage import MemoryPool
from numbasync.device.stream import Stream
from numbasync.errors import BatchStateError, CallerError, DTypeError, OperationError, ShapeError
from numbasync.extending import (
    HostArray,
    Submission,
    check_filled,
    contiguous,
    host_array,
    host_mapped,
    is_in_use,
    note_site,
    upload,
)
from numbasync.graphs.graph import CudaGraph
from numbasync.ops.constructors import zip as zip_ops
from numbasync.ops.context import Context
from numbasync.ops.op import DeviceOp, Steps
from numbasync.public import Public
from numbasync.tensors.create import memcpy
from numbasync.tensors.pinned import pinned
from numbasync.tensors.tensor import Tensor

if TYPE_CHECKING:
    from numbasync.batch.run.state import BatchRun


class BatchGraph(Public):
    """A batch that runs many times; created by `CommandBatch.graph`.

    Attributes:
        graph: the CUDA graph that is replayed.

    Examples:
        >>> b = na.CommandBatch()
        >>> x = b.upload(np.zeros(4, np.float32))
        >>> y = b.relu(x) * 2
        >>> graph = b.graph()
        >>> results = await graph.replay({x: np.arange(4, dtype=np.float32)})
        >>> results[y]
        array([0., 2., 4., 6.], dtype=float32)
    """

    def __init__(self, batch: BatchRun, plan: Prepared, stream: Stream) -> None:
        if not isinstance(plan, Prepared):
            raise CallerError(
                f"a BatchGraph is of a batch, not of {with_type(batch)} and {with_type(plan)}: "
                "write b.graph()."
            )
        self._batch = batch
        values = batch.recorder.values
        plan, copies = with_copies(plan) if plan.is_small else (plan, {})
        # Inputs and outputs are kept as plain arrays, which NumPy copies without a look at their
        # class.
        self._inputs: dict[int, HostArray] = {}
        self._reached: dict[int, Tensor] = {}  # inputs that kernels read in host memory
        for n in plan.inputs:
            if n not in batch.tensors and values[n].size:
                buffer = pinned(values[n].shape, values[n].dtype, batch.device)
                buffer[...] = values[n]
                values[n] = buffer
                self._inputs[n] = np.asarray(buffer)
                if copies:
                    self._reached[n] = batch.tensors[n] = _tensor_on(batch.device, buffer)
        outputs = {n: plan.nodes[n] for n in plan.outputs if n not in copies}
        buffers = {n: pinned(v.shape, v.dtype, batch.device) for n, v in outputs.items()}
        self._outputs = {n: np.asarray(buffer) for n, buffer in buffers.items()}

        def read(results: Results[Tensor]) -> DeviceOp[Any]:
            tensors = results.by_number
            return zip_ops(*(memcpy(buffers[n], tensors[n]) for n in outputs if tensors[n].size))

        for copy_number, n in copies.items():
            batch.tensors[copy_number] = _tensor_on(batch.device, buffers[n])
        op = BatchOp(batch, plan)
        self.graph: CudaGraph[Any] = CudaGraph.capture(stream, op if copies else op.then(read))
        for copy_number in copies:  # copies are not buffers of the batch
            del batch.tensors[copy_number]
        self._kernels = batch.kernels_launched
        self._downloads = sum(a.size > 0 for a in self._outputs.values())
        batch.captured()
        self._last: Submission | None = None

    @property
    def stream(self) -> Stream:
        """The stream that replays the graph."""
        return self.graph.stream

    def replay(self, uploads: Mapping[BufferId, Any] | None = None) -> DeviceOp[Results[HostArray]]:
        """An operation that runs the batch again and returns its results as new NumPy arrays:
        `results[id]`. Replays of one graph run one after the other, also those of several threads.

        Args:
            uploads: new elements of inputs, by their ids; other inputs keep their elements. The
                arrays are read when the operation is enqueued.

        Raises:
            ShapeError, DTypeError: raised by the call itself, if an array differs from the recorded
                one.
            BatchStateError: raised by the call itself, if an id is not an upload of this batch that
                a result needs.
            OperationError: raised by the call itself, if `uploads` is not a mapping of ids.
            OperationError: when the operation is enqueued, if the same operation has replayed the
                graph before.
        """
        if type(uploads) is not dict and not isinstance(uploads, Mapping | None):
            raise OperationError(
                f"replay takes arrays by ids, not {type(uploads).__name__}; write {{x: array}}."
            )
        new_elements: list[tuple[int, HostArray]] = []
        for id, array in (uploads or {}).items():
            number = self._batch.recorder.check(id, "replay").number
            source = host_array(array)
            target = self._inputs.get(number)
            if target is None:
                raise BatchStateError(
                    f"replay: {id!r} is no upload that a result needs, so the graph copies nothing "
                    "there. Tensors that are used in place are written to by "
                    "na.memcpy(tensor, array)."
                )
            if source.shape != target.shape:
                raise ShapeError(f"replay: {id!r} came as an array of shape {source.shape}.")
            if source.dtype != target.dtype:
                raise DTypeError(f"replay: {id!r} came as an array of {source.dtype}.")
            new_elements.append((number, source))
        return _Replay(self, new_elements)

    def replay_sync(self, uploads: Mapping[BufferId, Any] | None = None) -> Results[HostArray]:
        """`replay`, blocking until it is done.

        Examples:
            >>> b = na.CommandBatch()
            >>> x = b.upload(np.zeros(4, np.float32))
            >>> y = b.relu(x) * 2
            >>> graph = b.graph()
            >>> graph.replay_sync({x: np.arange(4, dtype=np.float32)})[y]
            array([0., 2., 4., 6.], dtype=float32)
        """
        return self.replay(uploads).sync_on(self.stream)

    def enqueue(self, ctx: Context, given: list[tuple[int, HostArray]]) -> Steps[Any]:
        """Write new elements to the memory from which the graph copies them, and launch the
        graph.
        """
        if self._last is ctx.submission:
            raise OperationError(
                f"{self!r} is replayed twice by one operation: the second replay would wait for "
                "the first, whose elements lie in the same memory of the host.\n"
                "Await one after the other."
            )
        arrays = self._copied_out(ctx.submission)  # comes first, since a recording refuses this
        while not self._claim(ctx.submission):
            yield _Through(self.stream)
        # In order, after the submissions that use the tensors.
        for n, source in self._put(given, ctx.submission):
            yield from upload(ctx, self._reached[n], source)
        launch = self.graph.launch()
        launch.consume()
        if not ctx.try_enqueue(launch):
            yield from launch.steps(ctx)
        return self._launched(ctx.submission, arrays)

    def enqueue_at_once(
        self, submission: Submission, given: list[tuple[int, HostArray]]
    ) -> Results[HostArray] | None:
        """`enqueue` on the fast path; None if the replay would have to wait."""
        with self.graph.device.submit_lock:  # no other thread's replay comes in between
            if self._last is not None and not self._last.done:
                return None
            if self._put(given, submission):
                return None
            if not self.graph.try_launch(submission):
                return None
            return self._launched(submission, self._copied_out(submission))

    def _claim(self, submission: Submission) -> bool:
        """Note `submission` as the latest replay, if the previous one is complete; whether it is.
        From then on no other replay writes to the memory of inputs and results.
        """
        with self.graph.device.submit_lock:
            if self._last is not None and not self._last.done:
                return False
            self._last = submission
            return True

    def _put(
        self, given: list[tuple[int, HostArray]], submission: Submission
    ) -> list[tuple[int, HostArray]]:
        """Write new elements to the memory from which the graph reads them. Returns the uploads
        that were not written, since the device may still read the previous elements.
        """
        deferred: list[tuple[int, HostArray]] = []
        for _, source in given:
            check_filled(source, submission, "what is replayed")
        with self.graph.device.submit_lock:
            for n, source in given:
                if n in self._reached and is_in_use(self._reached[n]):
                    deferred.append((n, source))
                else:
                    self._inputs[n][...] = source
        return deferred

    def _copied_out(self, submission: Submission) -> dict[int, HostArray]:
        """New arrays that receive the results' elements when the submission completes."""
        arrays = {n: np.empty(a.shape, a.dtype) for n, a in self._outputs.items()}

        for n, array in arrays.items():
            submission.on_complete(partial(np.copyto, array, self._outputs[n]))
        return arrays

    def _launched(self, submission: Submission, made: dict[int, HostArray]) -> Results[HostArray]:
        batch = self._batch
        self._last = submission
        batch.replayed(submission)
        batch.transfers.uploads += len(self._inputs)
        batch.transfers.downloads += self._downloads
        batch.kernels_launched += self._kernels
        return Results(made, batch)

    def __repr__(self) -> str:
        return f"<BatchGraph of {self._batch!r}>"


def _tensor_on(device: Device, place: HostArray) -> Tensor:
    """A tensor in the page-locked memory of an array."""
    block = np.asarray(place).reshape(-1).view(np.uint8)
    return host_mapped(device, block, contiguous(place.shape, place.dtype.type))


class _Through:
    """A prerequisite: the previous replay is complete."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def run(self) -> None:
        self._stream.synchronize()


class _Replay(DeviceOp[Results[HostArray]]):
    has_fast_path = True
    _results: Results[HostArray] | None = None

    def __init__(self, graph: BatchGraph, given: list[tuple[int, HostArray]]) -> None:
        note_site(self, 2)
        self._graph = graph
        self._given = given
        self.stream = graph.stream

    def try_enqueue(self, submission: Submission, pool: MemoryPool | None) -> bool:
        self._results = self._graph.enqueue_at_once(submission, self._given)
        return self._results is not None

    def result(self) -> Results[HostArray]:
        assert self._results is not None  # set by `try_enqueue`
        return self._results

    def steps(self, ctx: Context) -> Steps[Results[HostArray]]:
        results: Results[HostArray] = yield from self._graph.enqueue(ctx, self._given)
        return results

    def _describe(self) -> str:
        return "replay of a batch"
