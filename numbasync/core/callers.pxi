# Launches on the current stream of the library of their arrays.

def CallersLaunch_async_on(self, stream=None):
    if on and stream is None and isa(self, CallersLaunch) and is_idle() and (
        launched_at_caller(self)
    ):
        return na_tuple(get(get(self, at_launcher), at_result), get(self, at_values))
    return python["CallersLaunch.async_on"](self, stream)


cdef bint launched_at_caller(object op) except -1:
    """`CallersLaunch._launched_at`, if the kernel has been launched on the stream before."""
    cdef object core = core_of(op), device, backend, source, plan, elsewhere
    cdef object first_reader = None
    cdef tuple tensors, values
    cdef FastCall form
    cdef ArrayReader reader = None
    cdef LaunchRecord record
    cdef Lock lock
    cdef uintptr_t number = 0, noted
    cdef Py_ssize_t i
    cdef int result
    cdef list storages = []
    if core is None:
        return False
    form, tensors, values = core, get(op, at_tensors), get(op, at_values)
    if not PyTuple_GET_SIZE(tensors):
        return False
    device = get(<object>PyTuple_GET_ITEM(tensors, 0), at_device_of)
    if not isa(device, Device):
        return False
    backend = get(device, at_device_backend)
    for i in range(PyTuple_GET_SIZE(tensors)):
        source = get(<object>PyTuple_GET_ITEM(tensors, i), at_source)
        if not isa(source, Borrowed) or not holds(source, at_mark, None):
            return False
        if i == 0:
            first_reader = get(source, at_borrowed_reader)
            reader = get(first_reader, at_reader_core)
            number = reader.current_stream(get(source, at_borrowed_ordinal))
            if number == 0:
                return False
        noted = get(source, at_borrowed_stream)
        if not holds(source, at_borrowed_reader, first_reader) or (noted and noted != number) or (
            not holds(<object>PyTuple_GET_ITEM(tensors, i), at_device_of, device)
        ):
            return False
    plan = form.plan_of(
        get(op, at_launcher), backend, get(op, at_parts), get(get(op, at_config), at_extents)
    )
    if plan is None:
        return False
    elsewhere = form.record_elsewhere(backend, get(plan, at_work), number)
    if not holds(plan, at_is_without_blocks, False) or elsewhere is None:
        return False
    record, lock = elsewhere, get(device, at_submit_lock)
    lock.take()
    try:
        if not form.check(tensors, None, backend, True, storages):
            return False
        for storage in storages:
            if not isa(get(storage, at_owner_of_memory), BorrowedOwner):
                return False
        if na_is_elsewhere(backend.ordinal):
            enter(backend)
        if not holds(op, at_unused, True) or form.pack(values, tensors, record, None) != 1:
            return False
        put(op, at_unused, False)
        with nogil:
            result = submit(&record.launch, record.buffer)
        if result != 0:
            fail(result, "cuLaunchKernel")
        put(counters, at_launches, get(counters, at_launches) + 1)
    finally:
        lock.give()
    return True
