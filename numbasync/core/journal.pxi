# The journal of a trace: `device.journal.Journal`, in memory that the collector does not see.

cdef extern from *:
    """
    #if defined(__GNUC__)
    #define na_prefetch(place) __builtin_prefetch(place, 1)
    #else
    #define na_prefetch(place) (void)(place)
    #endif
    """
    void na_prefetch(void*) noexcept
    ctypedef struct PyThreadState:
        PyObject* context
        uint64_t id
    PyThreadState* PyThreadState_Get() noexcept

cdef enum:
    of_name, of_launched, of_site, of_device, of_who
    OF_A_NOTE
    FIRST_ROOM = 16384
    AHEAD = 8  # notes that are written before this one

cdef struct note_s:  # small: memory that was never touched costs more than all else
    PyObject* held[OF_A_NOTE]
    int64_t began, ended, number, nbytes, copied
    int stream
    bint is_passed, has_more

cdef struct start_s:  # of an operation that is being enqueued on its fast path
    int64_t began  # 0: nobody hears of it
    bint is_idle, is_marked


cdef object names = None  # of a thread and its task
cdef uint64_t state_of_names = 0  # the state of that thread
cdef PyObject* context_of_names = NULL  # the context variables of that task
cdef object loop_of_names = None  # None: no loop runs
cdef PyObject* task_of_names = NULL  # compared, and nothing else
# By loop; None: this version of Python has it elsewhere.
cdef dict current_tasks = getattr(asyncio_core, "_current_tasks", None)


cdef inline int know_who() except -1:
    """Know the names of the thread and the task, unless they are those of the last note. To ask
    for the loop takes long; tasks of one loop may have the same context variables.
    """
    cdef PyThreadState* here = PyThreadState_Get()
    if context_of_names == here.context and state_of_names == here.id and (
        loop_of_names is None or runs_task_of_names()
    ):
        return 0
    return look_who(here)


cdef inline bint runs_task_of_names() except -1:
    """Whether the loop runs the task whose name is known."""
    if current_tasks is not None:
        return PyDict_GetItemWithError(current_tasks, loop_of_names) == task_of_names
    task = current_task(loop_of_names)
    return <PyObject*>task == task_of_names


cdef int look_who(PyThreadState* here) except -1:
    global names, state_of_names, context_of_names, loop_of_names, task_of_names
    cdef object loop = get_running_loop()
    cdef object task = None if loop is None else current_task(loop)
    cdef PyObject* before
    running = python["who"]()  # which may run any code
    before = context_of_names
    Py_XINCREF(here.context)
    context_of_names, state_of_names = here.context, here.id
    loop_of_names, names = loop, running
    task_of_names = NULL if task is None else <PyObject*>task
    Py_XDECREF(before)
    return 0


cdef int forget_who() except -1:
    global state_of_names, context_of_names, loop_of_names
    cdef PyObject* before = context_of_names
    state_of_names, context_of_names, loop_of_names = 0, NULL, None
    Py_XDECREF(before)
    return 0


cdef class Journal:
    """See `device.journal.Journal`."""
    cdef note_s* notes
    cdef Py_ssize_t most, room, place  # of the next note
    cdef readonly int64_t count
    cdef public int64_t due
    cdef dict more  # what the writers of a few notes have added, by the notes' numbers

    def __cinit__(self, most):
        self.most, self.more = most, {}
        self.grow(min(self.most, FIRST_ROOM))

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(min(self.count, self.room)):
            forget(&self.notes[i])
        PyMem_Free(self.notes)

    cdef int grow(self, Py_ssize_t room) except -1:
        cdef void* notes = PyMem_Realloc(self.notes, room * sizeof(note_s))
        if notes == NULL:
            raise MemoryError
        self.notes = <note_s*>notes
        memset(&self.notes[self.room], 0, (room - self.room) * sizeof(note_s))
        self.place, self.room = self.room, room
        return 0

    def add(self, submission, int64_t began, int64_t ended, int64_t passed, more):
        if isa(submission, Submission):
            self.note(submission, began, ended, passed != 0, more)

    def add_wait(self, how, stream, sequence, submission, int64_t began):
        self.note_wait(how, stream, sequence, submission, began)

    cdef int note_wait(
        self, object how, object stream, object sequence, object submission, int64_t began
    ) except -1:
        cdef object name = submission.name if submission is not None else ""
        cdef note_s* new = self.next()
        self.fill(new, name, (), None, stream, began, na_ns())
        new.number = sequence
        return self.end(new, how)

    cdef int note(
        self, object submission, int64_t began, int64_t ended, bint is_passed, object more
    ) except -1:
        cdef note_s* new = self.next()
        self.fill(
            new, get(submission, Submission_name), get(submission, Submission_launched),
            get(submission, Submission_site),
            get(submission, Submission_stream), began, ended,
        )
        new.number = get(submission, Submission_sequence)
        new.nbytes = 0 if holds(submission, Submission_nbytes, zero) else get(
            submission, Submission_nbytes
        )
        new.copied = 0 if holds(submission, Submission_copied, zero) else get(
            submission, Submission_copied
        )
        new.is_passed = is_passed
        return self.end(new, more)

    cdef note_s* next(self) except NULL:
        """The place of the next note, which is empty. No code of Python runs until `end`."""
        cdef note_s old
        know_who()
        while True:
            if self.place == self.room:
                if self.room < self.most:
                    self.grow(min(self.most, 2 * self.room))
                else:
                    self.place = 0
            na_prefetch(&self.notes[self.place + AHEAD])  # a hint, also behind the end
            if self.notes[self.place].held[of_name] == NULL:
                return &self.notes[self.place]
            old = self.notes[self.place]
            memset(&self.notes[self.place], 0, sizeof(note_s))
            if old.has_more:
                self.more.pop(self.count - self.room, None)
            forget(&old)  # here a device, and what not, may end, and note something itself

    cdef inline void fill(
        self, note_s* new, object name, object launched, object site, object stream, int64_t began,
        int64_t ended,
    ) noexcept:
        hold(new, of_name, name)
        hold(new, of_launched, launched)
        hold(new, of_site, site)
        hold(new, of_device, get(stream, Progress_device))
        hold(new, of_who, names)
        new.stream = get(stream, Stream_number)
        new.began, new.ended = began, ended

    cdef inline int end(self, note_s* new, object more) except -1:
        self.count += 1
        self.place += 1
        if more is not None:
            new.has_more = True
            self.more[self.count - 1] = more
        return 0

    def rows(self):
        """See `device.journal.Journal.rows`."""
        cdef list rows = []
        cdef int64_t at = 0
        cdef note_s note
        cdef int i
        while at < self.count:  # others may go on
            at = max(at, self.count - self.room)
            note = self.notes[at % self.room]
            for i in range(OF_A_NOTE):
                Py_XINCREF(note.held[i])
            try:
                more = self.more.get(at) if note.has_more else None
                if note.held[of_name] != NULL:  # else another thread is replacing it
                    rows.append(row_of(&note, more))
            finally:
                forget(&note)
            at += 1
        return rows


