# A collective of several devices: see `collective/together.py`, and the calls of its library.

cdef enum:
    RANKS = 16  # of a process, at most

MOST_RANKS = RANKS

ctypedef int (*group_call_t)() noexcept nogil
ctypedef int (*reduce_t)(void*, void*, size_t, int, int, void*, void*) noexcept nogil
ctypedef int (*gather_t)(void*, void*, size_t, int, void*, void*) noexcept nogil
cdef Lock calling = None


def know_collectives(Lock lock not None):
    """Note the lock that is held by the one thread that calls a library of collectives."""
    global calling
    calling = lock


cdef class RanksRecord:
    """NCCL's calls of all ranks of this process, complete but for streams and arrays.

    Args:
        name: of a method of `Rank`.
        addresses: NCCL's functions, by name.
        comms: the ranks' communicators, which live as long as the process.
        count, dtype: what is counted, by NCCL's number of it.
        choice: NCCL's number of the reduction, or the root; None: the function takes neither.
        failing: called with the method's name and a result that is not 0; raises.
    """
    cdef group_call_t start, end
    cdef reduce_t reduce
    cdef gather_t gather
    cdef void* comms[RANKS]
    cdef int ranks, dtype, choice
    cdef size_t count
    cdef object name, failing

    def __cinit__(self, name, dict addresses, comms, count, dtype, choice, failing):
        cdef int i
        function = "nccl" + "".join([word.capitalize() for word in name.split("_")])
        self.start = <group_call_t><uintptr_t>addresses["ncclGroupStart"]
        self.end = <group_call_t><uintptr_t>addresses["ncclGroupEnd"]
        if choice is None:
            self.gather = <gather_t><uintptr_t>addresses[function]
        else:
            self.reduce, self.choice = <reduce_t><uintptr_t>addresses[function], choice
        if len(comms) > RANKS:
            raise ValueError(f"{len(comms)} ranks")
        self.ranks, self.count, self.dtype = len(comms), count, dtype
        self.name, self.failing = name, failing
        for i in range(self.ranks):
            self.comms[i] = <void*><uintptr_t>comms[i]

    cdef bint make(self, list every, tuple sent, tuple received) except -1:
        """Make the calls, unless the streams or the tensors are none of the driver's. No Python code
        runs between two calls, and so no ^C leaves out one.
        """
        cdef DriverStream calls = None
        cdef void* streams[RANKS]
        cdef void* send[RANKS]
        cdef void* recv[RANKS]
        cdef int i, result, last
        if PyList_GET_SIZE(every) != self.ranks:
            return False
        for i in range(self.ranks):
            make_handle(sent[i])
            make_handle(received[i])
        for i in range(self.ranks - 1, -1, -1):
            calls = calls_of(get(get(every[i], Submission_stream), Progress_backend))
            send[i], recv[i] = address_of(sent[i]), address_of(received[i])
            if calls is None or send[i] == NULL or recv[i] == NULL:
                return False
            streams[i] = calls.number
        calling.take()
        try:
            if na_is_elsewhere(calls.ordinal):
                enter(calls.device)  # the first, to which NCCL comes back from the others
            with nogil:
                result = self.start()
                if result == 0:
                    for i in range(self.ranks):
                        if self.reduce != NULL:
                            result = self.reduce(
                                send[i], recv[i], self.count, self.dtype, self.choice,
                                self.comms[i], streams[i],
                            )
                        else:
                            result = self.gather(
                                send[i], recv[i], self.count, self.dtype, self.comms[i], streams[i]
                            )
                        if result != 0:
                            break
                    last = self.end()
                    if result == 0:
                        result = last
        finally:
            calling.give()
        if result != 0:
            self.failing(self.name, result)
        put(counters, Counters_copies, get(counters, Counters_copies) + self.ranks)
        return True


cdef inline int make_handle(object tensor) except -1:
    """Make a tensor's handle, by Python code, if it has none."""
    if holds(tensor, DeviceArray_own_handle, None):
        tensor.handle
    return 0


