"""Host arrays that the device has still to fill: no upload may read their elements, and no closure.

`to_host()` gives an array when the copy is enqueued. Closures, operations behind it in the same
operation, and `async_on` have that array before its elements are there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from numbasync.device.submission import Submission
from numbasync.errors import StateError
from numbasync.native import core
from numbasync.ops.home import flat

_BYTES = np.dtype(np.uint8)
MOST_WORK = 10_000  # limit of NumPy's search for an element that two arrays share

HostArray = np.ndarray[Any, Any]


def overlap(a: HostArray, b: HostArray) -> bool:
    """Whether two arrays have an element in common; True if the search would take too long."""
    try:
        return np.shares_memory(a, b, max_work=MOST_WORK)  # type: ignore[arg-type]  # stub's error
    except np.exceptions.TooHardError:
        return True


def is_filled(array: HostArray, submission: Submission) -> bool:
    """Whether an upload that belongs to `submission` may read the array now.

    Examples:
        >>> from numbasync.extending import is_filled
        >>> array = await na.ones(3).to_host()
        >>> await na.with_context(lambda ctx: is_filled(array, ctx.submission))
        True
    """
    base = array.base
    # In no memory of a download, also not as a view of one, and no other copy to the host is
    # pending.
    is_plain = base is None or (
        isinstance(base, np.ndarray) and base.base is None and base.dtype is not _BYTES
    )
    if is_plain and submission.after is None and submission.dependencies is None:
        return True
    return filler_of(array, submission) is None


def check_filled(array: HostArray, submission: Submission, what: str = "what is uploaded") -> None:
    """Refuse an array whose elements `submission` may not read yet: it is the target of a copy from
    the device that has been enqueued.

    Args:
        what: the array, for the message.

    Raises:
        StateError: `array` is the value of an operation that has to be awaited first.

    Examples:
        >>> from numbasync.extending import check_filled
        >>> def total(ctx):
        ...     check_filled(array, ctx.submission, "what my_sum adds up")
        ...     return float(array.sum())
        >>> array = await na.ones(3).to_host()
        >>> await na.with_context(total)
        3.0
    """
    if is_filled(array, submission):
        return
    filler = filler_of(array, submission)
    if filler is not None:
        raise StateError(
            f"{what} is an array of shape {array.shape} whose elements are not there yet: they are "
            f"when the device is done with {filler.described}.\n"
            "Await it first, and go on with the array: a = await t.to_host(). What stays on the "
            "device needs no copy to the host: pass the tensor."
        )


def check_not_read(value: Any, changed: Any, submission: Submission, who: object) -> Any:
    """`changed`, which a closure has made of `value`, unless it has read elements for that.

    Views may be made of an array that is not filled; a number of NumPy's, or an array with memory
    of its own, has been computed from the elements. What else a closure does is not seen.

    Raises:
        StateError: `changed` is computed from an array whose elements are not there yet.
    """
    if changed is value or not isinstance(changed, np.ndarray | np.generic) or not changed.size:
        return changed
    parts = list(flat((value,)))
    arrays = [part for part in parts if isinstance(part, np.ndarray)]
    if any(part is changed for part in parts) or (
        isinstance(changed, np.ndarray) and any(overlap(a, changed) for a in arrays)
    ):
        return changed
    for array in arrays:
        if not is_filled(array, submission):
            raise StateError(
                f"{who} has computed with an array of shape {array.shape} whose elements are not "
                "there yet: closures are called when the work has been enqueued.\n"
                "Await it first, and go on with the array: a = await t.to_host()"
            )
    return changed


def filler_of(array: HostArray, submission: Submission) -> Submission | None:
    """The submission that has still to fill the array: `submission`, one that it depends on, or,
    of an array that a download has made, one in flight on its stream.
    """
    holders = {id(base) for base in _bases(array)}
    for other in _before(submission):
        if holders and _holds(other, holders):
            return other
        for target in _targets(other):
            if overlap(array, target):
                return other
    if holders:
        submission.stream.advance()
        for other in submission.stream.submissions:
            if _holds(other, holders) and not other.done:
                return other
    return None


def _before(submission: Submission) -> Iterator[Submission]:
    """The submission, and those not done that it depends on, directly or not."""
    seen, pending = {submission}, [submission]
    while pending:
        one = pending.pop()
        yield one
        for other in one.dependencies or ():
            if not other.done and other.sequence:
                other.stream.advance()
            if not other.done and other not in seen:
                seen.add(other)
                pending.append(other)


def _bases(array: HostArray) -> Iterator[object]:
    """What may be the page-locked memory of a download, of which the array is a view."""
    base = array.base
    while base is not None:
        if _is_block(base):
            yield base
        base = base.base if isinstance(base, np.ndarray) else None


def _is_block(thing: object) -> bool:
    """Whether it may be a `host_block`, or bytes of a `host_buffer`."""
    if isinstance(thing, np.ndarray):
        return thing.dtype is _BYTES and thing.ndim == 1
    return isinstance(getattr(thing, "address", None), int)


def _holds(submission: Submission, holders: set[int]) -> bool:
    """Whether the submission keeps one of the objects with these ids, or a part of it."""
    return any(
        id(kept) in holders or (isinstance(kept, np.ndarray) and id(kept.base) in holders)
        for kept in submission.keep_alive
        if _is_block(kept)
    )


def _targets(submission: Submission) -> Iterator[HostArray]:
    """The arrays that the host fills when the device is done."""
    for call in submission.after or ():
        target = getattr(getattr(call, "__self__", None), "target", None)
        if getattr(call, "func", None) is np.copyto:
            target = call.args[0]  # type: ignore[attr-defined]
        if isinstance(target, np.ndarray):
            yield target


if core is not None:
    core.know_unfilled(is_filled, _BYTES)
