"""Scopes: a graph recorded operation by operation, with branches that may run concurrently."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from numbasync.arguments import shown, with_type
from numbasync.device.callsite import call_site
from numbasync.device.stream import AnyStream, Stream, as_stream
from numbasync.errors import CallerError, StateError
from numbasync.graphs.recorder import Branch, Recorder
from numbasync.graphs.recording import Recorded
from numbasync.ops import submission_queue
from numbasync.ops.enqueue import run_steps
from numbasync.ops.op import DeviceOp
from numbasync.ops.operands import check_op, is_op, suppress_unused_warnings
from numbasync.ops.reentrancy import exclusive
from numbasync.ops.run import resolve_stream
from numbasync.public import Public

if TYPE_CHECKING:
    from numbasync.graphs.graph import CudaGraph

T = TypeVar("T")


class ScopeBranch(Public):
    """A sequence of operations of a graph. Made by `fork()`; a scope is the first branch.

    Examples:
        >>> a, b = await na.gather(na.zeros(3), na.zeros(3))
        >>> with na.CudaGraph.scope(na.default_device().new_stream()) as s:
        ...     beside = s.fork()
        ...     _ = beside.record(na.fill(a, 1))  # may run beside the next one
        ...     _ = s.record(na.fill(b, 2))
        ...     s.join(beside)
        >>> [node.after for node in s.graph.nodes]
        [(), ()]
    """

    _name = "branch"

    def __init__(self, scope: Scope, branch: Branch) -> None:
        if not isinstance(branch, Branch):
            raise CallerError(
                f"a ScopeBranch is of a scope, not of {with_type(branch)}: write s.fork()."
            )
        self._scope = scope
        self._branch = branch
        self._joined = False

    def record(self, op: DeviceOp[T]) -> T:
        """Record `op`, to start after this branch's earlier operations; returns its value.

        Nothing is computed yet: the buffers in the value are not written before the first launch.

        Raises:
            NotAGraphNodeError: `op` allocates, waits for the host, or does other work that no
                graph can repeat; nothing of it is recorded.
            AlreadySubmittedError: `op` was used before.
            StateError: the block has ended, or another thread opened it.
        """
        try:
            recorder = self._scope.check(self)
        except StateError:
            if is_op(op):
                op.suppress_warning()  # the error is warning enough
            raise
        check_op(op, "what record takes")
        with suppress_unused_warnings((op,)):
            resolve_stream(op, op.stream, recorder.stream)
        op.consume()
        return run_steps(recorder.record(op, self._branch, call_site(1)))

    def fork(self) -> ScopeBranch:
        """A branch that starts after this branch's operations so far, concurrent with later ones.

        Where both branches use a buffer and one writes it, the operation recorded later still
        starts after the earlier one; with strict ordering that is an AccessConflictError.

        Examples:
            >>> a, b = await na.gather(na.zeros(3), na.zeros(3))
            >>> with na.CudaGraph.scope(na.default_device().new_stream()) as s:
            ...     _ = s.record(na.fill(a, 1))
            ...     beside = s.fork()  # starts after what was recorded so far
            ...     _ = beside.record(na.fill(b, 2))
            ...     s.join(beside)
            >>> [node.after for node in s.graph.nodes]
            [(), (0,)]
        """
        self._scope.check(self)
        return ScopeBranch(self._scope, Branch(self._branch.last))

    def join(self, *branches: ScopeBranch) -> None:
        """Make later operations of this branch start after all of `branches`, which end here.

        Branches that are not joined end with the graph.

        Examples:
            >>> a, b = await na.gather(na.zeros(3), na.ones(3))
            >>> with na.CudaGraph.scope(na.default_device().new_stream()) as s:
            ...     beside = s.fork()
            ...     _ = beside.record(na.fill(b, 2))
            ...     s.join(beside)
            ...     _ = s.record(saxpy(a, 1.0, b))  # after it
            >>> [node.after for node in s.graph.nodes]
            [(), (0,)]
        """
        self._scope.check(self)
        for branch in branches:
            if not isinstance(branch, ScopeBranch) or branch._scope is not self._scope:
                raise CallerError(
                    f"join takes branches of this scope, made by fork(), not {shown(branch)}."
                )
            if branch is self or branch is self._scope:
                raise CallerError(f"{self!r} joins branches that fork() made, not {shown(branch)}.")
        last = dict.fromkeys(self._branch.last)
        for branch in branches:
            last |= dict.fromkeys(branch._branch.last)
            branch._joined = True
        self._branch.last = tuple(last)

    def __repr__(self) -> str:
        state = "joined" if self._joined else f"after {list(self._branch.last)}"
        return f"<{type(self).__name__} {state}>"


class _Exit:
    """`__exit__` of a scope, as a `with` statement holds it while its block runs."""

    is_of_a_block = False

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def __call__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._scope._leave(kind)

    def __del__(self) -> None:
        if self.is_of_a_block:  # ^C may have come before the call
            self._scope._leave(KeyboardInterrupt)


class _Exits:
    """`__exit__` of the class: CPython looks it up before a block, and drops what it got behind
    it. So a block ends, whatever holds its scope, and wherever ^C comes.
    """

    def __get__(self, scope: Scope | None, cls: type) -> Any:
        if scope is None:
            return self
        found = _Exit(scope)
        scope._exit = weakref.ref(found)
        return found

    def __call__(self, scope: Scope, kind: type[BaseException] | None, *rest: object) -> None:
        scope._leave(kind)  # as `contextlib.ExitStack` calls it


class Scope(ScopeBranch):
    """Records operations for one graph. Made by `CudaGraph.scope(stream)`.

        with na.CudaGraph.scope(stream) as s:
            s.record(na.memcpy(hidden, inputs))
            s.record(layer(hidden.partition(256), weights))
        graph = s.graph

    Each operation must be one that a graph can repeat: a launch whose arguments are existing
    tensors, `na.memcpy`, `na.fill`, or a combination of these. Inside the block this thread must
    run no other operation, and must not await.

    Examples:
        >>> stream = na.default_device().new_stream()
        >>> z, x = await na.gather(na.zeros(3), na.ones(3))
        >>> with na.CudaGraph.scope(stream) as s:
        ...     _ = s.record(na.fill(z, 1))
        ...     _ = s.record(saxpy(z, 2.0, x))
        >>> _ = await s.graph.launch()
        >>> await z.to_host()
        array([3., 3., 3.], dtype=float32)
    """

    def __init__(self, stream: AnyStream, make: Callable[[Stream, Recorded], Any]) -> None:
        stream = as_stream(stream, "scope")
        if not callable(make):
            raise CallerError(
                f"a Scope makes a graph, not by {with_type(make)}: write "
                "na.CudaGraph.scope(stream)."
            )
        super().__init__(self, Branch())
        self._stream = stream
        self._make = make
        self._recorder: Recorder | None = None
        self._thread = 0
        self._region: AbstractContextManager[Any] | None = None
        self._graph: CudaGraph[None] | None = None
        self._exit: Callable[[], _Exit | None] = lambda: None

    @property
    def graph(self) -> CudaGraph[None]:
        """The graph, once the block has ended.

        Raises:
            StateError: the block has not ended, or ended with an error.
        """
        if self._graph is None:
            raise StateError(
                "the scope has no graph: its block has not ended, or ended with an error. Write\n\n"
                "    with na.CudaGraph.scope(stream) as s:\n        s.record(op)\n"
                "    graph = s.graph"
            )
        return self._graph

    def check(self, branch: ScopeBranch) -> Recorder:
        """The recorder; raises StateError unless this thread may record on `branch` now."""
        recorder = self._recorder
        if recorder is None:
            raise StateError("the scope's block is not open: record inside of it.")
        if self._thread != threading.get_ident():
            raise StateError("a scope belongs to the thread that opened it: record there.")
        if branch._joined:
            raise StateError("the branch was joined, and has ended: fork another one.")
        return recorder

    def __enter__(self) -> Self:
        if self._recorder is not None or self._graph is not None:
            raise StateError("a scope is opened once: make another one, CudaGraph.scope(stream).")
        exclusive.check()
        submission_queue.drain()
        self._stream.check()
        recorder = Recorder(self._stream, allocates=False)
        at_exit = self._exit()
        if at_exit is not None:
            at_exit.is_of_a_block = True
        try:
            self._region = exclusive.region()
            self._region.__enter__()
            self._thread = threading.get_ident()
            self._recorder = recorder
        except BaseException:  # ^C: the block does not begin
            self._leave(KeyboardInterrupt)
            raise
        return self

    if TYPE_CHECKING:

        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None,
            trace: TracebackType | None,
        ) -> None: ...  # fmt: skip

    else:
        __exit__ = _Exits()

    def _leave(self, kind: type[BaseException] | None) -> None:
        """Let the thread run operations again, and make the graph; again has no effect."""
        recorder, self._recorder = self._recorder, None
        self._region = None  # which ends with its last reference, wherever ^C came
        if recorder is None:
            return
        if kind is not None:
            recorder.forget()
        else:
            self._graph = self._make(self._stream, recorder.finish())
