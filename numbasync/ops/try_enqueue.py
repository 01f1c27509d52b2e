"""The quick way of an operation: enqueued by one call, without the steps of a generator.

Seven operations have it: a launch, a fill, an upload, a download, a read of a batch, the launch
of a graph and the run of a batch. The contract of all of them:

- `has_fast_path` says, before anything is enqueued, that the quick way may be tried.
- `try_enqueue(submission, pool)` enqueues everything, or nothing. It returns False, with nothing
  enqueued and nothing changed, where a preparation is needed first (a compilation, a staged copy,
  room under a limit) or the operation is of a kind that it does not know; the caller then takes
  the steps. An exception means the same as one in the steps.
- What the device touches is kept alive by the submission before the call returns, and every
  storage's record of use says that the submission is at it.
- The caller has checked that the thread may enqueue, holds no lock, and commits the submission.
- `result()` gives, once `try_enqueue` returned True, what the steps would have returned.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from numbasync.device.storage import MemoryPool
from numbasync.device.submission import Submission

T_co = TypeVar("T_co", covariant=True)


class Enqueueable(Protocol[T_co]):
    """An operation, as whoever tries its quick way sees it."""

    @property
    def has_fast_path(self) -> bool:
        """It may be enqueued at once."""
        ...

    def try_enqueue(self, submission: Submission, pool: MemoryPool | None) -> bool:
        """Enqueue it now, if that needs nothing else. Whether it was."""
        ...

    def result(self) -> T_co:
        """The value of what was enqueued so."""
        ...
