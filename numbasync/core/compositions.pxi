# The operations of a `zip`, and of a chain of `then`, enqueued in one submission.

cdef object submission_of(object ctx):
    """The submission of a plain context, to which children may be added here; else None."""
    if on and isa(ctx, Context) and ctx.admission is None:
        submission = ctx.submission
        return submission if isa(submission, Submission) else None
    return None


cdef int enqueue_child(object op, object ctx, object submission) except -1:
    """`Context.try_enqueue`; the caller notes that a `submission` that is not None is used."""
    cdef int status = 2
    if recorder is not None and submission is not None:
        tell_reach(submission)
    if submission is not None and isa(op, Launch) and holds(op, Launch_has_fast_path, True):
        status = enqueue(op, submission)
    return bool(op.has_fast_path and ctx.try_enqueue(op)) if status == 2 else status


cdef enum:
    CHUNK = 32  # launches
    CHUNK_BYTES = 8192  # of arguments


cdef Py_ssize_t enqueue_launches(tuple ops, Py_ssize_t first, object submission) except -1:
    """Enqueue launches from position `first` on, as many as go together, and release the
    interpreter lock once for all of them; how many were enqueued.
    """
    cdef object op, core, stream = get(submission, Submission_stream)
    cdef object device = get(stream, Progress_device)
    cdef object backend = get(device, Device_backend), queue = get(stream, Progress_backend), plan
    cdef tuple tensors
    cdef DriverStream calls = calls_of(queue)
    cdef Lock lock = get(device, Device_submit_lock)
    cdef LaunchRecord record = None
    cdef list storages = [], cores = []
    cdef list records = []  # which another thread may drop from the stream
    cdef object launcher = None, parts = None, extents = None  # of the launch before
    cdef launch_s* launches[CHUNK]
    cdef char* arguments[CHUNK]
    cdef char block[CHUNK_BYTES]
    cdef Py_ssize_t i, a = 0, before, used = 0
    cdef int count = 0, launched
    if recorder is not None and calls is not None:
        tell_reach(submission)
    if calls is None:
        return 0
    lock.take()
    try:
        while count < CHUNK and first + count < PyTuple_GET_SIZE(ops):
            op = ops[first + count]
            core = None
            if isa(op, Launch) and holds(op, Launch_has_fast_path, True):
                core = core_of(op)
            if core is None:
                break
            if not (
                holds(op, Launch__launcher, launcher) and holds(op, Launch__parts, parts)
                and holds(get(op, Launch__config), Config_extents, extents) and record is not None
            ):
                plan = plan_for(op, core, submission)
                record = None if plan is None else calls.record_of(queue, get(plan, Plan_work))
                launcher, parts = get(op, Launch__launcher), get(op, Launch__parts)
                extents = get(get(op, Launch__config), Config_extents)
                records.append(record)
            if record is None or used + <Py_ssize_t>record.launch.size > CHUNK_BYTES:
                break
            before = PyList_GET_SIZE(storages)
            tensors = get(op, Launch__tensors)
            if not (<TypedCall>core).check(tensors, stream, backend, True, storages) or (
                (<TypedCall>core).pack(get(op, Launch__values), tensors, record, None) != 1
            ):
                del storages[before:]
                break
            arguments[count], launches[count] = block + used, &record.launch
            memcpy(block + used, record.buffer, record.launch.size)
            used += (record.launch.size + 15) // 16 * 16
            cores.append(core)
            count += 1
        if count == 0:
            return 0
        keep(submission, storages[:])
        if na_is_elsewhere(calls.ordinal):
            enter(calls.device)
        launched = calls.launch(launches, arguments, count)
        for i in range(launched):
            a = (<TypedCall>cores[i]).note(storages, a, submission, stream)
        if launched < count:
            fail(calls.result, "cuLaunchKernel")
    finally:
        lock.give()
    return count


def Submission_launch_all(self, launches):
    cdef object queue = None
    cdef DriverStream calls = None
    cdef Py_ssize_t i = 0
    if on and isa(self, Submission) and type(launches) is list:
        queue = get(get(self, Submission_stream), Progress_backend)
        calls = calls_of(queue)
    if calls is not None:
        i = launch_list(calls, queue, launches)
    if i < len(launches):
        python["Submission.launch_all"](self, launches[i:])


