# Submissions, and the streams that number, signal and retire them.

cdef tuple fresh = (  # what a new `Submission` has from `site` on, but for `keep_alive`
    None, None, (), zero, zero, zero, False, None, None, False, False, False, False, None, None, None,
)
cdef int LOOK_EVERY = 64
cdef int64_t MAX_UNSIGNALLED = 1 << 24
cdef tuple lost = ()


def know_faults(tuple classes):
    """Note the errors of a driver that reports a fault of earlier work."""
    global lost
    lost = classes


cdef object new_submission(object stream, object name, object launched):
    """A `Submission`, as its constructor makes it."""
    cdef object s = PyType_GenericAlloc(classes[Submission], 0)
    cdef int i
    put(s, at_stream, stream)
    put(s, at_name, name)
    for i in range(at_site, at_trace + 1):
        put(s, i, fresh[i - at_site])
    put(s, at_keep_alive, [])
    put(s, at_launched, launched)
    return s


def Progress_commit(stream, submission, signal=True):
    if not on or signal or not isa(stream, Stream) or not isa(submission, Submission):
        return python["Progress.commit"](stream, submission, signal)
    commit(stream, submission, NULL)


cdef object append_right = deque.append, pop_left = deque.popleft  # of submissions in flight


cdef inline int64_t number_of(object submission) except -1:
    """The number of a submission of any class."""
    return get(submission, at_number) if isa(submission, Submission) else submission.sequence


cdef int commit(object stream, object submission, start_s* start) except -1:
    """`Progress.commit`, without a signal; `start` as of `tell_begin`, where that was called."""
    cdef object in_flight
    cdef Py_ssize_t count
    cdef int64_t number
    if holds(submission, at_is_empty, True) and not PyList_GET_SIZE(get(submission, at_keep_alive)):
        put(submission, at_done, True)  # nothing was enqueued, and so nothing can fail
        if recorder is not None:
            tell_commit(submission, start)
        return 0
    if holds(submission, at_is_empty, True) or not (<Lock>get(stream, at_lock)).is_free():
        python["Progress.commit"](stream, submission, False)
        return 0
    in_flight = get(stream, at_in_flight)
    # No call from here on lets another thread run.
    number = <int64_t>get(stream, at_sequence) + 1
    put(stream, at_sequence, number)
    put(submission, at_number, get(stream, at_sequence))
    append_right(in_flight, submission)
    if not holds(submission, at_dependencies, None):  # others may be retired since `depends_on`
        put(stream, at_has_dependencies, True)
    count = PyObject_Size(in_flight)
    if count == 1:
        (<dict>get(get(stream, at_owner), at_busy))[stream] = None
    if not holds(submission, at_nbytes, zero):
        put(stream, at_stream_nbytes, get(stream, at_stream_nbytes) + get(submission, at_nbytes))
    if recorder is not None:
        tell_commit(submission, start)
    if count % LOOK_EVERY == 0 or number - <int64_t>get(stream, at_last_signal) >= MAX_UNSIGNALLED:
        try:
            ensure_signalled(stream, number)
            number = advance(stream)
            if recorder is not None:
                tell_wait(None, stream, number, None, 1)
        except lost:  # the awaiter polls again, and raises the error
            pass
    return 0


cdef int ensure_signalled(object stream, object number) except -1:
    """`Progress.ensure_signalled`."""
    cdef object queue = get(stream, at_backend), in_flight = get(stream, at_in_flight), last
    cdef DriverStream calls = calls_of(queue)
    cdef Lock lock = get(stream, at_lock)
    if calls is None or <int64_t>get(stream, at_last_signal) >= <int64_t>number:
        stream.ensure_signalled(number)
        return 0
    lock.take()
    try:
        if PyObject_Size(in_flight):
            last = in_flight[PyObject_Size(in_flight) - 1]
            last.signalled = True
        last = get(stream, at_sequence)
        put(stream, at_last_signal, last)
        calls.write(last)
        put(queue, at_last_written, last)
    finally:
        lock.give()
    return 0


