# New arrays, fills, uploads and downloads, enqueued.

cdef inline bint is_plain_submission(object submission) noexcept:
    return on and isa(submission, Submission) and isa(get(submission, Submission_stream), Stream)


cdef int retain(object submission, object a, object b, object nbytes) except -1:
    """Let a submission keep two objects alive, and count bytes."""
    cdef list keep_alive = get(submission, Submission_keep_alive)
    keep_alive.append(a)
    if b is not None:
        keep_alive.append(b)
    put(submission, Submission_nbytes, get(submission, Submission_nbytes) + nbytes)
    return 0


cdef inline int note_copied(object submission, object nbytes) except -1:
    put(submission, Submission_copied, get(submission, Submission_copied) + nbytes)
    return 0


def CudaStream_launch(self, work, args, queue):
    cdef DriverStream calls = calls_of(self) if on else None
    cdef LaunchRecord record = None if calls is None else calls.record_of(self, work)
    if record is None:
        return python["CudaStream.launch"](self, work, args, queue)
    if na_is_elsewhere(calls.ordinal):
        enter(calls.device)
    try:
        result = record.run(args)
    except OverflowError:
        return python["CudaStream.launch"](self, work, args, queue)  # which says what is wrong
    if result != 0:
        fail(result, "cuLaunchKernel")
    put(counters, Counters_launches, get(counters, Counters_launches) + 1)
    return queue


def Full_try_enqueue(self, submission, pool):
    return enqueue_full(self, submission, pool)


cdef object enqueue_full(object self, object submission, object pool):
    """`Full.try_enqueue`."""
    cdef object tensor, storage, value, queue
    if not is_plain_submission(submission) or not isa(self, Full):
        return python["Full.try_enqueue"](self, submission, pool)
    tensor = allocate(self, submission, pool)
    if tensor is None:
        return False
    value, nbytes = get(self, Full__value), get(get(self, Full__kind), ArraySpec_nbytes)
    put(self, SimpleOp__result, tensor)
    if value is None or nbytes == 0:
        put(submission, Submission_is_empty, True)
        return True
    storage = get(tensor, DeviceArray_own_storage)
    retain(submission, storage, None, nbytes)
    put(storage, Storage_writer, submission)  # which has no readers
    queue = get(get(submission, Submission_stream), Progress_backend)
    if not try_fill(calls_of(queue), storage, value, nbytes):
        queue = queue.fill(tensor.handle, value, get(submission, Submission_queue))
        put(submission, Submission_queue, queue)
    return True


