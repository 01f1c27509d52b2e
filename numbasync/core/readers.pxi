# Readers of other libraries' arrays, and where arrays lay that they have read.

cdef extern from "Python.h":
    void PyErr_Clear() noexcept
    object PyWeakref_NewRef(object, PyObject*)

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
    BY_TABLE = 1  # DLPack's table of C functions
    BY_CUPY = 2
    BY_VIEW = 3  # what Python reads
    ON_GPU = 2  # DLPack's type of CUDA devices
    ON_GPU_MANAGED = 13
    OF_COMPLEX = 5  # DLPack's kind of complex numbers
    MOST_ATTRIBUTES = 7
    OF_ONE_AXIS = 16  # bytes of a description that has no strides; none other is as long

cdef tuple of_array = ("data", "dtype", "shape", "strides", "_c_contiguous", "ndim", "size")
cdef tuple of_memory = ("device_id", "ptr")
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

cdef extern from *:
    """
    /* The object of a weak reference, None where it has ended; nothing runs. */
    static PyObject *na_referent(PyObject *weak) {
        PyObject *found = NULL;
        if (!PyWeakref_Check(weak)) Py_RETURN_NONE;
    #if PY_VERSION_HEX >= 0x030D0000
        if (PyWeakref_GetRef(weak, &found) < 0) return NULL;
        if (found == NULL) Py_RETURN_NONE;
        return found;
    #else
        found = PyWeakref_GET_OBJECT(weak);
        return Py_NewRef(found);
    #endif
    }
    /* The C function of an attribute of a class, and of a method without arguments; NULL, if the
       class has them otherwise. */
    static getter na_getter(PyObject *cls, const char *name, void **closure) {
        PyObject *d = PyObject_GetAttrString(cls, name);
        getter result = NULL;
        if (d == NULL) PyErr_Clear();
        else if (Py_IS_TYPE(d, &PyGetSetDescr_Type)
                 && PyType_IsSubtype((PyTypeObject *)cls, ((PyDescrObject *)d)->d_type)) {
            result = ((PyGetSetDescrObject *)d)->d_getset->get;
            *closure = ((PyGetSetDescrObject *)d)->d_getset->closure;
        }
        Py_XDECREF(d);
        return result;
    }
    static PyCFunction na_method(PyObject *cls, const char *name) {
        PyObject *d = PyObject_GetAttrString(cls, name);
        PyCFunction result = NULL;
        if (d == NULL) PyErr_Clear();
        else if (Py_IS_TYPE(d, &PyMethodDescr_Type)
                 && PyType_IsSubtype((PyTypeObject *)cls, ((PyDescrObject *)d)->d_type)
                 && ((PyMethodDescrObject *)d)->d_method->ml_flags == METH_NOARGS)
            result = ((PyMethodDescrObject *)d)->d_method->ml_meth;
        Py_XDECREF(d);
        return result;
    }
    """
    ctypedef object (*getter_t "getter")(object, void*)
    ctypedef object (*method_t "PyCFunction")(object, PyObject*)
    object na_referent(object)
    getter_t na_getter(object, const char*, void**) noexcept
    method_t na_method(object, const char*) noexcept

cdef enum:
    MOST_DESCRIBED = 8 + 16 * MOST_QUICK_AXES
    MOST_PLACES = 1024  # of a reader; a power of two

ctypedef struct reading_s:
    uintptr_t address
    int ordinal
    Py_ssize_t length  # of the description
    char description[MOST_DESCRIBED]  # elements, rank, extents, strides


cdef class Place:
    """An array at an address, and what follows from that. It has no hold on the memory.

    The address map may have another entry there by now, and the device may be another one: who uses
    a place looks.
    """
    cdef reading_s reading
    cdef object dtype  # of a description that names it by its address
    cdef object kind, backend, entry, low, ordinal, number, fingerprint, handle
    cdef object source  # a `Borrowed` without a hold on the memory, which the storage has
    cdef uintptr_t stream  # of `source`

    cdef inline bint is_of(self, reading_s* r) noexcept:
        return self.reading.address == r.address and self.reading.ordinal == r.ordinal and (
            self.reading.length == r.length
            and memcmp(self.reading.description, r.description, r.length) == 0
        )


cdef inline Py_ssize_t place_number(reading_s* r) noexcept:
    """Where the place of a reading is among those of its reader."""
    cdef uint64_t mixed = r.address
    if r.length > 8:
        mixed ^= <uint64_t>(<int64_t*>(r.description + 8))[0] << 1
    return (mixed * <uint64_t>0x9E3779B97F4A7C15) >> 54


ctypedef struct getters_s:  # the functions of a class's attributes; NULL: it is looked up
    unsigned version  # of the class, which no other class has
    getter_t function[MOST_ATTRIBUTES]
    void* closure[MOST_ATTRIBUTES]


