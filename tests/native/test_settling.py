"""What a stream settles when the device has passed it, beside the launches themselves."""

from __future__ import annotations

import threading

import pytest

import numbasync as na
from numbasync import native
from numbasync.device.submission import Submission
from numbasync.errors import DeviceLostError, DriverError
from tests.common import add_one
from tests.native.null_device import LOST, library

pytestmark = pytest.mark.skipif(native.core is None, reason="the compiled core is not installed")


def committed(stream: na.Stream, **attributes: object) -> Submission:
    """A submission in flight, without a signal."""
    submission = Submission(stream, "work")
    for name, value in attributes.items():
        setattr(submission, name, value)
    stream.commit(submission, signal=False)
    return submission


def raising(error: BaseException) -> list[object]:
    def call() -> None:
        raise error

    return [call]


def test_bytes_and_a_host_side(null: na.Device, on: bool) -> None:
    stream, seen = null.new_stream(), list[tuple[int, int]]()
    sized = committed(stream, nbytes=100)
    hosted = [
        committed(
            stream, nbytes=n, after=[lambda: seen.append((stream.in_flight_count, stream.nbytes))]
        )
        for n in (10, 1)
    ]
    assert stream.nbytes == 111 and not any(work.is_trivial for work in (sized, *hosted))
    stream.poll()
    assert seen == [(2, 11), (1, 1)], "in flight until the host side has run"
    assert (stream.nbytes, stream.in_flight_count) == (0, 0)
    assert all(work.done for work in hosted)


def test_an_error_of_unawaited_work_is_reported(null: na.Device, on: bool) -> None:
    stream, errors = null.new_stream(), [ValueError("first"), ValueError("second")]
    work = [committed(stream, after=raising(error), detached=True) for error in errors]
    committed(stream, after=raising(KeyError("of a future")))
    stream.poll()
    assert [w.error for w in work] == errors
    with pytest.raises(ValueError, match="first"):
        stream.report()
    stream.report()


def test_errors_of_dependencies_on_other_streams(null: na.Device, on: bool) -> None:
    """They are known before the work that depends on them is settled."""
    stream, other = null.new_stream(), null.new_stream()
    failing = committed(other, after=raising(ValueError("wrong")))
    dependent = Submission(stream, "work")
    dependent.depends_on(failing)
    stream.commit(dependent, signal=False)
    assert not dependent.is_trivial and stream.has_dependencies
    stream.poll()
    assert failing.done and dependent.error is failing.error is not None
    assert not stream.has_dependencies


def test_dependencies_known_before_other_work_is_settled(null: na.Device, on: bool) -> None:
    """Between `depends_on` and `commit`, the stream settles all that is in flight."""
    stream, other = null.new_stream(), null.new_stream()
    failing = committed(other, after=raising(ValueError("wrong")))
    dependent = Submission(stream, "work")
    dependent.depends_on(failing)
    committed(stream)
    stream.poll()
    stream.commit(dependent, signal=False)
    stream.poll()
    assert failing.done and dependent.error is failing.error is not None


def test_a_submission_of_nothing_is_done_at_once(null: na.Device, on: bool) -> None:
    stream = null.new_stream()
    submission = committed(stream, is_empty=True, keep_alive=[stream])
    assert (submission.done, submission.keep_alive, submission.sequence) == (True, [], 0)
    assert not stream.in_flight_count and not stream._sequence


def test_a_stream_with_half_enqueued_work_is_busy(null: na.Device, on: bool) -> None:
    stream = null.new_stream()
    submission = Submission(stream, "work")
    stream.suspend(submission)
    committed(stream)
    stream.poll()
    assert not stream.in_flight_count and stream in null.busy
    stream.resume(submission)
    assert stream not in null.busy


def test_abandoned_work_is_committed_by_the_next_look(null: na.Device, on: bool) -> None:
    stream = null.new_stream()
    submission = Submission(stream, "work")
    stream.suspend(submission)
    stream.abandon(submission)
    assert submission.sequence == 0
    stream.advance()
    assert submission.sequence == 1 == stream._sequence and submission.done


def test_work_in_flight_on_broken_streams_fails(null: na.Device, on: bool) -> None:
    stream, z = null.new_stream(), na.zeros(8).sync()
    add_one(z).sync_on(stream)
    number = stream.enqueue_signal()
    stream.advance()
    stream.verify(number)
    stream.backend.hold()
    add_one(z).async_on(stream)
    fault = DriverError("cuStreamQuery", 1, "CUresult 1", "")
    stream.break_with(fault)
    stream.advance()
    assert z.storage.writer.error is fault and z.storage.writer.keep_alive == []
    with pytest.raises(DriverError):
        stream.verify(number)
    with pytest.raises(DriverError):
        stream.report()


def test_a_result_is_verified_by_the_driver(null: na.Device, on: bool) -> None:
    """A counter says what has passed, and not how."""
    stream, z = null.new_stream(), na.zeros(8).sync()
    add_one(z).sync_on(stream)
    stream.verify(stream.enqueue_signal())
    number = stream.enqueue_signal()
    stream.advance()
    library().null_fail(LOST, 0)
    stream.verify(number - 1)  # known already
    with pytest.raises(DeviceLostError):
        stream.verify(number)


def test_an_error_that_the_driver_reports_once(null: na.Device, on: bool) -> None:
    """To a wait, or to the poll of an await, which must not ask again."""
    null.policy = na.StreamPoolRoundRobin(null, 1)
    stream, z = null.policy.next_stream(), na.zeros(8).sync()
    add_one(z).sync_on(stream)
    library().null_fail_once(1, 0)
    with pytest.raises(DriverError, match="cuStreamSynchronize"):
        stream.synchronize()
    add_one(z).sync_on(stream)

    async def main() -> None:
        await add_one(z)
        await add_one(z)  # polled by its await, as the second one of the task
        library().null_fail_once(1, 1)  # not the launch
        with pytest.raises(DriverError, match="cuStreamQuery"):
            await add_one(z)
        await add_one(z)

    na.run(main())


def test_work_is_settled_under_the_streams_lock(null: na.Device, on: bool) -> None:
    stream = null.new_stream()
    submission, settled = committed(stream), threading.Event()
    stream.ensure_signalled(submission.sequence)

    def settle() -> None:
        stream.advance()
        settled.set()

    thread = threading.Thread(target=settle)
    with stream._lock:
        thread.start()
        assert not settled.wait(0.1)
        assert not submission.done
    thread.join()
    assert submission.done


def test_objects_are_dropped_outside_of_the_lock(null: na.Device, on: bool) -> None:
    """Their finalisers may take long, and may need the lock themselves."""
    stream, free = null.new_stream(), list[bool]()

    def look() -> None:
        free.append(stream._lock.acquire(False))
        if free[-1]:
            stream._lock.release()

    class Kept:
        def __del__(self) -> None:
            thread = threading.Thread(target=look)
            thread.start()
            thread.join()

    committed(stream, keep_alive=[Kept()])
    stream.poll()
    assert free == [True]
