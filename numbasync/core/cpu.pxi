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
    cdef object engine = get(stream, CpuStream_engine)
    return (
        not PyObject_Size(get(stream, CpuStream__queue)) and holds(engine, Engine_stepper, None)
        and holds(engine, Engine_stopping, False)
    ) and not engine.is_forking


def CpuStream_launch(self, work, args, queue):
    cdef object short
    if not on or queue is not None or not isa(self, CpuStream) or not isa(work, Work):
        return python["CpuStream.launch"](self, work, args, queue)
    short = get(work, Work_prepared)
    if not isa(short, ShortLaunch) or not holds(short, ShortLaunch_is_plain, True) or (
        not holds(get(self, CpuStream_engine), Engine_checks, None)
    ):
        return python["CpuStream.launch"](self, work, args, queue)
    # A stepped engine runs nothing at once; that is seen without the lock.
    if holds(get(self, CpuStream_engine), Engine_stepper, None):
        take_state()
        try:  # held until the launch has ended: nothing else has to be given back
            if runs_at_once(self):
                add(counters, Counters_launches, 1)
                try:
                    run_short(short, args)
                except Exception as error:
                    queue = self.open()
                    queue.error = error
                return queue
        finally:
            give_state()
    queue = PyType_GenericAlloc(classes[CpuQueue], 0)
    put(queue, CpuQueue__stream, self)
    put(queue, CpuQueue_error, None)
    add(counters, Counters_launches, 1)
    push_later(self, queue, short, args)
    return queue


def ShortLaunch_run(self, args):
    if not on or not isa(self, ShortLaunch) or not holds(self, ShortLaunch_is_plain, True):
        return python["ShortLaunch.run"](self, args)
    run_short(self, args)


cdef int run_short(object short, args) except -1:
    """`ShortLaunch.run`, where no memory has to be filled."""
    cdef object memory = getattr(own_memory, "memory", None), value
    cdef object run = get(short, ShortLaunch__entry_point)
    cdef tuple extents = get(short, ShortLaunch__extents), all
    cdef Py_ssize_t i, fixed = PyTuple_GET_SIZE(extents)
    if memory is None or get(memory, BlockMemory_each) < get(short, ShortLaunch__nbytes):
        memory = python["memory_of_thread"](get(short, ShortLaunch__nbytes))
    all = new_tuple(fixed + 2 + len(args))
    for i in range(PyTuple_GET_SIZE(all)):
        if i < fixed:
            value = <object>PyTuple_GET_ITEM(extents, i)
        elif i < fixed + 2:
            value = get(memory, BlockMemory_address) if i == fixed else zero
        else:
            value = args[i - fixed - 2]
            if isa(value, CpuArray):
                value = get(value, CpuArray_array)
            elif type(value) is not int and type(value) is not float:
                value = python["_value"](value)
        put_item(all, i, value)
    complete(all)
    # Last, since a short launch of a finaliser uses the same memory.
    (<int64_t*><uintptr_t>get(memory, BlockMemory_address))[0] = 0  # no error
    try:
        run(*all)
    except Exception as error:
        get(short, ShortLaunch__kernel).fail(memory, error)
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
        get(stream, CpuStream__queue).append(entry)
        add(stream, CpuStream__pushed, 1)
        if holds(stream, CpuStream__owned, False):
            if holds(get(stream, CpuStream_engine), Engine_stepper, None):
                has_thread = stream._be_scheduled()
            else:
                has_thread = schedule(stream, get(stream, CpuStream_engine))
                put(stream, CpuStream__owned, True)
            if not has_thread:
                get(stream, CpuStream_engine).withdraw(stream)
                get(stream, CpuStream__queue).pop()
                add(stream, CpuStream__pushed, -1)
                raise get(stream, CpuStream_engine).refusal()
    finally:
        try:
            if holds(stream, CpuStream__owned, False) and PyObject_Size(
                get(stream, CpuStream__queue)
            ):
                stream._be_scheduled()  # ^C came while Python's `schedule` ran
        finally:
            give_state()
    return 0


cdef bint schedule(object stream, object engine) except -1:
    """`Engine.schedule`."""
    if holds(engine, Engine_stepper, None):
        return engine.schedule(stream)
    if stream not in get(engine, Engine__ready):
        get(engine, Engine__ready).append(stream)
    return True


def CpuStream_run_one(self):
    return run_one(self) if on and isa(self, CpuStream) else python["CpuStream.run_one"](self)


cdef bint run_one(object stream) except -1:
    """`CpuStream.run_one`."""
    cdef object entries = get(stream, CpuStream__queue)
    cdef bint goes_on
    if not PyObject_Size(entries) or type(entries[0]) is not LaterLaunch or not holds(
        get(stream, CpuStream_engine), Engine_stopping, False
    ):
        return python["CpuStream.run_one"](stream)
    entry = entries[0]  # this thread alone runs the stream
    entry()
    entries[0] = entry = None  # this may be the last reference to the operands
    take_state()
    try:
        entries.popleft()
        goes_on = PyObject_Size(entries) > 0
        put(stream, CpuStream__owned, goes_on)
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
    if not isa(get(self, Stepper__engine), Engine):
        return python["Stepper.step"](self)
    engine = get(self, Stepper__engine)
    ready = get(engine, Engine__ready)
    if PyObject_Size(ready) != 1 or not holds(engine, Engine_drawn, None):
        if not PyObject_Size(ready) and holds(engine, Engine_drawn, None):
            return False
        return python["Stepper.step"](self)
    if get(self, Stepper__lock).locked():
        return python["Stepper.step"](self)
    with get(self, Stepper__lock):
        put(self, Stepper__thread, PyThread_get_thread_ident())
        take_state()
        try:
            ready = get(engine, Engine__ready)  # which another thread may have replaced
            if PyObject_Size(ready) != 1:
                stream = engine.draw(self.draw)
            else:
                while get(self, Stepper__draw_bits)(1):  # as `draw` does
                    pass
                put(engine, Engine_drawn, ready[0])
                stream = ready.popleft()
        finally:
            give_state()
        if stream is None:
            return False
        add(self, Stepper_steps, 1)
        goes_on = run_one(stream) if isa(stream, CpuStream) else stream.run_one()
        take_state()
        try:
            goes_on = goes_on and not schedule(stream, engine)
            put(engine, Engine_drawn, None)
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
    stepper = get(get(self, CpuStream_engine), Engine_stepper)
    if stepper is not None:
        step(stepper) if isa(stepper, Stepper) else stepper.step()
    return get(self, CpuStream__word)


def CpuStream_spin_poll(self):
    if not on or not isa(self, CpuStream):
        return python["CpuStream.spin_poll"](self)
    return not PyObject_Size(get(self, CpuStream__queue))
