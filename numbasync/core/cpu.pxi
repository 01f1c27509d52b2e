# Short launches on the CPU device, which the submitting thread runs.

cdef object take_state = None, give_state = None  # of the lock of all streams
cdef object changes = None  # the condition with that lock
cdef object own_memory = None  # thread-local


def know_workers(state, changed, counting):
    """Note the lock of all streams, its condition, and the `counters`."""
    global take_state, give_state, changes, counters
    take_state, give_state, changes, counters = state.acquire, state.release, changed, counting


def know_block_memory(own):
    """Note the thread-local place of the memory of blocks."""
    global own_memory
    own_memory = own


cdef inline int add(object o, int at, int more) except -1:
    put(o, at, <int64_t>get(o, at) + more)
    return 0


def CpuStream__runs_at_once(self):
    if not on or not isa(self, CpuStream):
        return python["CpuStream._runs_at_once"](self)
    return runs_at_once(self)


cdef bint runs_at_once(object stream) except -1:
    """`CpuStream._runs_at_once`."""
    cdef object engine = get(stream, at_engine)
    return (
        not PyObject_Size(get(stream, at_entries)) and holds(engine, at_stepper, None)
        and holds(engine, at_stopping, False)
    ) and not engine.is_forking


def CpuStream_launch(self, work, args, queue):
    cdef object short
    if not on or queue is not None or not isa(self, CpuStream) or not isa(work, Work):
        return python["CpuStream.launch"](self, work, args, queue)
    short = get(work, at_prepared)
    if not isa(short, ShortLaunch) or not holds(short, at_is_plain_launch, True) or (
        not holds(get(self, at_engine), at_checks, None)
    ):
        return python["CpuStream.launch"](self, work, args, queue)
    # A stepped engine runs nothing at once; that is seen without the lock.
    if holds(get(self, at_engine), at_stepper, None):
        take_state()
        try:  # held until the launch has ended: nothing else has to be given back
            if runs_at_once(self):
                add(counters, at_launches, 1)
                try:
                    run_short(short, args)
                except Exception as error:
                    queue = self.open()
                    queue.error = error
                return queue
        finally:
            give_state()
    queue = PyType_GenericAlloc(classes[CpuQueue], 0)
    put(queue, at_queue_stream, self)
    put(queue, at_queue_error, None)
    add(counters, at_launches, 1)
    push_later(self, queue, short, args)
    return queue


def ShortLaunch_run(self, args):
    if not on or not isa(self, ShortLaunch) or not holds(self, at_is_plain_launch, True):
        return python["ShortLaunch.run"](self, args)
    run_short(self, args)


cdef int run_short(object short, args) except -1:
    """`ShortLaunch.run`, where no memory has to be filled."""
    cdef object memory = getattr(own_memory, "memory", None), run = get(short, at_entry_point), value
    cdef tuple extents = get(short, at_launch_extents), all
    cdef Py_ssize_t i, fixed = PyTuple_GET_SIZE(extents)
    if memory is None or get(memory, at_each) < get(short, at_block_nbytes):
        memory = python["memory_of_thread"](get(short, at_block_nbytes))
    all = new_tuple(fixed + 2 + len(args))
    for i in range(PyTuple_GET_SIZE(all)):
        if i < fixed:
            value = <object>PyTuple_GET_ITEM(extents, i)
        elif i < fixed + 2:
            value = get(memory, at_block_address) if i == fixed else zero
        else:
            value = args[i - fixed - 2]
            if isa(value, CpuArray):
                value = get(value, at_cpu_array)
            elif type(value) is not int and type(value) is not float:
                value = python["_value"](value)
        put_item(all, i, value)
    complete(all)
    # Last, since a short launch of a finaliser uses the same memory.
    (<int64_t*><uintptr_t>get(memory, at_block_address))[0] = 0  # no error
    try:
        run(*all)
    except Exception as error:
        get(short, at_kernel).fail(memory, error)
    return 0


cdef class LaterLaunch:
    """A short launch as an entry of a stream: the first entry of its queue."""
    cdef object queue, short, args, stopped

    def __call__(self):
        if self.stopped is not None:  # what ran it was stopped, and it does not run again
            self.queue.error = self.stopped
            return
        try:
            run_short(self.short, self.args)
        except Exception as error:
            self.queue.error = error
        except BaseException as stop:  # ^C is the running thread's
            self.stopped = stop
            raise