cdef object row_of(note_s* note, object more):
    cdef object thread, task
    thread, task = <object>note.held[of_who]
    return (
        <object>note.held[of_name], <object>note.held[of_launched], <object>note.held[of_site],
        <object>note.held[of_device], note.stream, note.number, note.nbytes, note.copied, thread, task,
        more, note.began, note.ended, note.ended if note.is_passed else 0,
    )


cdef inline void hold(note_s* note, int i, object value) noexcept:
    Py_INCREF(value)
    note.held[i] = <PyObject*>value


cdef inline void forget(note_s* note) noexcept:
    cdef int i
    for i in range(OF_A_NOTE):
        Py_XDECREF(note.held[i])


# --- what the core tells ---

cdef object recorder = None  # of the open trace
cdef Journal journal = None  # its journals
cdef Journal waits = None


def know_recorder(new):
    """Note what hears of operations; None: nobody does."""
    global recorder, journal, waits
    recorder = new
    journal = None if new is None else new.journal
    waits = None if new is None else new.waits
    forget_who()


cdef inline bint is_passed(object queue) noexcept:
    """Whether a stream of the CPU device has done all, and so has passed what is enqueued now."""
    return isa(queue, CpuStream) and holds(get(queue, CpuStream_engine), Engine_stepper, None) and (
        not PyObject_Size(get(queue, CpuStream__queue))
    )


cdef int tell_begin(object stream, start_s* start) except -1:
    """The host begins to enqueue an operation on its fast path."""
    cdef object held = recorder, queue = get(stream, Progress_backend)
    cdef Journal notes = journal
    if held is None or notes is None:
        return 0
    start.began = na_ns()
    start.is_idle = is_passed(queue)
    if not start.is_idle and (notes.due <= start.began or is_stepped(queue)):
        start.is_marked = True
        held.mark(stream)
    return 0


cdef int tell_made(object submission) except -1:
    """`begin`, of a recorder that has no journal."""
    cdef object held = recorder
    if held is not None and journal is None:
        held.begin(submission)
    return 0


cdef int tell_drop(object submission) except -1:
    cdef object held = recorder
    if held is not None and journal is None:
        held.drop(submission)
    return 0


cdef inline bint is_stepped(object queue) noexcept:
    return isa(queue, CpuStream) and not holds(get(queue, CpuStream_engine), Engine_stepper, None)


cdef int tell_commit(object submission, start_s* start) except -1:
    """The whole operation is enqueued."""
    cdef object held = recorder, stream
    cdef Journal notes = journal
    cdef int64_t now
    cdef bint has_passed
    if held is None:
        return 0
    if start == NULL or notes is None:
        held.commit(submission)
    elif start.began:
        stream, now = get(submission, Submission_stream), na_ns()
        has_passed = start.is_idle and (
            holds(submission, Submission_queue, None) or is_passed(get(stream, Progress_backend))
        )
        notes.note(submission, start.began, now, has_passed, None)
        if start.is_marked:
            held.mark(stream)
        elif start.is_idle and not has_passed and notes.due <= now:
            held.mark(stream, start.began)
    return 0


cdef PyObject* reached = NULL  # the last submission that was told to be; compared, and nothing else


cdef int tell_reach(object submission) except -1:
    """The next thing on the stream is work of a submission; told once, or when a mark is due."""
    global reached
    cdef object held = recorder
    cdef Journal notes = journal
    if held is None:
        return 0
    if notes is None or notes.due <= na_ns() or (
        reached != <PyObject*>submission and is_passed(
            get(get(submission, Submission_stream), Progress_backend)
        )
    ):
        reached = <PyObject*>submission
        held.reach(submission)
    return 0


cdef inline int64_t began_to_wait(object submission) noexcept:
    """When a task begins to wait; 0: nobody hears of it, or there is nothing to wait for."""
    return 0 if recorder is None or holds(submission, Submission_done, True) else na_ns()


cdef int tell_wait(
    object how, object stream, object sequence, object submission, int64_t began
) except -1:
    """A wait has ended; or, without `how`, a stream has passed a number."""
    cdef object held = recorder
    cdef Journal notes = waits
    if not began or held is None:
        return 0
    if notes is not None:
        notes.note_wait(how, stream, sequence, submission, began)
    elif how is None:
        held.passed(stream, sequence)
    elif submission is None:
        held.blocked(stream, sequence, began)
    else:
        held.awaited(submission, began)
    return 0
