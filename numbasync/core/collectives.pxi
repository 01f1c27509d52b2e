# What a collective of several devices does beside its library's calls: see `collective/together.py`.

cdef bint are_plain_submissions(list submissions) noexcept:
    """Whether all are submissions on streams, and nobody is told of what they do."""
    if not on or recorder is not None:
        return False
    for submission in submissions:
        if not isa(submission, Submission) or not isa(get(submission, Submission_stream), Stream):
            return False
    return True


def under_locks(devices, call):
    cdef list locks = []  # that are taken: no Python code runs before they are in `finally`
    cdef Lock lock
    if not on:
        return python["under_locks"](devices, call)
    try:
        for device in devices:
            lock = get(device, Device_submit_lock) if isa(device, Device) else device.submit_lock
            lock.take()
            locks.append(lock)
        return call()
    finally:
        while locks:
            lock = locks.pop()
            lock.give()


def are_free(list every, tensors, to_write):
    cdef object stream, storage, backend
    cdef tuple all_tensors = tuple(tensors)
    cdef Py_ssize_t i
    if not are_plain_submissions(every):
        return python["are_free"](every, tensors, to_write)
    for i in range(PyList_GET_SIZE(every)):
        tensor, stream = all_tensors[i], get(every[i], Submission_stream)
        if not isa(tensor, Tensor):
            return python["are_free"](every, tensors, to_write)
        storage = get(tensor, DeviceArray_own_storage)
        backend = get(get(stream, Progress_device), Device_backend)
        if storage is None or not holds(tensor, DeviceArray_source, None) or (
            not holds(storage, Storage_fast_path_device, backend)
        ):
            return False
        if is_busy_elsewhere(get(storage, Storage_writer), stream):
            return False
        if to_write and PyDict_Size(get(storage, Storage_readers)):
            for reader in list((<dict>get(storage, Storage_readers)).values()):
                if is_busy_elsewhere(reader, stream):
                    return False
    return True


def allocate_all(spec, list every, pool):
    cdef list tensors = []
    cdef object device, storage
    for submission in every if are_plain_submissions(every) and isa(spec, ArraySpec) else ():
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


def record_all(list every, parts, results):
    cdef object submission, storage
    cdef tuple sent = tuple(parts), received = tuple(results)
    cdef Py_ssize_t i
    if not are_plain_submissions(every):
        return python["record_all"](every, parts, results)
    for i in range(PyList_GET_SIZE(every)):
        submission, storage = every[i], get(sent[i], DeviceArray_own_storage)
        record_reader(storage, get(submission, Submission_stream), submission)
        (<list>get(submission, Submission_keep_alive)).append(storage)
        storage = get(received[i], DeviceArray_own_storage)
        put(storage, Storage_writer, submission)
        if PyDict_Size(get(storage, Storage_readers)):
            put(storage, Storage_readers, {})
        (<list>get(submission, Submission_keep_alive)).append(storage)
    for i in range(1, PyList_GET_SIZE(every)):
        commit(get(every[i], Submission_stream), every[i], NULL)


def put_first_behind(list every):
    cdef object first, stream, other, submission
    cdef list calls_of_all = [], events = []
    cdef DriverStream calls, own
    cdef void* number
    cdef Py_ssize_t i
    cdef int result = 0
    for submission in every if are_plain_submissions(every) else ():
        calls = calls_of(get(get(submission, Submission_stream), Progress_backend))
        if calls is not None:
            calls_of_all.append(calls)
    if PyList_GET_SIZE(calls_of_all) < PyList_GET_SIZE(every):
        return python["put_first_behind"](every)
    own, first = calls_of_all[0], every[0]
    stream = get(first, Submission_stream)
    try:
        for i in range(1, PyList_GET_SIZE(every)):
            events.append((<DriverStream>calls_of_all[i]).device.events.take())
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
            (<DriverStream>calls_of_all[1 + i]).device.events.numbers.append(events[i])
    if result != 0:
        return python["put_first_behind"](every)  # which enters each device, and says what is wrong
    for i in range(1, PyList_GET_SIZE(every)):
        submission = every[i]
        other = get(submission, Submission_stream)
        stream.follow(other, get(submission, Submission_sequence))
        first.depends_on(submission)
