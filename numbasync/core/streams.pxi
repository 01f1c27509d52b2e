# Submissions, and the streams that number, signal and retire them.

cdef tuple lost = ()


def know_faults(tuple classes):
    """Note the errors of a driver that reports a fault of earlier work."""
    global lost
    lost = classes


cdef object new_submission(object stream, object name, object launched):
    """A `Submission`, as its constructor makes it."""
    cdef object s = PyType_GenericAlloc(classes[Submission], 0)
    put(s, Submission_stream, stream)
    put(s, Submission_name, name)
    put(s, Submission_site, None)
    put(s, Submission_keep_alive, [])
    put(s, Submission_launched, launched)
    put(s, Submission_sequence, zero)
    put(s, Submission_nbytes, zero)
    put(s, Submission_copied, zero)
    put(s, Submission_done, False)
    put(s, Submission_is_empty, False)
    put(s, Submission_is_trivial, False)
    put(s, Submission_signalled, False)
    put(s, Submission_detached, False)
    put(s, Submission_error, None)
    put(s, Submission_queue, None)
    put(s, Submission_dependencies, None)
    put(s, Submission_after, None)
    put(s, Submission__trace, None)
    return s


def Progress_commit(stream, submission, signal=True):
    if not on or signal or not isa(stream, Stream) or not isa(submission, Submission):
        return python["Progress.commit"](stream, submission, signal)
    commit(stream, submission, NULL)


cdef object append_right = deque.append, pop_left = deque.popleft  # of submissions in flight


cdef inline int64_t number_of(object submission) except -1:
    """The number of a submission of any class."""
    if isa(submission, Submission):
        return get(submission, Submission_sequence)
    return submission.sequence


cdef int commit(object stream, object submission, start_s* start) except -1:
    """`Progress.commit`, without a signal; `start` as of `tell_begin`, where that was called."""
    cdef object in_flight
    cdef Py_ssize_t count
    cdef int64_t number
    if holds(submission, Submission_is_empty, True) and not PyList_GET_SIZE(
        get(submission, Submission_keep_alive)
    ):
        put(submission, Submission_done, True)  # nothing was enqueued, and so nothing can fail
        if recorder is not None:
            tell_commit(submission, start)
        return 0
    cdef Lock lock = get(stream, Progress__lock)
    if holds(submission, Submission_is_empty, True) or not lock.is_free():
        python["Progress.commit"](stream, submission, False)
        return 0
    in_flight = get(stream, Progress__in_flight)
    # No call from here on lets another thread run.
    number = <int64_t>get(stream, Progress__sequence) + 1
    put(stream, Progress__sequence, number)
    put(submission, Submission_sequence, get(stream, Progress__sequence))
    append_right(in_flight, submission)
    # Others may be retired since `depends_on`.
    if not holds(submission, Submission_dependencies, None):
        put(stream, Progress_has_dependencies, True)
    count = PyObject_Size(in_flight)
    if count == 1:
        (<dict>get(get(stream, Progress__owner), Device_busy))[stream] = None
    if not holds(submission, Submission_nbytes, zero):
        nbytes = get(stream, Progress_nbytes) + get(submission, Submission_nbytes)
        put(stream, Progress_nbytes, nbytes)
    if recorder is not None:
        tell_commit(submission, start)
    if count % LOOK_EVERY == 0 or (
        number - <int64_t>get(stream, Progress__signalled) >= MAX_UNSIGNALLED
    ):
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
    cdef object queue = get(stream, Progress_backend), last
    cdef object in_flight = get(stream, Progress__in_flight)
    cdef DriverStream calls = calls_of(queue)
    cdef Lock lock = get(stream, Progress__lock)
    if calls is None or <int64_t>get(stream, Progress__signalled) >= <int64_t>number:
        stream.ensure_signalled(number)
        return 0
    lock.take()
    try:
        if PyObject_Size(in_flight):
            last = in_flight[PyObject_Size(in_flight) - 1]
            last.signalled = True
        last = get(stream, Progress__sequence)
        put(stream, Progress__signalled, last)
        calls.write(last)
        put(queue, CudaStream__last, last)
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
    if not holds(stream, Progress__broken, None) or PyObject_Size(get(stream, Progress__abandoned)):
        return python["Progress.advance"](stream)
    queue = get(stream, Progress_backend)
    calls = calls_of(queue)
    passed = queue.completed() if calls is None else calls.completed()
    confirmed = get(stream, Progress__confirmed)
    if passed < confirmed:
        passed = confirmed
    in_flight = get(stream, Progress__in_flight)
    if PyObject_Size(in_flight):
        if number_of(in_flight[0]) <= passed:
            retire(stream, passed)
    return passed


