# The operations of kernel calls and of prepared launches.

cdef object DEFAULT = None  # the configuration of a call that sets nothing
cdef dict queued = None  # the submission queues that are not empty, of all threads
cdef object thread_of_queue = None


def know_operations(default, dict queues, queue):
    """Note the configuration of plain calls, the submission queues that are not empty, and the
    thread-local state of `submission_queue`.
    """
    global DEFAULT, queued, thread_of_queue
    DEFAULT, queued, thread_of_queue = default, queues, queue


cdef object call(object launcher, tuple values, object config):
    """The `Launch` of a call whose arguments are plain; None: of any other call."""
    cdef PyFrameObject* frame = PyEval_GetFrame()  # the caller of the kernel
    cdef object form, taken, core = get(launcher, Launcher__latest)
    if frame == NULL:
        return None
    if core is None or not (<TypedCall>core).fits(values):
        form = found(get(launcher, Launcher__forms), tuple(map(type, values)))
        core = None if form is None else get(form, FastCall_core)
        if core is None:
            return None
        put(launcher, Launcher__latest, core)
    taken = (<TypedCall>core).take_plain(values)
    if taken is None:
        return None
    return new_launch(
        launcher, values, config, (<TypedCall>core).in_python, <object>PyTuple_GET_ITEM(taken, 0),
        <object>PyTuple_GET_ITEM(taken, 1), None, frame,
    )


cdef object new_launch(
    object launcher, object values, object config, object form, object tensors, object parts,
    object plan, PyFrameObject* caller,
):
    """`Launch.known`."""
    cdef object cls = get(launcher, Launcher_launch_class), op
    if <PyObject*>cls != <PyObject*>classes[Launch] and not holds(config, Config_stream, None):
        cls = <object>classes[Launch]
    op = PyType_GenericAlloc(<PyTypeObject*>cls, 0)
    put(op, Launch__unused, True)
    put(op, Launch_has_fast_path, True)
    put(op, Launch__site, made_at(caller))
    put(op, Launch__launcher, launcher)
    put(op, Launch__values, values)
    put(op, Launch__config, config)
    put(op, Launch__lazy, ())
    put(op, Launch__bound, None)
    put(op, Launch__plan, plan)
    put(op, Launch__form, form)
    put(op, Launch__tensors, tensors)
    put(op, Launch__parts, parts)
    if config is not DEFAULT and not holds(config, Config_stream, None):
        op.stream = get(config, Config_stream)
    return op


cdef object call_launcher(object self, object args, PyObject* kwargs):
    """`Launcher.__call__`, which the class calls without looking it up."""
    if on and kwargs == NULL and isa(self, Launcher) and (
        PyTuple_GET_SIZE(args) == <int64_t>get(self, Launcher__plain_count)
    ):
        op = call(self, args, DEFAULT)
        if op is not None:
            return op
    return calls_of_python(self, args, kwargs)


def Configured___call__(self, /, *args, **kwargs):
    if on and not kwargs:
        launcher = self._launcher
        if isa(launcher, Launcher) and len(args) == get(launcher, Launcher__plain_count):
            op = call(launcher, args, self._config)
            if op is not None:
                return op
    return python["Configured.__call__"](self, *args, **kwargs)


cdef object change_values(object run, dict changes):
    """The arguments of a prepared launch with changed numbers; None, if something else changes."""
    cdef tuple values = get(run, PreparedLaunch__values), result
    cdef object position
    cdef Py_ssize_t i, place
    if not changes:
        return values
    result = new_tuple(PyTuple_GET_SIZE(values))
    for i in range(PyTuple_GET_SIZE(values)):
        put_item(result, i, <object>PyTuple_GET_ITEM(values, i))
    complete(result)
    for name, value in changes.items():
        position = found(get(run, PreparedLaunch__positions), name)
        if position is None:
            return None
        place = position
        if <PyObject*>value != PyTuple_GET_ITEM(values, place):
            if found(get(run, PreparedLaunch__numbers), name) is not type(value) or (
                type(value) is int and not -9223372036854775808 <= value < 9223372036854775808
            ):
                return None
            replace_item(result, place, value)
    return result


