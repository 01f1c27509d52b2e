# Arrays of other libraries in a launch: read, made into tensors, and ordered.

def imported(x, reader):
    cdef object core = get(reader, Reader_core) if on and isa(reader, Reader) else None
    return python["imported"](x, reader) if core is None else import_quickly(x, core, None)


cdef object import_quickly(object x, ArrayReader reader, object before):
    """`imported`. `before` is the tensor of an array that was read for the same call, or None: a
    library's current stream is asked for once.
    """
    cdef reading_s r
    cdef Place place = None
    cdef object view = None
    cdef object device, storage, memory, tensor, weak, handle, owner = None
    cdef object source = None
    cdef uintptr_t stream = 0
    if reader.style == BY_TABLE:
        if not reader.read(x, &r):
            return None
        place = reader.place_of(None, &r)
    elif reader.style == BY_CUPY:
        place = reader.place_of_cupy(x, &r)
    else:
        view = reader.read_view(x)
        if view is not None:
            place = reader.place_of_view(view, &r)
    if place is None:
        return python["imported"](x, reader.in_python)
    device = None if before is None else get(before, DeviceArray_device)
    if not isa(device, Device) or not holds(device, Device_backend, place.backend):
        device = found(gpus, place.ordinal)
    if device is None or not isa(device, Device) or (
        not holds(device, Device_backend, place.backend)
    ):
        reader.forget(place)
        return python["imported"](x, reader.in_python)
    if reader.style == BY_VIEW:
        stream, owner = view[5], view[6]
    elif before is not None:
        source = get(before, DeviceArray_source)
    if isa(source, Borrowed) and holds(source, Borrowed_reader, reader.in_python) and (
        holds(source, Borrowed_ordinal, place.ordinal)
    ):
        stream, owner = get(source, Borrowed_stream), get(source, Borrowed_owner)
    elif reader.style == BY_CUPY:
        owner = reader.current_of_cupy(place.ordinal)
        stream = <uintptr_t>owner.ptr or LEGACY
    if stream == 0 and reader.style != BY_VIEW:
        stream = reader.current_stream(r.ordinal)
        if stream == 0:
            return python["imported"](x, reader.in_python)
    storage = na_referent(get(place.entry, Entry_ref))
    if storage is None:
        memory = borrow(place, reader, stream, owner, reader.kept(x))
        storage = PyType_GenericAlloc(classes[Storage], 0)
        fill_storage(storage, found(owners, place.backend), memory, place.backend)
        weak = PyWeakref_NewRef(storage, NULL)
        # From here on no Python code runs, and no other thread.
        if holds(memory, Borrowed_keep, None) or holds(storage, Storage_pool, None) or (
            not holds(place.entry, Entry_is_alone, True) or not (<Lock>map_lock).is_free()
            or na_referent(get(place.entry, Entry_ref)) is not None
        ):
            reader.forget(place)
            return python["imported"](x, reader.in_python)
        put(place.entry, Entry_ref, weak)
    elif not isa(storage, Storage):
        return python["imported"](x, reader.in_python)
    elif owner is None:  # the storage keeps the array's memory
        if place.source is None or place.stream != stream:
            place.source, place.stream = borrow(place, reader, stream, None, None), stream
        memory = place.source
    else:  # the stream is its owner's
        memory = get(storage, Storage_memory)
        if not isa(memory, Borrowed) or not holds(memory, Borrowed_reader, reader.in_python) or (
            not holds(memory, Borrowed_mark, None) or not holds(memory, Borrowed_owner, owner)
        ):
            memory = borrow(place, reader, stream, owner, None)
    tensor = PyType_GenericAlloc(classes[Tensor], 0)
    put(tensor, DeviceArray__former, None)
    put(tensor, DeviceArray__kind, None)
    put(tensor, DeviceArray_source, memory)
    put(tensor, DeviceArray_device, device)
    put(tensor, DeviceArray_dtype, get(place.kind, ArrayKind_dtype))
    put(tensor, DeviceArray_shape, get(place.kind, ArrayKind_shape))
    put(tensor, DeviceArray__layout, get(place.kind, ArrayKind_at))
    put(tensor, DeviceArray__key, get(place.kind, ArrayKind_key))
    put(tensor, DeviceArray__fingerprint, place.fingerprint)
    put(tensor, DeviceArray_own_handle, None)
    put(storage, Storage_holders, get(storage, Storage_holders) + 1)
    put(tensor, DeviceArray_own_storage, storage)
    if place.handle is None:
        handle = found(get(place.kind, ArrayKind_handles), place.number)
        if handle is None:
            handle = tensor.handle
            get(place.kind, ArrayKind_handles)[place.number] = handle
        place.handle = handle
    put(tensor, DeviceArray_own_handle, place.handle)
    return tensor


