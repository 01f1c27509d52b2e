"""A capture of a graphed function: the graph with its buffers, and the quick way to replay it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numbasync.device import access
from numbasync.device.storage import MemoryPool, Storage
from numbasync.device.submission import Submission
from numbasync.graphs.graph import CudaGraph
from numbasync.tensors.array_spec import ArraySpec
from numbasync.tensors.tensor import Tensor

NOTHING = object()  # the value of a replay that was not enqueued


class Captured:
    """One capture.

    Attributes:
        graph: the captured graph.
        inputs: the tensors that the arguments are copied into.
        output: the value of the captured operation.
    """

    __slots__ = ("_spec", "graph", "inputs", "output")

    def __init__(self, graph: CudaGraph[Any], inputs: tuple[Tensor, ...], output: Any) -> None:
        self.graph = graph
        self.inputs = inputs
        self.output = output
        self._spec: ArraySpec | None = None  # of copies of the output; None: it is no plain tensor
        is_tensor = type(output) is Tensor and output.nbytes and output.is_contiguous
        if is_tensor and graph.uses(output.own_storage):
            self._spec = ArraySpec(output.shape, output.dtype)

    def try_replay(
        self, submission: Submission, pool: MemoryPool, tensors: Sequence[Tensor], copies: bool
    ) -> Any:
        """The fast path of a call: copy the arguments in, replay, and copy the result out.

        Returns:
            The call's value; `NOTHING`, with nothing enqueued, if the steps are needed: another
            stream must be waited for, an argument or the result is no plain tensor, or the pool
            has no free block for the result.
        """
        stream, output, spec = submission.stream, self.output, self._spec
        device = stream.device
        if copies and spec is None:
            return NOTHING
        with device.submit_lock:
            storages = list[Storage]()
            for tensor in tensors:
                storage = tensor.own_storage
                if (
                    storage is None
                    or storage.pool.fast_path_device is not device.backend
                    or storage.links is not None
                    or self.graph.uses(storage)
                    or tensor.source is not None
                    or not tensor.nbytes
                    or not tensor.is_contiguous
                    or access.is_written_elsewhere(storage, stream)
                ):
                    return NOTHING
                storages.append(storage)
            for target in self.inputs:
                if not access.is_used_elsewhere(target.storage, stream):
                    continue
                return NOTHING
            new = pool.reuse(spec.nbytes) if copies and spec is not None else None
            if (copies and new is None) or not self.graph.begin(submission, self.inputs):
                return NOTHING
            submission.keep_alive += storages
            queue = submission.queue = submission.queue or stream.backend.open()
            for target, tensor in zip(self.inputs, tensors, strict=True):
                queue.copy(target.handle, tensor.handle)
            self.graph.replay(submission)
            if new is not None and spec is not None:
                submission.nbytes += spec.nbytes
                submission.keep_alive.append(new)
                source, output = output, Tensor.of(device, new, spec)
                queue.copy(output.handle, source.handle)
                access.record_write(new, submission)
            for storage in storages:
                if storage.attached_graphs is not None:
                    storage.invalidate_graphs()
                access.record_read(storage, submission)
        return output
