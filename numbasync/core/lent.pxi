# Arrays of other libraries in a launch: read, made into tensors, and ordered.

cdef extern from "Python.h":
    void PyErr_Clear() noexcept
    object PyWeakref_NewRef(object, PyObject*)
    object PyBytes_FromStringAndSize(const char*, Py_ssize_t)

ctypedef struct lent_s:  # DLTensor
    char* data
    int32_t device_type, device_id, ndim
    uint8_t code, bits
    uint16_t lanes
    int64_t* shape
    int64_t* strides
    uint64_t byte_offset

ctypedef struct managed_s:  # the head of DLManagedTensorVersioned
    uint32_t major, minor
    void* context
    void (*deleter)(managed_s*) noexcept
    uint64_t flags

ctypedef int (*describe_t)(PyObject*, lent_s*) noexcept
ctypedef int (*manage_t)(PyObject*, managed_s**) noexcept
ctypedef int (*current_stream_t)(int32_t, int32_t, void**) noexcept

cdef enum:
    BY_PYTHON = 0
    BY_TABLE = 1  # DLPack's table of C functions
    BY_CUPY = 2
    ON_GPU = 2  # DLPack's type of CUDA devices
    ON_GPU_MANAGED = 13
    OF_COMPLEX = 5  # DLPack's kind of complex numbers
    LEGACY_STREAM = 1
    QUICK_AXES = 8
    MOST_KINDS = 4096
    VECTOR = 16  # as `VECTOR_BYTES`

cdef object kind_of_bytes = None  # of `quick_import`
cdef object kinds = None  # a `Memo`
cdef dict gpus = None
cdef dict entries = None  # of the address map, its lock, and the owners of memory by device
cdef object map_lock = None
cdef dict owners = None


def know_readers(
    of_bytes, known_kinds, dict gpus_by_ordinal, dict map_entries, lock, dict map_owners
):
    """Note what `quick_import` and the address map know."""
    global kind_of_bytes, kinds, gpus, entries, map_lock, owners
    kind_of_bytes, kinds, gpus = of_bytes, known_kinds, gpus_by_ordinal
    entries, map_lock, owners = map_entries, lock, map_owners


@no_gc
cdef class Managed:
    """A managed tensor, which its library keeps until this object ends."""
    cdef managed_s* managed

    def __dealloc__(self):
        if self.managed != NULL and self.managed.deleter != NULL:
            self.managed.deleter(self.managed)


cdef class ArrayReader:
    """A `Reader` as the core uses it, with the addresses of its library's functions."""
    cdef object in_python
    cdef int style
    cdef describe_t describe
    cdef manage_t manage
    cdef current_stream_t current
    cdef bint has_gradients, has_signs
    cdef object current_of_cupy
    cdef dict kinds  # of a table's arrays, by the bytes that describe them

    def __cinit__(
        self, in_python, str style, describe=0, manage=0, current=0, has_gradients=False,
        has_signs=False, current_of_cupy=None,
    ):
        self.in_python, self.kinds, self.current_of_cupy = in_python, {}, current_of_cupy
        self.style = BY_TABLE if style == "table" else BY_CUPY if style == "cupy" else BY_PYTHON
        self.describe, self.manage = <describe_t><uintptr_t>describe, <manage_t><uintptr_t>manage
        self.current = <current_stream_t><uintptr_t>current
        self.has_gradients, self.has_signs = has_gradients, has_signs

    cdef uintptr_t current_stream(self, int ordinal) except? 0:
        """The handle of the library's current stream; 0: Python says why there is none."""
        cdef void* stream = NULL
        if self.style == BY_CUPY:
            return <uintptr_t>(self.current_of_cupy(ordinal).ptr) or LEGACY_STREAM
        if self.style != BY_TABLE:
            return 0
        if self.current(ON_GPU, ordinal, &stream) != 0:
            PyErr_Clear()
            return 0
        return <uintptr_t>stream or LEGACY_STREAM

    cdef object kept(self, object x):
        """An object that keeps the array's memory; None: Python says why there is none."""
        cdef Managed managed
        if self.style == BY_CUPY:
            return x.data
        managed = Managed.__new__(Managed)
        if self.manage(<PyObject*>x, &managed.managed) != 0:
            PyErr_Clear()
            managed.managed = NULL
            return None
        return managed


