# A launch that is complete but for its arguments, which are packed here.

cdef enum:
    MOST = 32  # arguments

MOST_ARGUMENTS = MOST


ctypedef struct launch_s:
    void* function
    void* stream
    unsigned extents[7]
    size_t size  # of the arguments, in bytes


cdef int submit(launch_s* launch, char* arguments) noexcept nogil:
    cdef unsigned* e = launch.extents
    cdef void* description[5]
    description[0], description[1] = <void*>1, arguments  # CU_LAUNCH_PARAM_BUFFER_POINTER
    description[2], description[3] = <void*>2, &launch.size  # CU_LAUNCH_PARAM_BUFFER_SIZE
    description[4] = NULL
    return launch_kernel(
        launch.function, e[0], e[1], e[2], e[3], e[4], e[5], e[6], launch.stream, NULL, description
    )


cdef class LaunchRecord:
    """A launch prepared for one stream, complete but for its arguments; as `launch_records.Record`.

    `parts` has for each argument its `struct` code, "s" for an array as numba-cuda passes it, "m"
    for one as numba-cuda-mlir does, or "" for nothing, and its offset in the buffer of `nbytes`
    bytes. The caller serialises the launches of a record.
    """
    cdef launch_s launch
    cdef char* buffer
    cdef int count
    cdef char code[MOST]
    cdef int offset[MOST]

    def __cinit__(self, function, grid, block, shared_bytes, stream, nbytes, parts, constants):
        if len(parts) > MOST or launch_kernel == NULL:
            raise ValueError(f"{len(parts)} arguments")
        self.launch.function = <void*><uintptr_t>function
        self.launch.stream = <void*><uintptr_t>stream
        for i, extent in enumerate((*grid, *block, shared_bytes)):
            self.launch.extents[i] = extent
        self.launch.size = nbytes
        self.buffer = <char*>PyMem_Calloc(1, nbytes + 8)
        if self.buffer == NULL:
            raise MemoryError
        self.count = len(parts)
        for i, (code, offset) in enumerate(parts):
            self.code[i], self.offset[i] = ord(code or "x"), offset
        self.count -= len(constants)
        for i, constant in enumerate(constants):
            if not self.pack(self.count + i, constant):
                raise OverflowError(constant)

    def __dealloc__(self):
        PyMem_Free(self.buffer)

    def run(self, args):
        """Launch with these arguments; the driver's result. As `struct`, it refuses what does not
        fit.
        """
        cdef int i, result
        for i in range(self.count):
            if is_array(self.code[i]):
                packed_of(args[i])  # before the buffer is used, since Python code may make them
        for i in range(self.count):
            if is_array(self.code[i]):
                self.pack_array(i, args[i])
            elif not self.pack(i, args[i]):
                raise OverflowError(f"{args[i]!r} does not fit {chr(self.code[i])!r}")
        with nogil:
            result = submit(&self.launch, self.buffer)
        return result

    cdef bint packs(self, tuple args) except -1:
        """Write the arguments to the buffer. False: one does not fit, and Python says why."""
        cdef int i
        for i in range(self.count):
            if is_array(self.code[i]):
                self.pack_array(i, args[i])
            elif not self.pack(i, args[i]):
                return False
        return True

    cdef inline int pack_array(self, int i, object handle) except -1:
        cdef object packed = packed_of(handle)
        cdef char* to = self.buffer + self.offset[i]
        if self.code[i] == c"m":
            write_memref(
                <int64_t*>to, <int64_t*>PyBytes_AS_STRING(packed), PyBytes_GET_SIZE(packed) // 8
            )
        else:
            memcpy(to, PyBytes_AS_STRING(packed), PyBytes_GET_SIZE(packed))
        return 0

    cdef bint pack(self, int i, object value) except -1:
        """Write a number. False: it does not fit, or is no number; Python says why."""
        cdef char* to = self.buffer + self.offset[i]
        cdef char code = self.code[i]
        cdef int64_t number
        cdef double real
        if code == c"x":
            return True
        if PyFloat_CheckExact(value) and (code == c"d" or code == c"f"):
            return write_float(to, code, PyFloat_AS_DOUBLE(value))
        try:
            if code == c"d" or code == c"f" or code == c"e":
                return write_float(to, code, value)
            if code == c"?":
                to[0] = 1 if value else 0
                return True
            value = PyNumber_Index(value)  # no float is an integer
            if code == c"Q":
                (<uint64_t*>to)[0] = value
                return True
            number = value
        except (TypeError, OverflowError, ValueError):
            return False
        if code == c"q":
            (<int64_t*>to)[0] = number
        elif code == c"i" and number == <int32_t>number:
            (<int32_t*>to)[0] = <int32_t>number
        elif code == c"I" and number == <uint32_t>number:
            (<uint32_t*>to)[0] = <uint32_t>number
        elif code == c"h" and number == <int16_t>number:
            (<int16_t*>to)[0] = <int16_t>number
        elif code == c"H" and number == <uint16_t>number:
            (<uint16_t*>to)[0] = <uint16_t>number
        elif code == c"b" and number == <int8_t>number:
            (<int8_t*>to)[0] = <int8_t>number
        elif code == c"B" and number == <uint8_t>number:
            (<uint8_t*>to)[0] = <uint8_t>number
        else:
            return False
        return True


cdef inline bint is_array(char code) noexcept:
    return code == c"s" or code == c"m"


cdef void write_memref(int64_t* to, int64_t* fields, Py_ssize_t count) noexcept:
    """Write the parameters of an array for numba-cuda-mlir, from its `CudaArray.fields`: the address
    twice, no offset, extents, and strides in elements.
    """
    cdef Py_ssize_t i, rank = (count - 5) // 2
    to[0], to[1], to[2] = fields[4], fields[4], 0
    for i in range(rank):
        to[3 + i] = fields[5 + i]
        to[3 + rank + i] = fields[5 + rank + i] // fields[3]


cdef inline object packed_of(object handle):
    """The parameters of an array, as bytes. The first time they are made, by Python code."""
    cdef object packed = get_or_none(handle, CudaArray_packed) if isa(handle, CudaArray) else None
    return handle.packed if packed is None else packed


cdef bint write_float(char* to, char code, double real) except -1:
    """Write a number of 64, 32 or 16 bits. False: it is finite, and too large."""
    cdef float single
    if code == c"d":
        (<double*>to)[0] = real
    elif code == c"f":
        single = <float>real
        if single - single != 0 and real - real == 0:
            return False
        (<float*>to)[0] = single
    else:
        PyFloat_Pack2(real, to, 1)
    return True