cdef Py_ssize_t launch_list(DriverStream calls, object queue, list launches) except -1:
    """Make launches by the driver, and release the interpreter lock once for `CHUNK` of them; how
    many were made. The next one needs Python code: it has no record, or its arguments do not fit.
    """
    cdef LaunchRecord record = None
    cdef list records = []  # which another thread may drop from the stream
    cdef tuple arguments, launch
    cdef launch_s* ready[CHUNK]
    cdef char* packed[CHUNK]
    cdef char block[CHUNK_BYTES]
    cdef Py_ssize_t i, made = 0, used
    cdef int count
    if na_is_elsewhere(calls.ordinal):
        enter(calls.device)
    for launch in launches:
        record = calls.record_of(queue, launch[0])
        if record is None:
            break
        records.append(record)
        arguments = launch[1]
        for i in range(record.count):
            if is_array(record.code[i]):
                packed_of(arguments[i])  # Python code may make them: before a buffer is used
    while made < len(records):
        count, used = 0, 0
        while count < CHUNK and made + count < len(records):
            record, arguments = records[made + count], launches[made + count][1]
            if used + <Py_ssize_t>record.launch.size > CHUNK_BYTES or not record.packs(arguments):
                break
            ready[count], packed[count] = &record.launch, block + used
            memcpy(block + used, record.buffer, record.launch.size)
            used += (record.launch.size + 15) // 16 * 16
            count += 1
        if count == 0:
            break
        made += calls.launch(ready, packed, count)
        if calls.result != 0:
            fail(calls.result, "cuLaunchKernel")
    return made


def enqueue_leading(ctx, tuple ops, list values):
    cdef Py_ssize_t i = PyList_GET_SIZE(values), together
    cdef bint used = False
    cdef object submission = submission_of(ctx), op
    try:
        while i < PyTuple_GET_SIZE(ops):
            together = 0 if submission is None else enqueue_launches(ops, i, submission)
            for i in range(i, i + together):
                values.append(value_of(ops[i]))
            i = PyList_GET_SIZE(values)
            if together == 0:
                op = ops[i]
                if not enqueue_child(op, ctx, submission):
                    break
                i += 1
                used = used or isa(op, Launch)  # the context notes other work, if there is any
                values.append(value_of(op))
            used = used or together > 0
    finally:
        note_use(ctx, submission, used)


cdef int note_use(object ctx, object submission, bint used) except -1:
    """Note that a context is used, if something was enqueued in it, also before an error."""
    if submission is not None and (used or PyList_GET_SIZE(get(submission, Submission_keep_alive))):
        ctx._used = True
    return 0


def first_of(op, list links):
    return first_of_chain(op, links) if on else python["first_of"](op, links)


cdef object first_of_chain(object op, list links):
    while isa(op, Then) or not isa(op, Launch) and op.is_link:
        links.append(op)
        op = get(op, Then__first) if isa(op, Then) else op._first
    return op


def enqueue_chain(ctx, op, list links):
    cdef object value = None, submission = submission_of(ctx)
    cdef bint used = False
    try:
        while op is not None:
            op = first_of_chain(op, links)
            if not enqueue_child(op, ctx, submission):
                return op, None
            used = used or isa(op, Launch)  # the context notes other work, if there is any
            op, value = follow_links(ctx, links, value_of(op))
        return None, value
    finally:
        note_use(ctx, submission, used)


def is_later(value):
    return has_later(value) if on else python["is_later"](value)


cdef bint has_later(object value) except -1:
    """Whether a value is deferred, or contains a deferred value."""
    cdef list pending
    if not PyTuple_CheckExact(value):
        return isa(value, Later)
    pending = [value]
    while pending:  # no recursion: a value of the program may be nested as deep as it likes
        for item in <tuple>pending.pop():
            if isa(item, Later):
                return True
            if PyTuple_CheckExact(item):
                pending.append(item)
    return False


cdef int check_there(object value, object who) except -1:
    if has_later(value):
        python["check_there"](value, who)
    return 0


cdef int IS_ASYNC = CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE  # as in `operands`


def DeviceOp_map(self, change):
    cdef object op
    if not on or not isa(self, Launch) or not holds(self, Launch__unused, True) or (
        type(change) is not FunctionType or change.__code__.co_flags & IS_ASYNC
        or not holds(get(self, Launch__config), Config_stream, None)
    ):
        return python["DeviceOp.map"](self, change)
    op = PyType_GenericAlloc(classes[Map], 0)
    put(op, Map__first, self)
    put(op, Map__change, change)
    put(op, Map__site, get(self, Launch__site))
    for i in (Map__label, Map_element):
        put(op, i, None)
    put(op, Map__keep, False)
    put(op, Map__links, 1)
    put(op, Map_has_fast_path, get(self, Launch_has_fast_path))
    put(self, Launch__unused, False)
    put(op, Map__unused, True)
    return op


def follow_links(ctx, list links, value):
    cdef object link
    if not on:
        return python["follow_links"](ctx, links, value)
    while links:
        link = links.pop()
        if not isa(link, Then) or not holds(link, Then_is_plain, True):
            links.append(link)
            return python["follow_links"](ctx, links, value)
        check_there(value, link)
        value = get(link, Then__then)(value)
        if isa(value, Launch) and is_plain(value) and holds(value, Launch__unused, True):
            put(value, Launch__unused, False)
            return value, None
        return link.child(ctx, value), None
    return None, value
