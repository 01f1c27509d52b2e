# The rules of a launch whose argument types are known: plan, access records, arguments.

cdef enum:
    NUMBER = 0
    TENSOR = 1  # the tensor itself
    MAP = 2  # a tensor map
    SHARED = 3  # a shared tensor, or a partition that is read
    PARTITION = 4  # a partition that is written
    LENT = 5  # an array of another library
    WHOLE = 6  # a number that must fit 64 bits
    LITERAL = 7  # a number that the plan depends on

NUMBER_, TENSOR_, MAP_, SHARED_, PARTITION_, LENT_, WHOLE_, LITERAL_ = (
    NUMBER, TENSOR, MAP, SHARED, PARTITION, LENT, WHOLE, LITERAL
)


cdef class TypedCall:
    """`FastCall`'s functions for one tuple of argument types.

    `codes` has NUMBER to LITERAL for each argument, `readers` a reader of another library's array,
    or None; `outputs` are positions.
    """
    cdef int count, arrays, written
    cdef int home  # which tensor says where the launch runs
    cdef int code[MOST]
    cdef bint output[MOST]
    cdef bint may_alias
    cdef tuple kinds
    cdef object in_python  # the `FastCall`, of the same meaning
    cdef tuple readers  # an `ArrayReader` for each LENT argument
    # The fingerprints of the latest call; device, fingerprints, extents and plan of the latest
    # launch. Each is replaced as one object, since another thread may look at any time.
    cdef tuple latest_parts, latest_launch
    cdef tuple latest_elsewhere  # device, work, handle and record of the latest one elsewhere

    def __cinit__(self, tuple kinds, codes, outputs, may_alias, in_python, readers):
        if len(kinds) > MOST:
            raise ValueError(f"{len(kinds)} arguments")
        self.kinds, self.count, self.may_alias = kinds, len(kinds), may_alias
        self.in_python, self.readers = in_python, tuple(readers)
        self.latest_parts = None if kinds else ()  # which no call of no arguments would create
        for i in range(self.count):
            self.code[i] = codes[i]
            self.output[i] = i in outputs
            self.arrays += TENSOR <= codes[i] <= LENT
            if self.output[i] and self.written == 0:
                self.home = self.arrays - 1
            self.written += self.output[i]

    def take(self, values):
        return self.take_plain(values) if on else self.in_python.take(values)

    def enqueue(self, plan, values, tensors, submission):
        if on and isa(submission, Submission):
            return self.enqueue_taken(plan, values, tensors, submission)
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

    cdef object take_plain(self, tuple values):
        """The tensors and the fingerprints, or None: `FastCall.take`. Python code may compute the
        fingerprints, so the storages are compared after that.
        """
        cdef int i, j, a = 0, code
        cdef object value, tensor, part, lent = None
        cdef tuple latest = self.latest_parts
        cdef tuple tensors = new_tuple(self.arrays), parts = None  # until one differs
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
                    tensor = get(value, TensorMap_mapped)
                elif code == PARTITION:
                    tensor = get(value, Partition_tensor)
                elif code == LENT:
                    tensor = import_quickly(
                        value, <ArrayReader>PyTuple_GET_ITEM(self.readers, i), lent
                    )
                    if tensor is None:
                        return None
                    lent = tensor
                elif code != TENSOR:
                    tensor = value.tensor
                if not isa(tensor, MappedTensor if code == MAP else Tensor):
                    return self.in_python.take(values)
                if holds(tensor, DeviceArray_own_storage, None):
                    return None
                if not holds(tensor, DeviceArray_source, None) and must_refuse(
                    tensor, self.output[i]
                ):
                    return None
                if code == PARTITION:
                    part = get(value, Partition__fingerprint)
                    if <int64_t>part < 0:
                        part = value.fingerprint
                else:
                    part = get(tensor, DeviceArray__fingerprint)
                    if <int64_t>part < 0:
                        part = tensor.fingerprint
                put_item(tensors, a, tensor)
                a += 1
            if parts is None and (latest is None or PyTuple_GET_ITEM(latest, i) != <PyObject*>part):
                parts = new_tuple(self.count)
                for j in range(i):
                    put_item(parts, j, <object>PyTuple_GET_ITEM(latest, j))
            if parts is not None:
                put_item(parts, i, part)
        if self.written and not self.may_alias and not self.are_apart(tensors):
            return None
        complete(tensors)
        if parts is None:
            return tensors, latest  # the same object, by which `plan_of` knows it
        complete(parts)
        self.latest_parts = parts
        return tensors, parts

    cdef bint are_apart(self, tuple tensors) except -1:
        """Whether no output shares memory with another tensor, and none has been moved."""
        cdef object storage, other
        cdef int i, j, a = 0, b
        for i in range(self.count):
            if not TENSOR <= self.code[i] <= LENT:
                continue
            storage, b = get(<object>PyTuple_GET_ITEM(tensors, a), DeviceArray_own_storage), 0
            if storage is None:
                return False
            for j in range(i):
                if not TENSOR <= self.code[j] <= LENT:
                    continue
                if self.output[i] or self.output[j]:
                    other = get(<object>PyTuple_GET_ITEM(tensors, b), DeviceArray_own_storage)
                    if other is storage or other is None or (
                        get(storage, Storage_identity) == get(other, Storage_identity)
                    ):
                        return False
                b += 1
            a += 1
        return True

    cdef object plan_of(self, object launcher, object device, object parts, object extents):
        """The plan of a call, if an earlier call has created it."""
        cdef tuple latest = self.latest_launch
        if latest is not None and PyTuple_GET_ITEM(latest, 0) == <PyObject*>device and (
            PyTuple_GET_ITEM(latest, 1) == <PyObject*>parts
            and PyTuple_GET_ITEM(latest, 2) == <PyObject*>extents
        ):
            return <object>PyTuple_GET_ITEM(latest, 3)
        plan = get(launcher, Launcher_planner).plans.get((device, parts, extents))
        if plan is not None:
            self.latest_launch = device, parts, extents, plan
        return plan

    cdef object record_elsewhere(self, object backend, object work, uintptr_t number):
        """The record of launches on another library's stream; None if there is none yet."""
        cdef tuple latest = self.latest_elsewhere
        cdef object record
        if latest is not None and PyTuple_GET_ITEM(latest, 0) == <PyObject*>backend and (
            PyTuple_GET_ITEM(latest, 1) == <PyObject*>work
            and <uintptr_t><object>PyTuple_GET_ITEM(latest, 2) == number
        ):
            return <object>PyTuple_GET_ITEM(latest, 3)
        record = found(backend.launches_elsewhere, (work, number))
        if type(record) is not LaunchRecord:
            return None
        self.latest_elsewhere = backend, work, number, record
        return record

    cdef bint check(
        self, tuple tensors, object stream, object backend, bint is_packed, list storages
    ) except -1:
        """Test every storage, and append it to `storages`, which keeps it from then on. Make what
        `pack` needs of each tensor, since to make it runs Python code; then put the stream behind
        the work of other libraries, unless it is None: no stream of ours. False: not now.
        """
        cdef uintptr_t behind = 0
        cdef object tensor, storage, readers, handle, source, before = None
        cdef int i, a = 0
        for i in range(self.count):
            if not TENSOR <= self.code[i] <= LENT:
                continue
            tensor = <object>PyTuple_GET_ITEM(tensors, a)
            a += 1
            storage = get(tensor, DeviceArray_own_storage)
            if storage is None or not holds(storage, Storage_fast_path_device, backend):
                return False
            PyList_Append(storages, storage)
            if is_busy_elsewhere(get(storage, Storage_writer), stream):
                return False
            if self.output[i]:
                readers = get(storage, Storage_readers)
                if PyDict_Size(readers):
                    for reader in list(readers.values()):
                        if is_busy_elsewhere(reader, stream):
                            return False
            handle = get(tensor, DeviceArray_own_handle)
            if handle is None:
                handle = tensor.handle
            if is_packed:
                packed_of(handle)
        for a in range(PyTuple_GET_SIZE(tensors) if stream is not None else 0):
            tensor = <object>PyTuple_GET_ITEM(tensors, a)
            if not holds(tensor, DeviceArray_source, None):
                source = get(tensor, DeviceArray_source)
                if before is not None and is_ordered_too(source, before, behind):
                    continue
                if order_source(source, get(stream, Progress_backend), &behind, before):
                    before = source
                else:
                    before = None
        return True

    cdef int pack(
        self, tuple values, tuple tensors, LaunchRecord record, list args
    ) except -1:
        """Pack the arguments, or without a record append them to `args`. The buffer of a record is
        one for all its launches: no Python code runs before it is copied, or with the driver.
        0: not now, as a tensor was moved; 2: an argument does not fit, and Python says why.
        """
        cdef object value
        cdef int i, a = 0
        for i in range(self.count):
            if not TENSOR <= self.code[i] <= LENT:
                value = <object>PyTuple_GET_ITEM(values, i)
                if record is None:
                    args.append(value)
                elif not record.pack(i, value):
                    return 2
                continue
            value = get(<object>PyTuple_GET_ITEM(tensors, a), DeviceArray_own_handle)
            a += 1
            if value is None:
                return 0
            if record is None:
                args.append(value)
            else:
                record.pack_array(i, value)
        return 1

    cdef Py_ssize_t note(self, list storages, Py_ssize_t a, object submission, object stream) except -1:
        """Update the access records of the storages from `a` on; the number behind them."""
        cdef object storage, readers
        cdef int i
        for i in range(self.count):
            if not TENSOR <= self.code[i] <= LENT:
                continue
            storage = <object>PyList_GET_ITEM(storages, a)
            a += 1
            readers = get(storage, Storage_readers)
            if self.output[i]:
                put(storage, Storage_writer, submission)
                if PyDict_Size(readers):
                    put(storage, Storage_readers, {})
            else:
                if PyDict_Size(readers) >= MANY_READERS and stream not in readers:
                    readers = storage.forget_readers()
                PyDict_SetItem(readers, stream, submission)
        return a

    cdef bint enqueue_taken(self, plan, tuple values, tuple tensors, submission) except -1:
        """`FastCall.enqueue`: tests every storage, launches, then updates the access records."""
        cdef object stream = get(submission, Submission_stream)
        cdef object device = get(stream, Progress_device)
        cdef object queue = get(stream, Progress_backend), work = get(plan, Plan_work)
        cdef Lock lock = get(device, Device_submit_lock)
        cdef DriverStream calls = calls_of(queue)
        cdef LaunchRecord record = None if calls is None else calls.record_of(queue, work)
        cdef list args = [] if record is None else None, storages = []
        cdef launch_s* launch
        cdef int status
        lock.take()
        try:
            if not self.check(
                tensors, stream, get(device, Device_backend), record is not None, storages
            ):
                return False
            if record is not None and na_is_elsewhere(calls.ordinal):
                enter(calls.device)
            status = self.pack(values, tensors, record, args)
            if status == 2:
                return self.in_python.enqueue(plan, values, tensors, submission)
            if status == 0:
                return False
            keep(submission, storages)
            if record is None:
                queue = queue.launch(work, args, get(submission, Submission_queue))
                put(submission, Submission_queue, queue)
            else:
                launch = &record.launch
                if calls.launch(&launch, &record.buffer, 1) == 0:
                    fail(calls.result, "cuLaunchKernel")
            self.note(storages, 0, submission, stream)
        finally:
            lock.give()
        return True


cdef bint must_refuse(object tensor, bint is_output) except -1:
    """Whether a tensor in memory of another library is no argument of a fast call."""
    cdef object source = get(tensor, DeviceArray_source)
    if isa(source, Borrowed):
        return False
    return not source.is_nonblocking or (is_output and tensor.is_readonly)


cdef int keep(object submission, list storages) except -1:
    """Let a submission keep storages alive; `storages` may become its list."""
    cdef list keep_alive = get(submission, Submission_keep_alive)
    if PyList_GET_SIZE(keep_alive):
        for storage in storages:
            keep_alive.append(storage)
    else:
        put(submission, Submission_keep_alive, storages)
    return 0


cdef bint is_busy_elsewhere(object submission, object stream) except -1:
    """Whether a recorded access is in flight on another stream: see `access`."""
    if submission is None:
        return False
    if isa(submission, Submission):
        if holds(submission, Submission_done, True) or holds(submission, Submission_stream, stream):
            return False
    elif submission.done or submission.stream is stream:
        return False
    submission.stream.advance()
    return not submission.done
