# An operation that runs: submitted, awaited, waited for, or gathered.

cdef object core_of(object op):
    """The `TypedCall` of a launch; None if it has none."""
    form = get(op, Launch__form)
    return None if form is None else get(form, FastCall_core)


cdef object plan_for(object op, TypedCall core, object submission):
    """The plan of a launch whose name is added to the submission's; None if there is none."""
    cdef object launcher = get(op, Launch__launcher), names, launched, plan = get(op, Launch__plan)
    cdef object device = get(
        get(get(submission, Submission_stream), Progress_device), Device_backend
    )
    if plan is not None and PyTuple_GET_ITEM(plan, 0) == <PyObject*>device:
        plan = <object>PyTuple_GET_ITEM(plan, 1)
    else:
        plan = core.plan_of(
            launcher, device, get(op, Launch__parts), get(get(op, Launch__config), Config_extents)
        )
    if plan is None or not holds(plan, Plan_empty, False):
        return None
    # First: the message of a fault lists the launch.
    names, launched = get(plan, Plan_names), get(submission, Submission_launched)
    if not PyTuple_GET_SIZE(launched):
        put(submission, Submission_launched, names)
    elif launched[PyTuple_GET_SIZE(launched) - 1] != names[0]:
        put(submission, Submission_launched, launched + names)
    return plan


cdef int enqueue(object op, object submission) except -1:
    """`Launch.try_enqueue`: 1, 0, or 2, if only Python can tell."""
    cdef object core = core_of(op), plan
    if core is None:
        return 2
    plan = plan_for(op, core, submission)
    return plan is not None and (<TypedCall>core).enqueue_taken(
        plan, get(op, Launch__values), get(op, Launch__tensors), submission
    )


def Launch_try_enqueue(self, submission, pool):
    cdef int status = 2
    if on and isa(self, Launch) and isa(submission, Submission):
        status = enqueue(self, submission)
    return python["Launch.try_enqueue"](self, submission, pool) if status == 2 else bool(status)


cdef inline object value_of(object op):
    """The value of an operation that was enqueued on its fast path."""
    if isa(op, Launch):
        return na_tuple(get(get(op, Launch__launcher), Launcher_Result), get(op, Launch__values))
    if isa(op, Map):
        return get(op, Map__result)
    return result_of(op) if is_simple(op) else op.result()


def try_enqueue(op, stream, signal, pool=None, site=None):
    if on and not signal and isa(stream, Stream) and (
        pool is None or holds(get(stream, Progress_device), Device__pool, pool)
    ):
        return enqueue_fast(op, stream, site) if op.has_fast_path else None
    return python["try_enqueue"](op, stream, signal, pool, site)


cdef inline bint is_free(object stream) except -1:
    """Whether a stream and its device are known to be sound, and have no limits."""
    cdef object device = get(stream, Progress_device)
    return holds(stream, Progress__broken, None) and holds(device, Device_lost, None) and holds(
        device, Device_is_limited, False
    )


cdef inline bint is_of_launch(object op) noexcept:
    """Whether an operation changes, on the host, the value of a launch."""
    return isa(op, Map) and isa(get(op, Map__first), Launch)


cdef int take_changed(object op, object value, object submission) except -1:
    """`Map._take` of the value of a launch, which is no deferred one."""
    cdef object changed, function = get(op, Map__change)
    cdef Region region = Region.__new__(Region, 1)
    region.__enter__()
    try:
        changed = function(value)
    finally:
        region.close()
    if not isa(changed, Tensor) or not holds(op, Map__keep, False):
        changed = op._checked(value, changed, submission)
    put(op, Map__result, changed)
    return 0


cdef int enqueue_change(object op, object submission) except -1:
    """`Map.try_enqueue` of a launch: as `enqueue`."""
    cdef object launch = get(op, Map__first), element = get(op, Map_element)
    cdef object values = get(launch, Launch__values)
    cdef int status = enqueue(launch, submission)
    if status == 1:
        if element is None or not PyTuple_GET_SIZE(values):
            take_changed(op, value_of(launch), submission)
        else:
            put(op, Map__result, values[element])
    return status


cdef dict names_of_changes = {}  # by the launch's label, and what is called


cdef object name_of_change(object op):
    """The name of an operation that changes the value of a launch; a line that is run again has put
    it together before.
    """
    cdef object label = get(get(get(op, Map__first), Launch__launcher), Launcher_label)
    cdef object called = get(op, Map__label), function = get(op, Map__change), key, name
    if called is None:
        if type(function) is not FunctionType:
            return label + op._suffix()
        called = function.__name__, get(op, Map__keep)
    key = label, called
    name = found(names_of_changes, key)
    if name is None:
        if PyDict_Size(names_of_changes) >= MOST_KINDS:
            names_of_changes.clear()
        name = names_of_changes[key] = label + op._suffix()
    return name


