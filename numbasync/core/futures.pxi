# Futures of operations with a fast path: made by `schedule`, started and awaited.

cdef object DeviceFuture = None
cdef object idle_state = None, starting_state = None, submitted_state = None
cdef object starting_lock = None  # of the states


def know_futures(cls, states, lock):
    """Note the class of futures, its states, and the lock that guards them."""
    global DeviceFuture, idle_state, starting_state, submitted_state, starting_lock
    DeviceFuture, starting_lock = cls, lock
    idle_state, starting_state, submitted_state = states.IDLE, states.STARTING, states.SUBMITTED


def Runs_schedule(self, policy):
    cdef object future
    if not on or not isa(policy, Stream) or DeviceFuture is None:
        return python["Runs.schedule"](self, policy)
    if isa(self, Launch) and holds(self, Launch__unused, True) and is_plain(self):
        put(self, Launch__unused, False)
        name = get(get(self, Launch__launcher), Launcher_label)
    elif is_simple(self) and not isa(self, GraphLaunch) and holds(self, SimpleOp__unused, True):
        put(self, SimpleOp__unused, False)
        name = name_of(self)
    else:
        return python["Runs.schedule"](self, policy)
    future = DeviceFuture.__new__(DeviceFuture)
    future.stream, future._op, future._name = policy, self, name
    future._pool = get(policy, Progress_device).pool
    future._seen = False
    return future


def DeviceFuture___await__(self):
    if on and self._state is idle_state:
        return await_future(self)
    return python["DeviceFuture.__await__"](self)


cdef bint may_start(object future, object op, object stream) except -1:
    """Whether a future's operation may be enqueued on its fast path now."""
    return (isa(op, Launch) or is_simple(op)) and isa(stream, Stream) and is_idle() and (
        get_running_loop() is not None and is_free(stream) and op.has_fast_path
        and holds(get(stream, Progress_device), Device__pool, future._pool)
    )


def await_future(self):
    """`DeviceFuture.__await__` of a future that has not been started."""
    cdef int64_t began
    cdef object op = self._op, stream = self.stream, submission = None, number
    if not may_start(self, op, stream) or not start_now(self):
        return (yield from python["DeviceFuture.__await__"](self))
    try:
        self._site = site_of_caller(0)
        submission = enqueue_fast(op, stream, self._site)
        if submission is not None:
            self._op, self._value, self._submission = None, value_of(op), submission
            note_submitted(self)
        else:
            self._entered = False
            self._begin_here(True)
    except Exception as error:
        if self._state is starting_state:
            self._fail(error)
    except BaseException as stop:
        if self._state is starting_state:
            self._stop(stop)
        raise
    finally:
        self._entered = False
    if submission is None:
        return (yield from python["DeviceFuture.__await__"](self))
    number = get(submission, Submission_sequence)
    began = began_to_wait(submission)
    try:
        if holds(submission, Submission_done, True) or (
            has_passed_soon(stream, number, submission)
        ):
            if is_turn_due():
                yield
        else:
            yield from stream.wait_longer(number, submission)
    except BaseException:
        self._seen = True
        self.detach()
        raise
    finally:
        if began:
            tell_wait("await", stream, number, submission, began)
    if holds(submission, Submission_error, None):
        if not is_verified(stream, number):
            python["Progress.verify"](stream, number)
        self._asked = self._seen = True  # nothing is left to be reported
        return self._value  # operations with a fast path defer no value
    return self.value()


cdef int note_submitted(object future) except -1:
    """`DeviceFuture._end`, of a future that has waited for nothing."""
    with starting_lock:
        future._state = submitted_state
        event = future._turn
    if event is not None:
        event.set_done()
    return 0


cdef bint start_now(object future) except -1:
    """Note that this thread starts a future, unless another one has."""
    with starting_lock:
        if future._state is not idle_state:
            return False
        future._state = starting_state
        future._starter = PyThread_get_thread_ident()
        future._entered = future._awaited = True
    return True