cdef object borrow(
    Place place, ArrayReader reader, object stream, object owner, object keep
):
    """`Borrowed`."""
    cdef object memory = PyType_GenericAlloc(classes[Borrowed], 0)
    put(memory, Borrowed__export, None)
    put(memory, Borrowed_address, place.low)
    put(memory, Borrowed_keep, keep)
    put(memory, Borrowed_lent, False)
    put(memory, Borrowed_mark, None)
    put(memory, Borrowed_nbytes, get(place.kind, ArrayKind_nbytes))
    put(memory, Borrowed_ordinal, place.ordinal)
    put(memory, Borrowed_owner, owner)
    put(memory, Borrowed_reader, reader.in_python)
    put(memory, Borrowed_stream, stream)
    return memory


# --- order -----------------------------------------------------------------------------------

cdef unsigned own_order = 0  # the version of `Borrowed` that was compared last


cdef bint is_order_own() except -1:
    """Whether `Borrowed` has its own `order`: a test may have replaced it."""
    global own_order
    if na_version(classes[Borrowed]) != own_order or not own_order:
        cls = <object>classes[Borrowed]
        cls.order  # a class has a version once an attribute was looked up
        method = vars(cls)["order"]
        if method is not python["Borrowed.order"] and method is not globals().get("Borrowed_order"):
            return False
        own_order = na_version(classes[Borrowed])
    return True


cdef bint order_source(
    object source, object queue, uintptr_t* behind, object before
) except -1:
    """`order` of a tensor's source. `behind` is the stream that `queue` was put behind last, for
    the source `before`, or None. Whether Python's was not needed.
    """
    if isa(source, Borrowed) and is_order_own() and is_ordered(source, queue, behind, before):
        return True
    source.order(queue)
    return False


cdef inline bint is_ordered_too(object source, object before, uintptr_t behind) except -1:
    """Whether nothing is left to do for a source, once a stream is behind that of `before`: the
    same library's on the same device, which has just been asked.
    """
    cdef uintptr_t noted
    if not isa(source, Borrowed) or not holds(source, Borrowed_mark, None) or (
        not holds(source, Borrowed_reader, get(before, Borrowed_reader))
        or not holds(source, Borrowed_ordinal, get(before, Borrowed_ordinal))
    ):
        return False
    noted = get(source, Borrowed_stream)
    return noted == 0 or noted == behind


cdef bint is_ordered(object source, object queue, uintptr_t* behind, object before) except -1:
    """`Borrowed.order`, if no more is needed than what its library says of its current stream; the
    library of `before` has just been asked.
    """
    cdef DriverStream calls = calls_of(queue)
    cdef ArrayReader reader
    cdef uintptr_t current, noted
    cdef object own = get(source, Borrowed_reader)
    if calls is None or not holds(source, Borrowed_mark, None):
        return False
    noted, reader = get(source, Borrowed_stream), get(own, Reader_core)
    if reader.style == BY_VIEW:  # there is no other stream
        if noted != 0 and noted != behind[0]:
            if not put_behind(calls, noted):
                return False
            behind[0] = noted
        return True
    if before is not None and holds(before, Borrowed_reader, own) and (
        get(before, Borrowed_ordinal) == get(source, Borrowed_ordinal)
    ):
        current = behind[0]
    else:
        current = reader.current_stream(get(source, Borrowed_ordinal))
        if current == 0 or (current != behind[0] and not put_behind(calls, current)):
            return False
        behind[0] = current
    return noted == 0 or noted == current or put_behind(calls, noted)


def Borrowed_order(self, stream):
    cdef uintptr_t behind = 0
    if not on or not isa(self, Borrowed) or not (
        is_ordered(self, stream, &behind, None)
    ):
        python["Borrowed.order"](self, stream)


def CudaStream_put_behind(self, other):
    cdef DriverStream calls = calls_of(self) if on else None
    if calls is None or not put_behind(calls, other):
        python["CudaStream.put_behind"](self, other)


cdef bint put_behind(DriverStream calls, uintptr_t other) except -1:
    """`CudaStream.put_behind`. False: Python says why not."""
    cdef int status = 0, result
    cdef object event
    cdef void* number
    if other == <uintptr_t>calls.number:
        return True
    if na_is_elsewhere(calls.ordinal):
        enter(calls.device)
    if is_capturing(<void*>other, &status) != 0 or status != 0:
        return False
    event = take_event(calls)
    number = <void*><uintptr_t>event
    # Whether the other stream is idle is not asked: a query takes longer than both of these.
    with nogil:
        result = record_event(number, <void*>other)
        if result == 0:
            result = wait_for_event(calls.number, number, 0)
    calls.spare.append(event)
    if result != 0:
        fail(result, "cuStreamWaitEvent")
    return True


cdef object take_event(DriverStream calls):
    """The number of an event of a stream's device, which the caller appends to `spare` again."""
    if calls.spare is None:
        calls.spare = calls.device.events.numbers
    return calls.spare.pop() if PyList_GET_SIZE(calls.spare) else calls.device.events.take()
