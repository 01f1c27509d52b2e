# Launches on the current stream of the library of their arrays.

def CallersLaunch_async_on(self, stream=None):
    if on and stream is None and isa(self, CallersLaunch) and is_idle() and (
        launched_at_caller(self)
    ):
        return na_tuple(
            get(get(self, Launch__launcher), Launcher_Result), get(self, Launch__values)
        )
    return python["CallersLaunch.async_on"](self, stream)


cdef bint launched_at_caller(object op) except -1:
    """`CallersLaunch._launched_at`, if the kernel has been launched on the stream before."""
    cdef object core = core_of(op), device, backend, source, plan, elsewhere
    cdef object first_reader = None
    cdef tuple tensors, values
    cdef TypedCall form
    cdef ArrayReader reader = None
    cdef LaunchRecord record
    cdef Lock lock
    cdef uintptr_t number = 0, noted
    cdef Py_ssize_t i
    cdef int result
    cdef list storages = []
    if core is None:
        return False
    form, tensors, values = core, get(op, Launch__tensors), get(op, Launch__values)
    if not PyTuple_GET_SIZE(tensors):
        return False
    device = get(<object>PyTuple_GET_ITEM(tensors, 0), DeviceArray_device)
    if not isa(device, Device):
        return False
    backend = get(device, Device_backend)
    for i in range(PyTuple_GET_SIZE(tensors)):
        source = get(<object>PyTuple_GET_ITEM(tensors, i), DeviceArray_source)
        if not isa(source, Borrowed) or not holds(source, Borrowed_mark, None):
            return False
        if i == 0:
            first_reader = get(source, Borrowed_reader)
            reader = get(first_reader, Reader_core)
            number = reader.current_stream(get(source, Borrowed_ordinal))
            if number == 0:
                return False
        noted = get(source, Borrowed_stream)
        if not holds(source, Borrowed_reader, first_reader) or (noted and noted != number) or (
            not holds(<object>PyTuple_GET_ITEM(tensors, i), DeviceArray_device, device)
        ):
            return False
    plan = form.plan_of(
        get(op, Launch__launcher), backend, get(op, Launch__parts),
        get(get(op, Launch__config), Config_extents),
    )
    if plan is None:
        return False
    elsewhere = form.record_elsewhere(backend, get(plan, Plan_work), number)
    if not holds(plan, Plan_empty, False) or elsewhere is None:
        return False
    record, lock = elsewhere, get(device, Device_submit_lock)
    lock.take()
    try:
        if not form.check(tensors, None, backend, True, storages):
            return False
        for storage in storages:
            if not isa(get(storage, Storage_pool), BorrowedOwner):
                return False
        if na_is_elsewhere(backend.ordinal):
            enter(backend)
        if not holds(op, Launch__unused, True) or form.pack(values, tensors, record, None) != 1:
            return False
        put(op, Launch__unused, False)
        with nogil:
            result = submit(&record.launch, record.buffer)
        if result != 0:
            fail(result, "cuLaunchKernel")
        put(counters, Counters_launches, get(counters, Counters_launches) + 1)
    finally:
        lock.give()
    return True