def imported(x, reader):
    cdef object core = get(reader, at_reader_core) if on and isa(reader, Reader) else None
    return python["imported"](x, reader) if core is None else import_quickly(x, core)


cdef object import_quickly(object x, ArrayReader reader):
    """`imported`."""
    cdef lent_s t
    cdef char key[8 + 16 * QUICK_AXES]
    cdef object kind = None, device, backend, place, entry, storage, memory, tensor, owner = None
    cdef object number, known_handles, handle, again, weak
    cdef uintptr_t address, stream = 0
    cdef int64_t low
    cdef int ordinal, code
    if reader.style == BY_TABLE:
        if reader.has_gradients and x.requires_grad is not False:
            return None
        if reader.describe(<PyObject*>x, &t) != 0:
            PyErr_Clear()
            return None
        if (t.device_type != ON_GPU and t.device_type != ON_GPU_MANAGED) or (
            not 0 <= t.ndim <= QUICK_AXES or (t.ndim and (t.shape == NULL or t.strides == NULL))
        ):
            return None
        # What is described is the library's until Python code runs.
        memcpy(key, &t.code, 4)
        memcpy(key + 4, &t.ndim, 4)
        if t.ndim:
            memcpy(key + 8, t.shape, 8 * t.ndim)
            memcpy(key + 8 + 8 * t.ndim, t.strides, 8 * t.ndim)
        address, ordinal, code = <uintptr_t>t.data + t.byte_offset, t.device_id, t.code
        place = PyBytes_FromStringAndSize(key, 8 + 16 * t.ndim)
        if reader.has_signs and (x.is_neg() or (code == OF_COMPLEX and x.is_conj())):
            return None
        kind = found(reader.kinds, place)
        if kind is None:
            kind = kind_of_bytes(place)
            if kind is None:
                return None
            if PyDict_Size(reader.kinds) >= MOST_KINDS:
                reader.kinds = {}
            reader.kinds[place] = kind
        stream = reader.current_stream(ordinal)
    elif reader.style == BY_CUPY:
        memory = x.data
        kind = found(kinds, (x.dtype, x.shape, x.strides))
        if kind is not None:
            ordinal, address = memory.device_id, memory.ptr
            owner = reader.current_of_cupy(ordinal)
            stream = <uintptr_t>owner.ptr or LEGACY_STREAM
    if kind is None or stream == 0 or not isa(kind, ArrayKind):
        return python["imported"](x, reader.in_python)
    device = found(gpus, ordinal)
    low = <int64_t>address + <int64_t>get(kind, at_kind_low)
    if device is None or not isa(device, Device) or address == 0 or (
        address % <uintptr_t>get(kind, at_alignment)
    ):
        return python["imported"](x, reader.in_python)
    backend = get(device, at_device_backend)
    place = (backend, low, low + <int64_t>get(kind, at_kind_nbytes))
    entry = found(entries, place)
    if entry is None or not isa(entry, Entry):
        return python["imported"](x, reader.in_python)
    storage = get(entry, at_ref)()
    if storage is None:
        memory = borrowed(reader, kind, low, ordinal, stream, owner, reader.kept(x))
        storage = PyType_GenericAlloc(classes[Storage], 0)
        fill_storage(storage, found(owners, backend), memory, backend)
        weak = PyWeakref_NewRef(storage, NULL)
        # From here on no Python code runs, and no other thread.
        again = found(entries, place)
        if holds(memory, at_keep, None) or holds(storage, at_owner_of_memory, None) or (
            again is not entry or not holds(entry, at_is_alone, True)
            or not (<Lock>map_lock).is_free() or get(entry, at_ref)() is not None
        ):
            return python["imported"](x, reader.in_python)
        put(entry, at_ref, weak)
    else:
        if not isa(storage, Storage):
            return python["imported"](x, reader.in_python)
        memory = get(storage, at_memory)
        if not isa(memory, Borrowed) or not holds(memory, at_borrowed_reader, reader.in_python) or (
            not holds(memory, at_mark, None) or not holds(memory, at_stream_owner, owner)
            or <uintptr_t>get(memory, at_borrowed_stream) != stream
        ):
            # The storage keeps it.
            memory = borrowed(reader, kind, low, ordinal, stream, owner, None)
    tensor = PyType_GenericAlloc(classes[Tensor], 0)
    put(tensor, at_former, None)
    put(tensor, at_kind, None)
    put(tensor, at_source, memory)
    put(tensor, at_device_of, device)
    put(tensor, at_dtype, get(kind, at_kind_dtype))
    put(tensor, at_shape, get(kind, at_kind_shape))
    put(tensor, at_layout, get(kind, at_kind_layout))
    put(tensor, at_key, get(kind, at_kind_key))
    put(tensor, at_fingerprint, get(kind, at_unaligned if address % VECTOR else at_aligned))
    put(tensor, at_handle, None)
    put(storage, at_holders, get(storage, at_holders) + 1)
    put(tensor, at_storage, storage)
    number, known_handles = address, get(kind, at_handles)
    handle = found(known_handles, number)
    if handle is None:
        handle = tensor.handle
        known_handles[number] = handle
    put(tensor, at_handle, handle)
    return tensor