cdef object enqueue_other(object op, object submission):
    """`try_enqueue` of an operation that is no launch of a kernel."""
    if isa(op, Full):
        return enqueue_full(op, submission, None)
    if isa(op, FromHost):
        return enqueue_upload(op, submission, None)
    if isa(op, ToHost):
        return enqueue_download(op, submission, None)
    if isa(op, GraphLaunch):
        return enqueue_graph(op, submission, None)
    return op.try_enqueue(submission, None)


cdef object enqueue_fast(object op, object stream, object site):
    """`try_enqueue` of an operation with a fast path, without a signal. `site`: None, the line of
    the program that runs now.
    """
    cdef object submission, name
    cdef bint is_launch = isa(op, Launch), is_change = is_of_launch(op)
    cdef int status = 2
    cdef start_s start
    if not is_free(stream):
        return None
    start.began = 0
    start.is_marked = False
    if recorder is not None:
        tell_begin(stream, &start)
    if is_launch:
        name = get(get(op, Launch__launcher), Launcher_label)
    elif is_change:
        name = name_of_change(op)
    else:
        name = name_of(op)
    submission = new_submission(stream, name, ())
    if recorder is not None:
        tell_made(submission)
    try:
        if is_launch:
            status = enqueue(op, submission)
        elif is_change:
            status = enqueue_change(op, submission)
        if status == 2:
            status = bool(enqueue_other(op, submission))
        if not status:
            if recorder is not None:
                tell_drop(submission)
            return None
        put(submission, Submission_site, site_of_caller(0) if site is None else site)
        commit(stream, submission, &start)
    except BaseException as error:
        python["note_failed_enqueue"](error, submission, stream)
        raise
    return submission


cdef inline bint is_idle() except -1:
    """Whether this thread enqueues no operation, and none waits in its queue."""
    if not on or na_busy:
        return False
    if not PyDict_Size(queued):
        return True
    line = thread_of_queue.line
    return line is None or not len(line)


cdef inline bint is_plain(object launch) except -1:
    """Whether a launch has no lazy arguments, and asks for no stream."""
    return holds(get(launch, Launch__config), Config_stream, None) and not get(launch, Launch__lazy)


cdef bint may_begin(object op, object stream) except -1:
    """Whether an operation can be enqueued on the stream now, and asks for no other one."""
    if not is_idle() or not isa(stream, Stream):
        return False
    if is_plain(op) if isa(op, Launch) else is_simple(op):
        return True
    own = op.stream
    return own is None or own is stream


cdef object begin_op(object op, object stream, object site):
    """The submission of an operation that may begin, consumed; None, if it has no fast path."""
    if isa(op, Launch) and holds(op, Launch__unused, True):
        put(op, Launch__unused, False)
        return enqueue_fast(op, stream, site) if holds(op, Launch_has_fast_path, True) else None
    if is_simple(op) and holds(op, SimpleOp__unused, True):
        put(op, SimpleOp__unused, False)
        if isa(op, FromHost) and not holds(op, FromHost_has_fast_path, True):
            return None
        return enqueue_fast(op, stream, site)
    if isa(op, Map) and holds(op, Map__unused, True):
        put(op, Map__unused, False)
        return enqueue_fast(op, stream, site) if holds(op, Map_has_fast_path, True) else None
    op.consume()
    return enqueue_fast(op, stream, site) if op.has_fast_path else None


def Runs_async_on(self, stream=None):
    cdef object submission, value
    if not may_begin(self, stream):
        return python["Runs.async_on"](self, stream)
    submission = begin_op(self, stream, None)
    if submission is None:
        value = python["enqueue_by_steps"](self, stream, None, site_of_caller(0))[1]
    else:
        put(submission, Submission_detached, True)
        value = value_of(self)
    if not isa(self, Launch) and not is_simple(self):
        check_there(value, "async_on")
    return value


def Runs_sync_on(self, stream):
    cdef object submission
    if not may_begin(self, stream):
        return python["Runs.sync_on"](self, stream)
    submission = begin_op(self, stream, None)
    if submission is None:
        return python["sync_by_steps"](self, stream, site_of_caller(0))
    wait_for_submission(submission, stream)
    return value_of(self)


cdef int wait_for_submission(object submission, object stream) except -1:
    """Block until a stream is idle; raise the submission's error."""
    try:
        Stream_wait_until_idle(stream)
    except Exception as error:
        python["_note_failure"](error, submission)
        raise
    if not holds(submission, Submission_error, None):
        submission.raise_error()
    return 0


cdef object current_device = None  # the context variable of `use_device`
cdef object default_device = None


def know_devices(variable, device):
    """Note the context variable that has the device of `use_device`, and the default device."""
    global current_device, default_device
    current_device, default_device = variable, device


