"""The fast path of an operation: one call enqueues it, without the steps of a generator.

Eight operations have a fast path: a launch, a fill, an upload, a download, a read of a batch, the
launch of a graph, the call of a graphed function and the run of a batch. The contract of all:

- `has_fast_path` says, before anything is enqueued, that the fast path may be tried.
- `try_enqueue(submission, pool)` enqueues everything, or nothing. The result is False, with nothing
  enqueued and nothing changed, if a prerequisite must be done first (a compilation, a staged copy)
  or the fast path does not support this case; the caller then takes the steps. An exception means
  the same as an exception of the steps.
- Before the call returns, the submission keeps alive every object that the device touches, and the
  access record of every storage used names the submission.
- The caller has checked that the thread may enqueue and that the operation was not submitted under
  a limit, since only the steps wait for capacity. It holds no lock, and commits the submission.
- `result()` gives, once `try_enqueue` returned True, the value that the steps would have returned.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from numbasync.device.storage import MemoryPool
from numbasync.device.submission import Submission

T_co = TypeVar("T_co", covariant=True)


class Enqueueable(Protocol[T_co]):
    """An operation, as seen by a caller that tries its fast path."""

    @property
    def has_fast_path(self) -> bool:
        """Whether `try_enqueue` may be tried."""
        ...

    def try_enqueue(self, submission: Submission, pool: MemoryPool | None) -> bool:
        """Enqueue all of the operation now, if nothing else is needed; whether it was enqueued."""
        ...

    def result(self) -> T_co:
        """The operation's value, after `try_enqueue` returned True."""
        ...