cdef object borrowed(
    ArrayReader reader, object kind, object low, object ordinal, object stream, object owner,
    object keep,
):
    """`Borrowed`."""
    cdef object memory = PyType_GenericAlloc(classes[Borrowed], 0)
    put(memory, at_export, None)
    put(memory, at_borrowed_address, low)
    put(memory, at_keep, keep)
    put(memory, at_borrowed_lent, False)
    put(memory, at_mark, None)
    put(memory, at_borrowed_nbytes, get(kind, at_kind_nbytes))
    put(memory, at_borrowed_ordinal, ordinal)
    put(memory, at_stream_owner, owner)
    put(memory, at_borrowed_reader, reader.in_python)
    put(memory, at_borrowed_stream, stream)
    return memory


# --- order -----------------------------------------------------------------------------------

cdef unsigned own_order = 0  # the version of `Borrowed` that was compared last


cdef bint is_order_own() except -1:
    """Whether `Borrowed` has its own `order`: a test may have replaced it."""
    global own_order
    if na_version(classes[Borrowed]) != own_order or not own_order:
        method = vars(<object>classes[Borrowed])["order"]
        if method is not python["Borrowed.order"] and method is not globals().get("Borrowed_order"):
            return False
        own_order = na_version(classes[Borrowed])
    return True


cdef int order_source(object source, object queue, uintptr_t* behind) except -1:
    """`order` of a tensor's source; `behind` is the stream that `queue` was put behind last."""
    if not isa(source, Borrowed) or not is_order_own() or not is_ordered(source, queue, behind):
        source.order(queue)
    return 0


cdef bint is_ordered(object source, object queue, uintptr_t* behind) except -1:
    """`Borrowed.order`, if no more is needed than what its library says of its current stream."""
    cdef DriverStream calls = calls_of(queue)
    cdef ArrayReader reader
    cdef uintptr_t current, noted
    if calls is None or not holds(source, at_mark, None):
        return False
    reader = get(get(source, at_borrowed_reader), at_reader_core)
    noted = get(source, at_borrowed_stream)
    current = reader.current_stream(get(source, at_borrowed_ordinal))
    if current == 0 or (current != behind[0] and not put_behind(calls, current)):
        return False
    behind[0] = current
    return noted == 0 or noted == current or put_behind(calls, noted)


def Borrowed_order(self, stream):
    cdef uintptr_t behind = 0
    if not on or not isa(self, Borrowed) or not is_ordered(self, stream, &behind):
        python["Borrowed.order"](self, stream)


def CudaStream_put_behind(self, other):
    cdef DriverStream calls = calls_of(self) if on else None
    if calls is None or not put_behind(calls, other):
        python["CudaStream.put_behind"](self, other)


cdef bint put_behind(DriverStream calls, uintptr_t other) except -1:
    """`CudaStream.put_behind`. False: Python says why not."""
    cdef int status = 0, result
    cdef object spare, event
    cdef void* number
    if other == <uintptr_t>calls.number:
        return True
    if na_is_elsewhere(calls.ordinal):
        enter(calls.device)
    if is_capturing(<void*>other, &status) != 0 or status != 0:
        return False
    with nogil:
        result = query_stream(<void*>other)
    if result == 0:
        return True
    if result != NOT_READY:
        return False
    spare = calls.device.events
    event = spare.take()
    number = <void*><uintptr_t>event
    with nogil:
        result = record_event(number, <void*>other)
        if result == 0:
            result = wait_for_event(calls.number, number, 0)
    spare.numbers.append(event)
    if result != 0:
        fail(result, "cuStreamWaitEvent")
    return True