cdef object device_of(object op):
    """The device of an operation that names no stream, by its tensors, else the current one; None,
    if only Python can tell.
    """
    cdef object core, tensors, tensor = None
    if is_of_launch(op):
        op = get(op, Map__first)
    if isa(op, Launch):
        core = core_of(op)
        if core is None or not is_plain(op):
            return None
        tensors = get(op, Launch__tensors)
        if PyTuple_GET_SIZE(tensors):
            tensor = <object>PyTuple_GET_ITEM(tensors, (<TypedCall>core).home)
    elif isa(op, ToHost):
        tensor = get(op, ToHost__tensor)
    elif isa(op, LocalOp):
        return get(get(op, LocalOp__plan), CollectivePlan_devices)[0]
    elif isa(op, GraphLaunch) or not is_simple(op):
        return None
    if tensor is None:
        return get_value(current_device) or default_device
    # Exactly one of these classes, which have the slots; anything else is Python's business.
    if isa(tensor, Tensor) or isa(tensor, MappedTensor):
        return get(tensor, DeviceArray_device)
    return None


cdef object known_stream_for(object op):
    """The stream of an operation, if the device has been used before, and no Python is needed."""
    cdef object device = device_of(op), policy, stream
    if device is not None:
        policy = get(device, Device__policy)
        if isa(policy, StreamPoolRoundRobin):
            stream = next(get(policy, StreamPoolRoundRobin__turn))
            if isa(stream, Stream) and holds(stream, Progress_device, device):
                return stream
    return None


cdef object stream_for(object op):
    """`run.stream_for`, without a policy of the caller."""
    cdef object stream = known_stream_for(op)
    if stream is not None:
        return stream
    try:
        return python["stream_for"](op)
    except BaseException:
        op.consume()
        raise


cdef inline bint is_unused(object op) except -1:
    """Whether an operation can be claimed."""
    return holds(op, Launch__unused, True) if isa(op, Launch) else bool(op._unused)


def Runs_sync(self):
    cdef object stream
    if not is_idle() or not is_unused(self):
        return python["Runs.sync"](self)
    stream = stream_for(self)
    if not isa(stream, Stream):
        self.consume()
        return python["_sync"](self, stream)
    return Runs_sync_on(self, stream)


def Runs___await__(self):
    return await_fast(self) if on and self.has_fast_path else python["Runs.__await__"](self)


def await_fast(op):
    """`run.await_on_loop` of an operation with a fast path."""
    cdef int64_t began
    if not is_idle() or get_running_loop() is None or not is_unused(op):
        return (yield from python["await_on_loop"](op))
    stream = known_stream_for(op)
    if stream is None:
        if not python["is_started"](op):
            return (yield from python["await_on_loop"](op))
        stream = stream_for(op)
    if not isa(stream, Stream):
        return (yield from python["await_on_loop"](op))
    submission = begin_op(op, stream, None)
    if submission is None:
        return (yield from python["await_by_steps"](op, stream))
    number = get(submission, Submission_sequence)
    began = began_to_wait(submission)
    try:
        if holds(submission, Submission_done, True) or has_passed_soon(stream, number, submission):
            if is_turn_due():
                yield
        else:
            yield from stream.wait_longer(number, submission)
    finally:
        if began:
            tell_wait("await", stream, number, submission, began)
    if not holds(submission, Submission_error, None):
        submission.raise_error()
    if not is_verified(stream, number):
        python["Progress.verify"](stream, number)
    return value_of(op)


def _start(op, site):
    cdef object stream, submission
    if not isa(op, Launch) and not getattr(op, "has_fast_path", False):
        return python["_start"](op, site)
    if not is_idle() or not is_unused(op):
        return python["_start"](op, site)
    stream = known_stream_for(op)
    if stream is None:
        if not python["is_started"](op):
            return python["_start"](op, site)
        stream = stream_for(op)
    if not isa(stream, Stream):
        return python["_wanted"](python["consume_op"](op), stream, site)
    submission = begin_op(op, stream, site)
    if submission is None:
        return python["_wanted"](op, stream, site)
    return submission


cdef bint has_no_error(object submission) except -1:
    """`_has_no_error`; False also if only Python can tell."""
    return isa(submission, Submission) and holds(submission, Submission_done, True) and (
        holds(submission, Submission_error, None)
        and <int64_t>get(submission, Submission_sequence)
        <= <int64_t>get(get(submission, Submission_stream), Progress_verified)
    )


def _Enqueued_value(self):
    cdef object submission
    if on and isa(self, _Enqueued):
        submission = get(self, _Enqueued_submission)
        if has_no_error(submission) and is_verified(
            get(submission, Submission_stream), get(submission, Submission_sequence)
        ):
            return value_of(get(self, _Enqueued_op))
    return python["_Enqueued.value"](self)


def add_values(tuple ops, list started, list values):
    cdef Py_ssize_t i
    if not on:
        return python["add_values"](ops, started, values)
    while PyList_GET_SIZE(values) < PyList_GET_SIZE(started):
        i = PyList_GET_SIZE(values)
        if not has_no_error(started[i]):
            return
        values.append(value_of(ops[i]))