cdef inline void* address_of(object tensor) except? NULL:
    """The address of a tensor's first element; NULL if it is not on a GPU, or was moved."""
    cdef object handle = get(tensor, DeviceArray_own_handle)
    if handle is None or not isa(handle, CudaArray):
        return NULL
    return <void*><uintptr_t>get(handle, CudaArray_address)


def key_of_call(name, choice, parts, out):
    cdef list key
    cdef object fingerprint
    if not on or (choice is not None and type(choice) is not str and not PyLong_CheckExact(choice)):
        return python["key_of_call"](name, choice, parts, out)
    key = [name, choice]
    for tensors in (parts,) if out is None else (parts, out):
        if type(tensors) is not list and not PyTuple_CheckExact(tensors):
            return None
        key.append(len(tensors))
        for tensor in tensors:
            if not isa(tensor, Tensor) or holds(tensor, DeviceArray_own_storage, None):
                return None
            fingerprint = get(tensor, DeviceArray__fingerprint)
            if <int64_t>fingerprint < 0:
                fingerprint = tensor.fingerprint
            key.append(get(tensor, DeviceArray_device))
            key.append(fingerprint)
    return tuple(key)


def enqueue_together(plan, parts, out, submission, pool):
    cdef object group, stream
    cdef list every
    cdef list locks = []  # that are taken: no Python code runs before they are in `finally`
    cdef Lock lock
    if not on or recorder is not None or not isa(plan, CollectivePlan) or (
        not isa(submission, Submission) or not isa(get(submission, Submission_stream), Stream)
    ):
        return python["enqueue_together"](plan, parts, out, submission, pool)
    group, every = get(plan, CollectivePlan_group), [submission]
    if not isa(group, Group):
        return python["enqueue_together"](plan, parts, out, submission, pool)
    for stream in get(group, Group_streams):
        if not isa(stream, Stream):
            return python["enqueue_together"](plan, parts, out, submission, pool)
        if not is_free(stream):
            return None
        every.append(new_submission(stream, get(plan, CollectivePlan_name), ()))
        put(every[PyList_GET_SIZE(every) - 1], Submission_site, get(submission, Submission_site))
    try:
        for device in get(group, Group_in_order):
            lock = get(device, Device_submit_lock) if isa(device, Device) else device.submit_lock
            lock.take()
            locks.append(lock)
        return enqueued_together(plan, tuple(parts), out, every, pool)
    finally:
        while locks:
            lock = locks.pop()
            lock.give()


cdef object enqueued_together(object plan, tuple parts, object out, list every, object pool):
    """`_enqueued`."""
    cdef tuple results
    cdef list storages = []
    if not are_free(every, parts, False, storages):
        return None
    if out is None:
        allocated = allocate_all(get(plan, CollectivePlan_spec), every, pool)
        if allocated is None:
            return None
        results = tuple(allocated)
        for tensor in results:
            storages.append(get(tensor, DeviceArray_own_storage))
    else:
        results = tuple(out)
        if not are_free(every, results, True, storages):
            return None
    # All by the first one, which is committed whatever happens.
    keep(every[0], storages[:])
    try:
        make_calls_of(plan, every, parts, results)
        record_all(every, storages)
    except BaseException:  # some may be enqueued
        record_all(every, storages)
        raise
    # Under the locks: see `_enqueued`.
    put_first_behind(every)
    return results


cdef int make_calls_of(object plan, list every, tuple parts, tuple results) except -1:
    """`make_calls`, by the plan's record if it has one."""
    cdef object record = get(plan, CollectivePlan_record)
    if type(record) is not RanksRecord or not (<RanksRecord>record).make(every, parts, results):
        streams = [get(get(one, Submission_stream), Progress_backend) for one in every]
        python["make_calls"](plan, streams, parts, results)
    return 0