def PreparedLaunch___call__(self, /, *unnamed, **changes):
    cdef PyFrameObject* frame = PyEval_GetFrame()  # the caller
    cdef object values = None
    if on and frame != NULL and isa(self, PreparedLaunch) and not (
        unnamed or holds(self, PreparedLaunch__form, None) or holds(
            self, PreparedLaunch__plan, None
        )
    ):
        values = change_values(self, changes)
    if values is None:
        return python["PreparedLaunch.__call__"](self, *unnamed, **changes)
    return new_launch(
        get(self, PreparedLaunch__launcher), values, get(self, PreparedLaunch__config),
        get(self, PreparedLaunch__form), get(self, PreparedLaunch__tensors),
        get(self, PreparedLaunch__parts),
        get(self, PreparedLaunch__plan), frame,
    )


cdef object enqueue_prepared(object run, object stream, tuple values):
    """`enqueue_fast` of an operation of a prepared launch, which is not built; None: it has to be."""
    cdef object plan = get(run, PreparedLaunch__plan), form
    cdef object launcher = get(run, PreparedLaunch__launcher)
    cdef start_s start
    if values is None or plan is None or not is_idle() or not isa(stream, Stream) or (
        not is_free(stream)
        or not holds(
            get(stream, Progress_device), Device_backend, <object>PyTuple_GET_ITEM(plan, 0)
        )
        or not holds(get(run, PreparedLaunch__config), Config_stream, None)
    ):
        return None
    plan = <object>PyTuple_GET_ITEM(plan, 1)
    form = get(get(run, PreparedLaunch__form), FastCall_core)
    if form is None or not holds(plan, Plan_empty, False):
        return None
    start.began = 0
    start.is_marked = False
    if recorder is not None:
        tell_begin(stream, &start)
    submission = new_submission(stream, get(launcher, Launcher_label), get(plan, Plan_names))
    if recorder is not None:
        tell_made(submission)
    try:
        if not (<TypedCall>form).enqueue_taken(
            plan, values, get(run, PreparedLaunch__tensors), submission
        ):
            if recorder is not None:
                tell_drop(submission)
            return None
        put(submission, Submission_site, site_of_caller(0))
        commit(stream, submission, &start)
    except BaseException as error:
        python["note_failed_enqueue"](error, submission, stream)
        raise
    return submission


def PreparedLaunch_async_on(self, stream, /, **changes):
    cdef object values = change_values(self, changes) if isa(self, PreparedLaunch) else None
    cdef object submission = enqueue_prepared(self, stream, values)
    if submission is None:
        return python["PreparedLaunch.async_on"](self, stream, **changes)
    put(submission, Submission_detached, True)
    return na_tuple(get(get(self, PreparedLaunch__launcher), Launcher_Result), values)


def PreparedLaunch_sync_on(self, stream, /, **changes):
    cdef object values = change_values(self, changes) if isa(self, PreparedLaunch) else None
    cdef object submission = enqueue_prepared(self, stream, values)
    if submission is None:
        return python["PreparedLaunch.sync_on"](self, stream, **changes)
    wait_for_submission(submission, stream)
    return na_tuple(get(get(self, PreparedLaunch__launcher), Launcher_Result), values)


def RunsOnce___del__(self):
    # Not a bytecode where the operation was used: ^C would be printed there, and not raised.
    if not on or getattr(self, "_unused", False) is not False:
        python["RunsOnce.__del__"](self)


def Context___del__(self):
    if not on or not getattr(self, "_closed", True):
        python["Context.__del__"](self)


cdef void end_of_launch(PyObject* op) noexcept:
    """`RunsOnce.__del__` of a launch, which has nothing to say of one that was used."""
    if not holds(<object>op, Launch__unused, False):
        ends_of_python(op)


cdef void end_of_link(PyObject* op) noexcept:
    """`RunsOnce.__del__` of a `Then`."""
    if not holds(<object>op, Then__unused, False):
        ends_of_python(op)


cdef void end_of_simple(PyObject* op) noexcept:
    """`RunsOnce.__del__` of a `SimpleOp`."""
    if not holds(<object>op, SimpleOp__unused, False):
        ends_of_python(op)