def Progress_advance(stream):
    if not on or not isa(stream, Stream):
        return python["Progress.advance"](stream)
    return advance(stream)


cdef int64_t advance(object stream) except -1:
    """`Progress.advance`."""
    cdef object in_flight, queue
    cdef DriverStream calls
    cdef int64_t passed, confirmed
    if not holds(stream, at_broken, None) or PyObject_Size(get(stream, at_abandoned)):
        return python["Progress.advance"](stream)
    queue = get(stream, at_backend)
    calls = calls_of(queue)
    passed = queue.completed() if calls is None else calls.completed()
    confirmed = get(stream, at_confirmed)
    if passed < confirmed:
        passed = confirmed
    in_flight = get(stream, at_in_flight)
    if PyObject_Size(in_flight):
        if number_of(in_flight[0]) <= passed:
            retire(stream, passed)
    return passed


cdef bint retire_dependencies(object stream, int64_t passed) except -1:
    """`Progress._retire_dependencies`; False, if only Python can."""
    cdef object other
    for submission in list(get(stream, at_in_flight)):
        if not isa(submission, Submission):
            return False
        if <int64_t>get(submission, at_number) > passed:
            return True
        for dependency in list(get(submission, at_dependencies) or ()):
            if not isa(dependency, Submission):
                return False
            other, number = get(dependency, at_stream), get(dependency, at_number)
            if holds(dependency, at_done, True) or number == 0 or other is stream:
                continue
            if not isa(other, Stream):
                return False
            retire(other, number)
    return True


cdef int retire(object stream, int64_t passed) except -1:
    """`Progress._retire`."""
    cdef object in_flight, submission, error
    cdef list dropped = []  # dropped outside the lock: finalisers may take long
    cdef Lock lock
    cdef bint is_sound
    if not holds(stream, at_has_dependencies, False) and not retire_dependencies(stream, passed):
        python["Progress._retire"](stream, passed)
        return 0
    lock = get(stream, at_lock)
    lock.take()
    try:
        in_flight, is_sound = get(stream, at_in_flight), holds(stream, at_broken, None)
        while PyObject_Size(in_flight):
            submission = in_flight[0]
            if number_of(submission) > passed:
                break
            if is_sound and isa(submission, Submission) and (
                has_not_failed(submission) and holds(submission, at_after, None)
                and holds(submission, at_dependencies, None)
            ):
                dropped.append(get(submission, at_keep_alive))
                put(submission, at_keep_alive, [])
                put(submission, at_done, True)
                if not holds(submission, at_nbytes, zero):
                    put(stream, at_stream_nbytes,
                        get(stream, at_stream_nbytes) - get(submission, at_nbytes))
            else:
                dropped.append(submission.retire(get(stream, at_broken)))
                error = submission.error
                if error is not None and submission.detached and stream._unreported is None:
                    stream._unreported = error
                put(stream, at_stream_nbytes, get(stream, at_stream_nbytes) - submission.nbytes)
            # Removed last: another thread that still sees the submission waits for the lock, so
            # that no result is returned before its host side is complete.
            pop_left(in_flight)
        else:
            put(stream, at_has_dependencies, False)
            put(stream, at_stream_nbytes, zero)
            busy = get(get(stream, at_owner), at_busy)
            if PyDict_Size(get(stream, at_suspended)) or type(busy) is not dict or (
                PyObject_Size(get(stream, at_abandoned))
            ):
                stream._forget_if_idle()
            else:
                (<dict>busy).pop(stream, None)  # no other thread runs in between
    finally:
        lock.give()
    return 0


cdef inline bint has_not_failed(object submission) noexcept:
    """Whether no work of a submission can have failed, which the device has passed."""
    cdef object queue = get(submission, at_queue)
    return queue is None or (isa(queue, CpuQueue) and holds(queue, at_queue_error, None))


cdef inline bint is_open(object stream) noexcept:
    """Whether no fault is known of a stream and its device."""
    return holds(stream, at_broken, None) and holds(get(stream, at_owner), at_lost, None)