cdef bint retire_dependencies(object stream, int64_t passed) except -1:
    """`Progress._retire_dependencies`; False, if only Python can."""
    cdef object other
    for submission in list(get(stream, Progress__in_flight)):
        if not isa(submission, Submission):
            return False
        if <int64_t>get(submission, Submission_sequence) > passed:
            return True
        for dependency in list(get(submission, Submission_dependencies) or ()):
            if not isa(dependency, Submission):
                return False
            other, number = get(dependency, Submission_stream), get(dependency, Submission_sequence)
            if holds(dependency, Submission_done, True) or number == 0 or other is stream:
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
    if not holds(stream, Progress_has_dependencies, False) and not retire_dependencies(
        stream, passed
    ):
        python["Progress._retire"](stream, passed)
        return 0
    lock = get(stream, Progress__lock)
    lock.take()
    try:
        in_flight = get(stream, Progress__in_flight)
        is_sound = holds(stream, Progress__broken, None)
        while PyObject_Size(in_flight):
            submission = in_flight[0]
            if number_of(submission) > passed:
                break
            if is_sound and isa(submission, Submission) and (
                has_not_failed(submission) and holds(submission, Submission_after, None)
                and holds(submission, Submission_dependencies, None)
            ):
                dropped.append(get(submission, Submission_keep_alive))
                put(submission, Submission_keep_alive, [])
                put(submission, Submission_done, True)
                if not holds(submission, Submission_nbytes, zero):
                    put(stream, Progress_nbytes,
                        get(stream, Progress_nbytes) - get(submission, Submission_nbytes))
            else:
                dropped.append(submission.retire(get(stream, Progress__broken)))
                error = submission.error
                if error is not None and submission.detached and stream._unreported is None:
                    stream._unreported = error
                put(stream, Progress_nbytes, get(stream, Progress_nbytes) - submission.nbytes)
            # Removed last: another thread that still sees the submission waits for the lock, so
            # that no result is returned before its host side is complete.
            pop_left(in_flight)
        else:
            put(stream, Progress_has_dependencies, False)
            put(stream, Progress_nbytes, zero)
            busy = get(get(stream, Progress__owner), Device_busy)
            if PyDict_Size(get(stream, Progress__suspended)) or type(busy) is not dict or (
                PyObject_Size(get(stream, Progress__abandoned))
            ):
                stream._forget_if_idle()
            else:
                (<dict>busy).pop(stream, None)  # no other thread runs in between
    finally:
        lock.give()
    return 0


cdef inline bint has_not_failed(object submission) noexcept:
    """Whether no work of a submission can have failed, which the device has passed."""
    cdef object queue = get(submission, Submission_queue)
    return queue is None or (isa(queue, CpuQueue) and holds(queue, CpuQueue_error, None))


cdef inline bint is_open(object stream) noexcept:
    """Whether no fault is known of a stream and its device."""
    return holds(stream, Progress__broken, None) and holds(
        get(stream, Progress__owner), Device_lost, None
    )


def Progress_verify(stream, sequence):
    if not on or not isa(stream, Stream) or not is_verified(stream, sequence):
        python["Progress.verify"](stream, sequence)


cdef inline bint is_verified(object stream, int64_t number) except -1:
    """Whether `Progress.verify` has nothing to ask."""
    return 0 < number <= <int64_t>get(stream, Progress_verified) and is_open(stream)


cdef int note_passed(object stream, object number) except -1:
    """`Progress._has_passed`, and what that lets retire."""
    cdef Lock lock = get(stream, Progress__lock)
    if not lock.is_free():
        stream._has_passed(number)
    elif number > get(stream, Progress__confirmed):
        put(stream, Progress__confirmed, number)
    advance(stream)
    return 0


cdef list list_followed(object stream):
    """`Stream._followed`."""
    cdef object follows = get(stream, Stream__follows), other
    cdef list followed = []
    cdef Lock lock = get(stream, Progress__lock)
    if follows is None:
        return followed
    if not lock.is_free():
        return stream._followed()
    for entry in list((<dict>follows).values()):
        other = entry[0]()
        if other is not None:
            followed.append((other, entry[1]))
    return followed