cdef inline int learn_getters(getters_s* known, object x, tuple names) except -1:
    """Note the functions of these attributes of an object's class, unless they are known."""
    cdef getters_s new
    cdef Py_ssize_t i
    cdef bytes name
    if known.version and na_version(Py_TYPE(x)) == known.version:
        return 0
    for i in range(PyTuple_GET_SIZE(names)):
        name = (<str>names[i]).encode()
        new.closure[i] = NULL
        new.function[i] = na_getter(type(x), name, &new.closure[i])
    new.version = na_version(Py_TYPE(x))
    known[0] = new
    return 0


cdef inline object attribute(getters_s* known, object x, tuple names, Py_ssize_t i):
    if known.function[i] != NULL:
        return known.function[i](x, known.closure[i])
    return getattr(x, names[i])


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
    cdef getters_s of_array, of_memory  # of CuPy's classes
    cdef object cls  # of a table's arrays
    cdef unsigned version  # of `cls`, whose functions these are; they are called without a lookup
    cdef object read_view  # of `Library`
    cdef getter_t gradient
    cdef void* of_gradient
    cdef method_t sign
    cdef dict kinds  # of a table's arrays, by the bytes that describe them
    cdef list places  # by `place_number`

    def __cinit__(
        self, in_python, str style, describe=0, manage=0, current=0, has_gradients=False,
        has_signs=False, current_of_cupy=None, cls=None,
    ):
        self.in_python, self.kinds, self.current_of_cupy = in_python, {}, current_of_cupy
        self.style = {"table": BY_TABLE, "cupy": BY_CUPY, "view": BY_VIEW}[style]
        self.read_view = in_python.library.read
        self.describe, self.manage = <describe_t><uintptr_t>describe, <manage_t><uintptr_t>manage
        self.current = <current_stream_t><uintptr_t>current
        self.has_gradients, self.has_signs, self.cls = has_gradients, has_signs, cls
        self.places = [None] * MOST_PLACES

    cdef uintptr_t current_stream(self, int ordinal) except? 0:
        """The handle of the library's current stream; 0: Python says why there is none."""
        cdef void* stream = NULL
        if self.style == BY_CUPY:
            return <uintptr_t>(self.current_of_cupy(ordinal).ptr) or LEGACY
        if self.style != BY_TABLE:
            return 0
        if self.current(ON_GPU, ordinal, &stream) != 0:
            PyErr_Clear()
            return 0
        return <uintptr_t>stream or LEGACY

    cdef object kept(self, object x):
        """An object that keeps the array's memory; None: Python says why there is none."""
        cdef Managed managed
        if self.style == BY_CUPY:
            return x.data
        if self.style == BY_VIEW:
            return self.in_python.library.keep(x)
        managed = Managed.__new__(Managed)
        if self.manage(<PyObject*>x, &managed.managed) != 0:
            PyErr_Clear()
            managed.managed = NULL
            return None
        return managed

    cdef bint is_more(self, object x, int code) except -1:
        """Whether an array has a gradient, or signs that are not in its memory."""
        cdef bint is_exact = <PyObject*>Py_TYPE(x) == <PyObject*>self.cls
        if is_exact and (not self.version or na_version(Py_TYPE(x)) != self.version):
            self.gradient = na_getter(self.cls, "requires_grad", &self.of_gradient)
            self.sign = na_method(self.cls, "is_neg")
            self.version = na_version(Py_TYPE(x))
        if self.has_gradients:
            if is_exact and self.gradient != NULL:
                value = self.gradient(x, self.of_gradient)
            else:
                value = x.requires_grad
            if value is not False:
                return True
        if self.has_signs:
            value = self.sign(x, NULL) if is_exact and self.sign != NULL else x.is_neg()
            return bool(value) or (code == OF_COMPLEX and bool(x.is_conj()))
        return False

    cdef bint read(self, object x, reading_s* r) except -1:
        """Read an array. False: it is left to the protocols."""
        cdef lent_s t
        if self.describe(<PyObject*>x, &t) != 0:
            PyErr_Clear()
            return False
        if (t.device_type != ON_GPU and t.device_type != ON_GPU_MANAGED) or (
            not 0 <= t.ndim <= MOST_QUICK_AXES or (
                t.ndim and (t.shape == NULL or t.strides == NULL)
            )
        ):
            return False
        # What is described is the library's until Python code runs.
        memcpy(r.description, &t.code, 4)
        memcpy(r.description + 4, &t.ndim, 4)
        if t.ndim:
            memcpy(r.description + 8, t.shape, 8 * t.ndim)
            memcpy(r.description + 8 + 8 * t.ndim, t.strides, 8 * t.ndim)
        r.address, r.ordinal = <uintptr_t>t.data + t.byte_offset, t.device_id
        r.length = 8 + 16 * t.ndim
        return not self.is_more(x, t.code)

    cdef Place place_of_cupy(self, object x, reading_s* r):
        """The place of an array of CuPy; None: it is left to Python.

        CuPy makes a tuple each time that it is asked for a shape, and for strides. An array of one
        axis without gaps is described by its size: at a place that is known, no more is asked.
        """
        cdef getters_s array, memory
        cdef object data, dtype, shape, strides
        cdef int64_t* numbers = <int64_t*>r.description
        cdef Place place
        learn_getters(&self.of_array, x, of_array)
        array = self.of_array
        data = attribute(&array, x, of_array, 0)
        learn_getters(&self.of_memory, data, of_memory)
        memory = self.of_memory  # copied: another thread may meet memory of another class
        r.ordinal = attribute(&memory, data, of_memory, 0)
        r.address = attribute(&memory, data, of_memory, 1)
        dtype = attribute(&array, x, of_array, 1)
        r.length = 0
        # By C functions alone: no other thread gives the array another shape in between.
        if array.function[4] != NULL and array.function[5] != NULL and array.function[6] != NULL:
            if attribute(&array, x, of_array, 4) is True and attribute(&array, x, of_array, 5) == 1:
                numbers[0] = <int64_t><uintptr_t><PyObject*>dtype
                numbers[1] = attribute(&array, x, of_array, 6)
                r.length = OF_ONE_AXIS
                place = self.places[place_number(r)]
                if place is not None and place.is_of(r):
                    return place
        shape, strides = attribute(&array, x, of_array, 2), attribute(&array, x, of_array, 3)
        view = (r.ordinal, r.address, dtype, shape, strides)
        if r.length and PyTuple_CheckExact(strides) and shape == (numbers[1],):
            return self.place_of(view, r)
        return self.place_of_view(view, r)

    cdef Place place_of_view(self, object view, reading_s* r):
        """The place of an array that has this view, or its start; None: it is left to Python."""
        cdef object dtype = view[2], shape = view[3], strides = view[4]
        cdef Py_ssize_t i, ndim
        if not PyTuple_CheckExact(shape) or not PyTuple_CheckExact(strides):
            return None
        ndim = PyTuple_GET_SIZE(shape)
        if ndim > MOST_QUICK_AXES or PyTuple_GET_SIZE(strides) != ndim:
            return None
        (<uintptr_t*>r.description)[0] = <uintptr_t><PyObject*>dtype
        for i in range(ndim):
            (<int64_t*>r.description)[1 + i] = <object>PyTuple_GET_ITEM(shape, i)
            (<int64_t*>r.description)[1 + ndim + i] = <object>PyTuple_GET_ITEM(strides, i)
        r.ordinal, r.address, r.length = view[0], view[1], 8 + 16 * ndim
        return self.place_of(view, r)

    cdef Place place_of(self, object view, reading_s* r):
        """The place of an array that was read, with this view or by the table; None: Python
        decides.
        """
        cdef Py_ssize_t number = place_number(r)
        cdef Place place
        cdef object kind, ordinal, device, description, entry, held = self.places[number]
        cdef int64_t low
        if held is not None:
            place = held
            if place.is_of(r):
                return place
        if view is not None:
            kind = found(kinds, view[2:5])
        else:
            description = PyBytes_FromStringAndSize(r.description, r.length)
            kind = found(self.kinds, description)
            if kind is None:
                kind = kind_of_bytes(description)
                if PyDict_Size(self.kinds) >= MOST_KINDS:
                    self.kinds = {}
                self.kinds[description] = kind
        ordinal = r.ordinal
        device = found(gpus, ordinal)
        if not isa(kind, ArrayKind) or device is None or not isa(device, Device) or (
            r.address == 0 or r.address % <uintptr_t>get(kind, ArrayKind_alignment)
        ):
            return None
        low = <int64_t>r.address + <int64_t>get(kind, ArrayKind_low)
        place = Place.__new__(Place)
        place.backend, place.low = get(device, Device_backend), low
        entry = found(entries, (place.backend, low, low + <int64_t>get(kind, ArrayKind_nbytes)))
        if entry is None or not isa(entry, Entry):
            return None
        place.reading, place.kind = r[0], kind
        place.dtype = None if view is None else view[2]
        place.entry, place.ordinal, place.number = entry, ordinal, r.address
        place.fingerprint = get(
            kind, ArrayKind_unaligned if r.address % VECTOR_BYTES else ArrayKind_fingerprint
        )
        self.places[number] = place
        return place

    cdef int forget(self, Place place) except -1:
        """Forget a place whose entry may not be in the address map any more."""
        cdef Py_ssize_t number = place_number(&place.reading)
        if self.places[number] is place:
            self.places[number] = None
        return 0
