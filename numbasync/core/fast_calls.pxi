# The rules of a launch whose argument types are known: plan, access records, arguments.

cdef enum:
    NUMBER = 0
    TENSOR = 1  # the tensor itself
    MAP = 2  # a tensor map
    SHARED = 3  # a shared tensor, or a partition that is read
    PARTITION = 4  # a partition that is written
    WHOLE = 5  # a number that must fit 64 bits
    LITERAL = 6  # a number that the plan depends on
    MANY_READERS = 8

NUMBER_, TENSOR_, MAP_, SHARED_, PARTITION_, WHOLE_, LITERAL_ = (
    NUMBER, TENSOR, MAP, SHARED, PARTITION, WHOLE, LITERAL
)


cdef class FastCall:
    """`fast_path.FastCall`'s functions for one tuple of argument types.

    `codes` has NUMBER to LITERAL for each argument; `outputs` are positions.
    """
    cdef int count, arrays, written
    cdef int home  # which tensor says where the launch runs
    cdef int code[MOST]
    cdef bint output[MOST]
    cdef bint may_alias
    cdef tuple kinds
    cdef object in_python  # the generated functions
    # The fingerprints of the latest call; device, fingerprints, extents and plan of the latest
    # launch. Each is replaced as one object, since another thread may look at any time.
    cdef tuple latest_parts, latest_launch

    def __cinit__(self, tuple kinds, codes, outputs, may_alias, in_python):
        if len(kinds) > MOST:
            raise ValueError(f"{len(kinds)} arguments")
        self.kinds, self.count, self.may_alias = kinds, len(kinds), may_alias
        self.in_python = in_python
        self.latest_parts = None if kinds else ()  # which no call of no arguments would create
        for i in range(self.count):
            self.code[i] = codes[i]
            self.output[i] = i in outputs
            self.arrays += TENSOR <= codes[i] <= PARTITION
            if self.output[i] and self.written == 0:
                self.home = self.arrays - 1
            self.written += self.output[i]

    def take(self, values):
        return self.taken(values) if on else self.in_python.take(values)

    def enqueue(self, plan, values, tensors, submission):
        if on and isa(submission, Submission):
            return self.enqueued(plan, values, tensors, submission)
        return self.in_python.enqueue(plan, values, tensors, submission)

    cdef inline bint fits(self, tuple values) noexcept:
        """Whether the arguments are of these types."""
        cdef int i
        if PyTuple_GET_SIZE(values) != self.count:
            return False
        for i in range(self.count):
            if <PyObject*>Py_TYPE(<object>PyTuple_GET_ITEM(values, i)) != PyTuple_GET_ITEM(self.kinds, i):
                return False
        return True

    cdef object taken(self, tuple values):
        """The tensors and the fingerprints, or None: `FastCall.take`. A tuple that is dropped may
        have empty places.
        """
        cdef int i, j, a = 0, code
        cdef object value, tensor, part
        cdef PyObject* storage
        cdef PyObject* storages[MOST]
        cdef bint outputs[MOST]
        cdef tuple latest = self.latest_parts
        cdef tuple tensors = PyTuple_New(self.arrays), parts = None  # until one differs
        for i in range(self.count):
            code = self.code[i]
            value = <object>PyTuple_GET_ITEM(values, i)
            if code == NUMBER or code >= WHOLE:
                part = <object>PyTuple_GET_ITEM(self.kinds, i)
                if code != NUMBER and not -9223372036854775808 <= value < 9223372036854775808:
                    return None
                if code == LITERAL:
                    part = (part, value)
            else:
                tensor = value
                if code == MAP:
                    tensor = get(value, at_mapped)
                elif code == PARTITION:
                    tensor = get(value, at_tensor)
                elif code != TENSOR:
                    tensor = value.tensor
                if not isa(tensor, MappedTensor if code == MAP else Tensor):
                    return self.in_python.take(values)
                storage = na_get(<PyObject*>tensor, where[at_storage])
                if storage == <PyObject*>None or not holds(tensor, at_source, None):
                    return None
                if code == PARTITION:
                    part = get(value, at_tile_fingerprint)
                    if <int64_t>part < 0:
                        part = value.fingerprint
                else:
                    part = get(tensor, at_fingerprint)
                    if <int64_t>part < 0:
                        part = tensor.fingerprint
                storages[a], outputs[a] = storage, self.output[i]
                Py_INCREF(tensor)
                PyTuple_SET_ITEM(tensors, a, tensor)
                a += 1
            if parts is None and (latest is None or PyTuple_GET_ITEM(latest, i) != <PyObject*>part):
                parts = PyTuple_New(self.count)
                for j in range(i):
                    value = <object>PyTuple_GET_ITEM(latest, j)
                    Py_INCREF(value)
                    PyTuple_SET_ITEM(parts, j, value)
            if parts is not None:
                Py_INCREF(part)
                PyTuple_SET_ITEM(parts, i, part)
        if self.written and not self.may_alias:
            for i in range(1, a):
                for j in range(i):
                    if (outputs[i] or outputs[j]) and (
                        storages[i] == storages[j]
                        or get(<object>storages[i], at_identity) == get(<object>storages[j], at_identity)
                    ):
                        return None
        if parts is None:
            return tensors, latest  # the same object, by which `plan_of` knows it
        self.latest_parts = parts
        return tensors, parts

    cdef object plan_of(self, object launcher, object device, object parts, object extents):
        """The plan of a call, if an earlier call has created it."""
        cdef tuple latest = self.latest_launch
        if latest is not None and PyTuple_GET_ITEM(latest, 0) == <PyObject*>device and (
            PyTuple_GET_ITEM(latest, 1) == <PyObject*>parts
            and PyTuple_GET_ITEM(latest, 2) == <PyObject*>extents
        ):
            return <object>PyTuple_GET_ITEM(latest, 3)
        plan = get(launcher, at_planner).plans.get((device, parts, extents))
        if plan is not None:
            self.latest_launch = device, parts, extents, plan
        return plan

    cdef int check(
        self, tuple values, tuple tensors, object stream, object backend, LaunchRecord record,
        list args, list storages,
    ) except -1:
        """Test every storage, append it to `storages`, and pack the arguments, or without a record
        append them to `args`. 0: not now; 2: an argument does not fit, and Python says why.
        """
        cdef PyObject* tensor
        cdef PyObject* storage
        cdef PyObject* handle
        cdef object value
        cdef int i, a = 0
        for i in range(self.count):
            if not TENSOR <= self.code[i] <= PARTITION:
                value = <object>PyTuple_GET_ITEM(values, i)
                if record is None:
                    args.append(value)
                elif not record.pack(i, value):
                    return 2
                continue
            tensor = PyTuple_GET_ITEM(tensors, a)
            a += 1
            storage = peek(tensor, at_storage)
            if storage == <PyObject*>None or (
                peek(storage, at_fast_path_device) != <PyObject*>backend
            ):
                return 0
            PyList_Append(storages, <object>storage)  # which keeps the storage, from here on
            if is_busy_elsewhere(peek(storage, at_writer), stream):
                return 0
            if self.output[i] and PyDict_Size(<object>peek(storage, at_readers)):
                for reader in list((<object>peek(storage, at_readers)).values()):
                    if is_busy_elsewhere(<PyObject*>reader, stream):
                        return 0
            handle = peek(tensor, at_handle)
            value = (<object>tensor).handle if handle == <PyObject*>None else <object>handle
            if record is None:
                args.append(value)
            else:
                record.pack_array(i, value)
        return 1

    cdef Py_ssize_t note(self, list storages, Py_ssize_t a, object submission, object stream) except -1:
        """Update the access records of the storages from `a` on; the number behind them."""
        cdef PyObject* storage
        cdef object readers
        cdef int i
        for i in range(self.count):
            if not TENSOR <= self.code[i] <= PARTITION:
                continue
            storage = PyList_GET_ITEM(storages, a)
            a += 1
            readers = <object>peek(storage, at_readers)
            if self.output[i]:
                na_put(storage, where[at_writer], <PyObject*>submission)
                if PyDict_Size(readers):
                    put(<object>storage, at_readers, {})
            else:
                if PyDict_Size(readers) >= MANY_READERS and stream not in readers:
                    readers = (<object>storage).forget_readers()
                PyDict_SetItem(readers, stream, submission)
        return a

    cdef bint enqueued(self, plan, tuple values, tuple tensors, submission) except -1:
        """`FastCall.enqueue`: tests every storage, launches, then updates the access records."""
        cdef object stream = get(submission, at_stream), device = get(stream, at_device)
        cdef object queue = get(stream, at_backend), work = get(plan, at_work)
        cdef Lock lock = get(device, at_submit_lock)
        cdef DriverStream calls = calls_of(queue)
        cdef LaunchRecord record = None if calls is None else calls.record_of(queue, work)
        cdef list args = [] if record is None else None, storages = []
        cdef launch_s* launch
        cdef int status
        lock.take()
        try:
            status = self.check(
                values, tensors, stream, get(device, at_device_backend), record, args, storages
            )
            if status == 2:
                return self.in_python.enqueue(plan, values, tensors, submission)
            if status == 0:
                return False
            keep(submission, storages)
            if record is None:
                put(submission, at_queue, queue.launch(work, args, get(submission, at_queue)))
            else:
                launch = &record.launch
                if calls.launch(&launch, &record.buffer, 1) == 0:
                    fail(calls.result, "cuLaunchKernel")
            self.note(storages, 0, submission, stream)
        finally:
            lock.give()
        return True


cdef int keep(object submission, list storages) except -1:
    """Let a submission keep storages alive; `storages` may become its list."""
    cdef list keep_alive = get(submission, at_keep_alive)
    if PyList_GET_SIZE(keep_alive):
        for storage in storages:
            keep_alive.append(storage)
    else:
        put(submission, at_keep_alive, storages)
    return 0


cdef bint is_busy_elsewhere(PyObject* recorded, object stream) except -1:
    """Whether a recorded access is in flight on another stream: see `access`."""
    cdef object submission
    if recorded == <PyObject*>None:
        return False
    submission = <object>recorded
    if isa(submission, Submission):
        if holds(submission, at_done, True) or holds(submission, at_stream, stream):
            return False
    elif submission.done or submission.stream is stream:
        return False
    submission.stream.advance()
    return not submission.done