cdef int retire_followed(list followed) except -1:
    """`Stream._retire_followed`."""
    cdef object other, number, in_flight
    for other, number in followed:
        if not isa(other, Stream):
            python["Stream._retire_followed"]([(other, number)])
            continue
        in_flight = get(other, Progress__in_flight)
        if PyObject_Size(in_flight) and number_of(in_flight[0]) <= <int64_t>number:
            note_passed(other, number)
    return 0


def Stream_wait_until_idle(stream):
    cdef object queue  # which keeps the driver's stream, while this thread waits for it
    cdef DriverStream calls = None
    cdef list followed = None
    cdef int64_t began = 0 if recorder is None else na_ns()
    if on and isa(stream, Stream) and is_open(stream):
        queue = get(stream, Progress_backend)
        calls = calls_of(queue)
    if calls is not None:
        number, followed = get(stream, Progress__sequence), list_followed(stream)
        try:
            calls.synchronize()
        except BaseException:
            check_after_failure(stream)
            raise
        tell_wait("block", stream, number, None, began)
        note_passed(stream, number)
        retire_followed(followed)
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
    site = get(work, Submission_site)
    if site is None:
        return get(work, Submission_name)
    return (
        get(work, Submission_name), <uintptr_t>PyTuple_GET_ITEM(site, 0),
        <object>PyTuple_GET_ITEM(site, 1),
    )


cdef int finished_awaits = 0


cdef bint is_turn_due() noexcept:
    """Whether an await whose work is done must let the loop turn."""
    global finished_awaits
    finished_awaits = (finished_awaits + 1) % MOST_FINISHED
    return finished_awaits == 0


def turn_is_due():
    return is_turn_due()


cdef void let_loop_turn() noexcept:
    """`let_turn`."""
    global finished_awaits
    finished_awaits = MOST_FINISHED - 1


def let_turn():
    let_loop_turn()


def Waits_has_passed_soon(stream, sequence, work):
    if not on or not isa(stream, Stream):
        return python["Waits.has_passed_soon"](stream, sequence, work)
    return has_passed_soon(stream, sequence, work)


cdef bint has_passed_soon(object stream, object sequence, object work) except -1:
    """`Waits.has_passed_soon`."""
    cdef object loop, watcher, number, queue, waits, estimate = None
    cdef DriverStream calls
    cdef bint is_idle
    cdef int others
    if advance(stream) >= <int64_t>sequence:
        return True
    loop = get_running_loop()
    watcher = getattr(loop, "_numbasync_reactor", None)
    if watcher is None:
        return python["Waits.has_passed_soon"](stream, sequence, work)
    running = current_task(loop)
    others = count_others(watcher, <uintptr_t><PyObject*>running)
    if others > 1:
        return False
    waits = get(watcher, Reactor_last_waits)
    if PyDict_Size(waits):
        estimate = found(waits, kind_of(work))
    if estimate is not None and not holds(estimate, WaitEstimate_is_long, False):
        return False
    queue = get(stream, Progress_backend)
    calls = calls_of(queue)
    number = get(stream, Progress__sequence)
    try:
        is_idle = queue.spin_poll() if calls is None else calls.spin_poll(
            BESIDE_S if others else SLICE_S
        )
    except BaseException:
        check_after_failure(stream)
        raise
    if not is_idle:
        return False
    if number > get(stream, Progress_verified):
        put(stream, Progress_verified, number)
    note_passed(stream, number)
    if estimate is not None:
        estimate.note(0.0)
    if others:
        let_loop_turn()
    return True


cdef int count_others(object watcher, uintptr_t task) except -1:
    """`Reactor.others`."""
    cdef int others = 0
    if <uintptr_t>get(watcher, Reactor__last) != task:
        others = 1 if <uintptr_t>get(watcher, Reactor__before) == task else 2
        put(watcher, Reactor__before, get(watcher, Reactor__last))
        put(watcher, Reactor__last, task)
    return others + (not holds(watcher, Reactor__turning, False))


def Waits_passes_soon(stream, sequence):
    cdef object queue  # which keeps the driver's stream
    cdef DriverStream calls = None
    if on and isa(stream, Stream) and holds(stream, Progress__broken, None):
        queue = get(stream, Progress_backend)
        calls = calls_of(queue)
    if calls is None:
        return python["Waits.passes_soon"](stream, sequence)
    calls.look_for(sequence)
    return advance(stream) >= <int64_t>sequence