def Progress_verify(stream, sequence):
    if not on or not isa(stream, Stream) or not is_verified(stream, sequence):
        python["Progress.verify"](stream, sequence)


cdef inline bint is_verified(object stream, int64_t number) except -1:
    """Whether `Progress.verify` has nothing to ask."""
    return 0 < number <= <int64_t>get(stream, at_verified) and is_open(stream)


cdef int note_passed(object stream, object number) except -1:
    """`Progress._has_passed`, and what that lets retire."""
    cdef Lock lock = get(stream, at_lock)
    if not lock.is_free():
        stream._has_passed(number)
    elif number > get(stream, at_confirmed):
        put(stream, at_confirmed, number)
    advance(stream)
    return 0


def Stream_wait_until_idle(stream):
    cdef object queue  # which keeps the driver's stream, while this thread waits for it
    cdef DriverStream calls = None
    cdef int64_t began = 0 if recorder is None else na_ns()
    if on and isa(stream, Stream) and is_open(stream) and holds(stream, at_follows, None):
        queue = get(stream, at_backend)
        calls = calls_of(queue)
    if calls is not None:
        number = get(stream, at_sequence)
        try:
            calls.synchronize()
        except BaseException:
            check_after_failure(stream)
            raise
        tell_wait("block", stream, number, None, began)
        note_passed(stream, number)
        return
    python["Stream.wait_until_idle"](stream)


cdef int check_after_failure(object stream) except -1:
    """Raise the fault of a stream, whose message names the work that was running, if it has one."""
    stream._is_broken()
    stream.check()
    return 0


def kind_of(work):
    cdef object site
    if not on or not isa(work, Submission):
        return python["kind_of"](work)
    site = get(work, at_site)
    if site is None:
        return get(work, at_name)
    return (
        get(work, at_name), <uintptr_t>PyTuple_GET_ITEM(site, 0),
        <object>PyTuple_GET_ITEM(site, 1),
    )


def Waits_has_passed_soon(stream, sequence, work):
    if not on or not isa(stream, Stream):
        return python["Waits.has_passed_soon"](stream, sequence, work)
    return has_passed_soon(stream, sequence, work)


cdef bint has_passed_soon(object stream, object sequence, object work) except -1:
    """`Waits.has_passed_soon`."""
    cdef object loop, watcher, number, queue, waits, estimate = None
    cdef DriverStream calls
    cdef bint is_idle
    if advance(stream) >= <int64_t>sequence:
        return True
    loop = get_running_loop()
    watcher = getattr(loop, "_numbasync_reactor", None)
    if watcher is None:
        return python["Waits.has_passed_soon"](stream, sequence, work)
    running = current_task(loop)
    if <uintptr_t>get(watcher, at_last_task) != <uintptr_t><PyObject*>running:
        put(watcher, at_last_task, <uintptr_t><PyObject*>running)
        return False
    if not holds(watcher, at_turning, False):
        return False
    waits = get(watcher, at_last_waits)
    if PyDict_Size(waits):
        estimate = found(waits, kind_of(work))
    if estimate is not None and not holds(estimate, at_is_long, False):
        return False
    queue = get(stream, at_backend)
    calls = calls_of(queue)
    number = get(stream, at_sequence)
    try:
        is_idle = queue.spin_poll() if calls is None else calls.spin_poll()
    except BaseException:
        check_after_failure(stream)
        raise
    if not is_idle:
        return False
    if number > get(stream, at_verified):
        put(stream, at_verified, number)
    note_passed(stream, number)
    if estimate is not None:
        estimate.note(0.0)
    return True


def Waits_passes_soon(stream, sequence):
    cdef object queue  # which keeps the driver's stream
    cdef DriverStream calls = None
    if on and isa(stream, Stream) and holds(stream, at_broken, None):
        queue = get(stream, at_backend)
        calls = calls_of(queue)
    if calls is None:
        return python["Waits.passes_soon"](stream, sequence)
    calls.look_for(sequence)
    return advance(stream) >= <int64_t>sequence