cdef int push_later(object stream, object queue, object short, object args) except -1:
    """`CpuStream.push` of a short launch that cannot run at once."""
    cdef LaterLaunch entry = LaterLaunch.__new__(LaterLaunch)
    cdef bint has_thread
    entry.queue, entry.short, entry.args = queue, short, args
    take_state()
    try:
        get(stream, at_entries).append(entry)
        add(stream, at_pushed, 1)
        if holds(stream, at_owned, False):
            if holds(get(stream, at_engine), at_stepper, None):
                has_thread = stream._be_scheduled()
            else:
                has_thread = schedule(stream, get(stream, at_engine))
                put(stream, at_owned, True)
            if not has_thread:
                get(stream, at_engine).withdraw(stream)
                get(stream, at_entries).pop()
                add(stream, at_pushed, -1)
                raise get(stream, at_engine).refusal()
    finally:
        try:
            if holds(stream, at_owned, False) and PyObject_Size(get(stream, at_entries)):
                stream._be_scheduled()  # ^C came while Python's `schedule` ran
        finally:
            give_state()
    return 0


cdef bint schedule(object stream, object engine) except -1:
    """`Engine.schedule`."""
    if holds(engine, at_stepper, None):
        return engine.schedule(stream)
    if stream not in get(engine, at_ready):
        get(engine, at_ready).append(stream)
    return True


def CpuStream_run_one(self):
    return run_one(self) if on and isa(self, CpuStream) else python["CpuStream.run_one"](self)


cdef bint run_one(object stream) except -1:
    """`CpuStream.run_one`."""
    cdef object entries = get(stream, at_entries)
    cdef bint goes_on
    if not PyObject_Size(entries) or type(entries[0]) is not LaterLaunch or not holds(
        get(stream, at_engine), at_stopping, False
    ):
        return python["CpuStream.run_one"](stream)
    entry = entries[0]  # this thread alone runs the stream
    entry()
    entries[0] = entry = None  # this may be the last reference to the operands
    take_state()
    try:
        entries.popleft()
        goes_on = PyObject_Size(entries) > 0
        put(stream, at_owned, goes_on)
        if changes.waiting:
            changes.notify_all()
    finally:
        give_state()
    return goes_on


def Stepper_step(self):
    return step(self) if on and isa(self, Stepper) else python["Stepper.step"](self)


cdef bint step(object self) except -1:
    """`Stepper.step`, where one stream alone is ready."""
    cdef object engine, ready, stream
    cdef bint goes_on
    if not isa(get(self, at_stepped), Engine):
        return python["Stepper.step"](self)
    engine = get(self, at_stepped)
    ready = get(engine, at_ready)
    if PyObject_Size(ready) != 1 or not holds(engine, at_drawn, None):
        if not PyObject_Size(ready) and holds(engine, at_drawn, None):
            return False
        return python["Stepper.step"](self)
    if get(self, at_step_lock).locked():
        return python["Stepper.step"](self)
    with get(self, at_step_lock):
        put(self, at_thread, PyThread_get_thread_ident())
        take_state()
        try:
            ready = get(engine, at_ready)  # which another thread may have replaced
            if PyObject_Size(ready) != 1:
                stream = engine.draw(self.draw)
            else:
                while get(self, at_draw_bits)(1):  # as `draw` does
                    pass
                put(engine, at_drawn, ready[0])
                stream = ready.popleft()
        finally:
            give_state()
        if stream is None:
            return False
        add(self, at_steps, 1)
        goes_on = run_one(stream) if isa(stream, CpuStream) else stream.run_one()
        take_state()
        try:
            goes_on = goes_on and not schedule(stream, engine)
            put(engine, at_drawn, None)
            if changes.waiting:
                changes.notify_all()
        finally:
            give_state()
        if goes_on:  # and no thread can be started
            engine.run_here(stream)
        return True


def CpuStream_completed(self):
    cdef object stepper
    if not on or not isa(self, CpuStream):
        return python["CpuStream.completed"](self)
    stepper = get(get(self, at_engine), at_stepper)
    if stepper is not None:
        step(stepper) if isa(stepper, Stepper) else stepper.step()
    return get(self, at_word)


def CpuStream_spin_poll(self):
    if not on or not isa(self, CpuStream):
        return python["CpuStream.spin_poll"](self)
    return not PyObject_Size(get(self, at_entries))