cdef bint are_free(list every, tuple tensors, bint to_write, list storages) except -1:
    """`are_free`; appends the storages that it has looked at."""
    cdef object storage, backend, stream
    cdef Py_ssize_t i
    if PyTuple_GET_SIZE(tensors) != PyList_GET_SIZE(every):
        return False
    for i in range(PyList_GET_SIZE(every)):
        tensor, stream = tensors[i], get(every[i], Submission_stream)
        if not isa(tensor, Tensor):
            return False  # its steps look at it
        storage = get(tensor, DeviceArray_own_storage)
        backend = get(get(stream, Progress_device), Device_backend)
        if storage is None or not holds(tensor, DeviceArray_source, None) or (
            not holds(storage, Storage_fast_path_device, backend)
        ):
            return False
        storages.append(storage)
        if is_busy_elsewhere(get(storage, Storage_writer), stream):
            return False
        if to_write and PyDict_Size(get(storage, Storage_readers)):
            for reader in list((<dict>get(storage, Storage_readers)).values()):
                if is_busy_elsewhere(reader, stream):
                    return False
    return True


cdef object allocate_all(object spec, list every, object pool):
    """`allocate_all`."""
    cdef list tensors = []
    cdef object device, storage
    for submission in every if isa(spec, ArraySpec) else ():
        device = get(get(submission, Submission_stream), Progress_device)
        chosen = get(device, Device__pool) if pool is None or tensors else pool
        storage = None if chosen is None else new_storage(chosen, get(spec, ArraySpec_nbytes))
        if storage is None:
            break
        tensors.append(new_tensor(device, storage, spec))
    if PyList_GET_SIZE(tensors) < PyList_GET_SIZE(every):
        return python["allocate_all"](spec, every, pool)
    for submission in every:
        nbytes = get(submission, Submission_nbytes) + get(spec, ArraySpec_nbytes)
        put(submission, Submission_nbytes, nbytes)
    return tensors


cdef int record_all(list every, list storages) except -1:
    """`record_all`, of the parts' storages and then the results'."""
    cdef object submission, storage
    cdef Py_ssize_t i, count = PyList_GET_SIZE(every)
    for i in range(count):
        submission, storage = every[i], storages[i]
        record_reader(storage, get(submission, Submission_stream), submission)
        storage = storages[count + i]
        put(storage, Storage_writer, submission)
        if PyDict_Size(get(storage, Storage_readers)):
            put(storage, Storage_readers, {})
        if i > 0:  # the first one has them all
            put(submission, Submission_keep_alive, [storages[i], storage])
    for i in range(1, count):
        if number_of(every[i]) == 0:
            commit(get(every[i], Submission_stream), every[i], NULL)
    return 0


cdef int put_first_behind(list every) except -1:
    """`put_first_behind`."""
    cdef object first, stream, other, submission
    cdef list calls_of_all = [], events = []
    cdef DriverStream calls, own
    cdef void* number
    cdef Py_ssize_t i
    cdef int result = 0
    for submission in every:
        calls = calls_of(get(get(submission, Submission_stream), Progress_backend))
        if calls is None:
            python["put_first_behind"](every)
            return 0
        calls_of_all.append(calls)
    own, first = calls_of_all[0], every[0]
    stream = get(first, Submission_stream)
    try:
        for i in range(1, PyList_GET_SIZE(every)):
            events.append(take_event(calls_of_all[i]))
        # A context must be current, but neither that of the stream nor that of the event.
        if na_is_elsewhere(own.ordinal):
            enter(own.device)
        for i in range(PyList_GET_SIZE(events)):
            calls, number = calls_of_all[1 + i], <void*><uintptr_t>events[i]
            with nogil:
                result = record_event(number, calls.number)
                if result == 0:
                    result = wait_for_event(own.number, number, 0)
            if result != 0:
                break
    finally:
        for i in range(PyList_GET_SIZE(events)):
            calls = calls_of_all[1 + i]
            calls.spare.append(events[i])
    if result != 0:
        python["put_first_behind"](every)  # which enters each device, and says what is wrong
        return 0
    for i in range(1, PyList_GET_SIZE(every)):
        submission = every[i]
        other = get(submission, Submission_stream)
        stream.follow(other, get(submission, Submission_sequence))
        first.depends_on(submission)
    return 0