cdef bint try_fill(DriverStream calls, object storage, object value, int64_t nbytes) except -1:
    """Fill new memory, if the driver has a fill of such elements; whether it has."""
    global pattern_of, pattern_unit, pattern_number
    cdef int unit, result
    cdef unsigned number
    cdef uint64_t address
    cdef fill_t fill
    if calls is None or not isa(get(storage, Storage_memory), CudaMemory):
        return False
    if value is pattern_of:
        unit, number = pattern_unit, pattern_number
    else:
        unit, number = python["pattern"](value)
        pattern_unit, pattern_number, pattern_of = unit, number, value
    if unit > 4:
        return False
    if na_is_elsewhere(calls.ordinal):
        enter(calls.device)
    fill = fill_8 if unit == 1 else fill_16 if unit == 2 else fill_32
    address = get(get(storage, Storage_memory), CudaMemory_address)
    with nogil:
        result = fill(address, number, nbytes // unit, calls.number)
    if result != 0:
        fail(result, "cuMemsetAsync")
    return True


def FromHost_try_enqueue(self, submission, pool):
    return enqueue_upload(self, submission, pool)


cdef object enqueue_upload(object self, object submission, object pool):
    """`FromHost.try_enqueue`."""
    cdef object stream, queue, block, tensor, storage, nbytes
    cdef DriverStream calls
    if not is_plain_submission(submission) or not isa(self, FromHost):
        return python["FromHost.try_enqueue"](self, submission, pool)
    stream, spec = get(submission, Submission_stream), get(self, Full__kind)
    array = get(self, FromHost__array)
    nbytes = get(spec, ArraySpec_nbytes)
    block = get(get(stream, Progress_device), Device_backend).host_block(nbytes)
    if block is None:
        return False
    if not may_be_read(array, submission):
        return False
    tensor = allocate(self, submission, pool)
    if tensor is None:
        return False
    if not try_copy(array, spec, block, nbytes):
        if array.shape != get(spec, ArraySpec_shape):
            return False
        ndarray(get(spec, ArraySpec_shape), get(spec, ArraySpec_dtype), block)[...] = array
    storage = get(tensor, DeviceArray_own_storage)
    retain(submission, storage, block, 2 * nbytes)
    put(storage, Storage_writer, submission)
    queue = get(stream, Progress_backend)
    calls = calls_of(queue)
    if calls is None or not isa(get(storage, Storage_memory), CudaMemory):
        queue = queue.upload(tensor.handle, block, get(submission, Submission_queue))
        put(submission, Submission_queue, queue)
    else:
        copy_block(calls, storage, block, nbytes, True)
    note_copied(submission, nbytes)
    put(self, SimpleOp__result, tensor)
    return True


cdef bint try_copy(object array, object spec, object block, int64_t nbytes) except -1:
    """Copy the elements of an array to a page-locked block, if they lie as they will there."""
    cdef Py_buffer source
    cdef tuple shape = get(spec, ArraySpec_shape)
    cdef void* target = place_of(block)
    cdef int i
    cdef bint fits
    if type(array) is not ndarray or array.dtype is not get(spec, ArraySpec_dtype):
        return False
    try:
        PyObject_GetBuffer(array, &source, PyBUF_ND)
    except (ValueError, BufferError):  # not contiguous, or of elements that no buffer describes
        return False
    fits = source.ndim == PyTuple_GET_SIZE(shape) and source.len == nbytes
    for i in range(source.ndim if fits else 0):
        fits = fits and source.shape[i] == <Py_ssize_t>shape[i]
    if fits:
        memcpy(target, source.buf, nbytes)
    PyBuffer_Release(&source)
    return fits


cdef void* place_of(object block) except NULL:
    """The address of a block that the caller keeps."""
    cdef Py_buffer view
    if type(block) is Block:
        return (<Block>block).start
    PyObject_GetBuffer(block, &view, PyBUF_SIMPLE)
    PyBuffer_Release(&view)
    return view.buf


cdef int copy_block(
    DriverStream calls, object storage, object block, int64_t nbytes, bint to_device
) except -1:
    """Copy all of a page-locked block to the start of a storage, or back."""
    cdef void* memory = <void*><uintptr_t>get(get(storage, Storage_memory), CudaMemory_address)
    cdef void* host = place_of(block)
    cdef int result
    if na_is_elsewhere(calls.ordinal):
        enter(calls.device)
    with nogil:
        if to_device:
            result = copy_to_device(memory, host, nbytes, calls.number)
        else:
            result = copy_to_host(host, memory, nbytes, calls.number)
    if result != 0:
        fail(result, "cuMemcpyHtoDAsync" if to_device else "cuMemcpyDtoHAsync")
    put(counters, Counters_copies, get(counters, Counters_copies) + 1)
    return 0


def ToHost_try_enqueue(self, submission, pool):
    return enqueue_download(self, submission, pool)


cdef object enqueue_download(object self, object submission, object pool):
    """`ToHost.try_enqueue`."""
    cdef object stream, backend, tensor, storage, spec, block, queue
    cdef DriverStream calls
    cdef Lock lock
    tensor = None
    if is_plain_submission(submission) and isa(self, ToHost):
        tensor = get(self, ToHost__tensor)
    # A tensor with a spec fills its storage, which is its pool's.
    if tensor is None or not isa(tensor, Tensor) or holds(tensor, DeviceArray__kind, None):
        return python["ToHost.try_enqueue"](self, submission, pool)
    stream, spec = get(submission, Submission_stream), get(tensor, DeviceArray__kind)
    storage = get(tensor, DeviceArray_own_storage)
    backend = get(get(stream, Progress_device), Device_backend)
    nbytes = get(spec, ArraySpec_nbytes)
    if storage is None or not 0 < <int64_t>nbytes <= LARGE or not holds(
        tensor, DeviceArray_source, None
    ):
        return False
    block = backend.host_block(nbytes)
    if block is None:
        return False
    lock = get(get(stream, Progress_device), Device_submit_lock)
    lock.take()
    try:
        if not holds(storage, Storage_fast_path_device, backend):
            return False
        if is_busy_elsewhere(get(storage, Storage_writer), stream):
            return False
        retain(submission, storage, block, nbytes)
        queue = get(stream, Progress_backend)
        calls = calls_of(queue)
        if calls is None or not isa(get(storage, Storage_memory), CudaMemory):
            queue = queue.download(block, tensor.handle, get(submission, Submission_queue))
            put(submission, Submission_queue, queue)
        else:
            copy_block(calls, storage, block, nbytes, False)
        note_copied(submission, nbytes)
        record_reader(storage, stream, submission)
    finally:
        lock.give()
    array = ndarray(get(spec, ArraySpec_shape), get(spec, ArraySpec_dtype), block)
    put(self, SimpleOp__result, array)
    return True


def try_copy_across(submission, dst, src, bint is_new=False):
    cdef object stream, queue, backend, source, near, far
    cdef DriverStream calls = None
    cdef Lock first, second
    if is_plain_submission(submission) and is_all_of_its_storage(dst) and is_all_of_its_storage(src):
        stream, source = get(submission, Submission_stream), get(src, DeviceArray_device)
        near, far = get(dst, DeviceArray_own_storage), get(src, DeviceArray_own_storage)
        nbytes = get(get(dst, DeviceArray__kind), ArraySpec_nbytes)
        queue = get(stream, Progress_backend)
        calls = calls_of(queue)
    if calls is None or not is_plain_memory(near) or not is_plain_memory(far):
        return python["try_copy_across"](submission, dst, src, is_new)
    backend = get(get(stream, Progress_device), Device_backend)
    if not backend.copies_from(get(source, Device_backend)):
        return False
    first = get(get(stream, Progress_device), Device_submit_lock)
    second = get(source, Device_submit_lock)
    if source.ordinal < calls.ordinal:  # always in this order, so that threads do not deadlock
        first, second = second, first
    first.take()
    second.take()
    try:
        if not holds(near, Storage_fast_path_device, backend) or (
            not holds(far, Storage_fast_path_device, get(source, Device_backend))
        ):
            return False
        if is_busy_elsewhere(get(far, Storage_writer), stream):
            return False
        if not is_new:
            for one in [get(near, Storage_writer), *(<dict>get(near, Storage_readers)).values()]:
                if is_busy_elsewhere(one, stream):
                    return False
        retain(submission, near, far, nbytes)
        copy_from_peer(calls, near, far, backend, get(source, Device_backend), nbytes)
        note_copied(submission, nbytes)
        record_reader(far, stream, submission)
        put(near, Storage_writer, submission)
        put(near, Storage_readers, {})
    finally:
        second.give()
        first.give()
    return True


cdef inline bint is_all_of_its_storage(object array) noexcept:
    """Whether an array is a tensor with elements, all those of its storage."""
    return isa(array, Tensor) and holds(array, DeviceArray_source, None) and (
        not holds(array, DeviceArray__kind, None) and not holds(
            array, DeviceArray_own_storage, None
        )
        and <int64_t>get(get(array, DeviceArray__kind), ArraySpec_nbytes) > 0
    )


cdef inline bint is_plain_memory(object storage) noexcept:
    """Whether a storage is a GPU's memory."""
    return isa(storage, Storage) and isa(get(storage, Storage_memory), CudaMemory)


cdef int copy_from_peer(
    DriverStream calls, object near, object far, object to, object source, int64_t nbytes
) except -1:
    """Copy the start of the storage `far` of the GPU `source` to the start of `near` of `to`."""
    cdef uint64_t target = get(get(near, Storage_memory), CudaMemory_address)
    cdef uint64_t start = get(get(far, Storage_memory), CudaMemory_address)
    cdef void* here = <void*><uintptr_t>int(to.context)
    cdef void* there = <void*><uintptr_t>int(source.context)
    cdef int result
    if na_is_elsewhere(calls.ordinal):
        enter(calls.device)
    with nogil:
        result = copy_peer(target, here, start, there, nbytes, calls.number)
    if result != 0:
        fail(result, "cuMemcpyPeerAsync")
    put(counters, Counters_copies, get(counters, Counters_copies) + 1)
    return 0


cdef int record_reader(object storage, object stream, object submission) except -1:
    """`access.record_read`."""
    cdef object readers = get(storage, Storage_readers)
    if PyDict_Size(readers) >= MANY_READERS and stream not in readers:
        readers = storage.forget_readers()
    readers[stream] = submission
    return 0
