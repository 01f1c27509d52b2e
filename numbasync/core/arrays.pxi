# The operations of new arrays, of uploads and of downloads.

cdef object specs = None  # of `array_spec`: (shape, scalar type) -> spec
cdef object ndarray = None
cdef int64_t LARGE = 0  # bytes of an array that is copied by several threads
cdef object pattern_of = None  # the value whose pattern was asked for last
cdef int pattern_unit = 0
cdef unsigned pattern_number = 0


def know_memory(known_specs, array_class, large, counting):
    """Note the specs of new arrays, NumPy's class of arrays, the bytes of the largest array that is
    copied by one thread, and the `counters`.
    """
    global specs, ndarray, LARGE, counters
    specs, ndarray, LARGE, counters = known_specs, array_class, large, counting


cdef object is_filled_by_python = None
cdef object bytes_dtype = None


def know_unfilled(python_is_filled, dtype):
    """Note `unfilled.is_filled`, and the dtype of the memory of downloads."""
    global is_filled_by_python, bytes_dtype
    is_filled_by_python, bytes_dtype = python_is_filled, dtype


cdef inline bint may_be_read(object array, object submission) except -1:
    """`unfilled.is_filled`: only Python looks for who is still to fill the array."""
    cdef object base = array.base
    if holds(submission, Submission_after, None) and (
        holds(submission, Submission_dependencies, None)
    ) and (
        base is None
        or (type(base) is ndarray and base.base is None and base.dtype is not bytes_dtype)
    ):
        return True
    return is_filled_by_python(array, submission)


cdef inline object new_op(int cls):
    """A `SimpleOp` of the Python code that is running."""
    cdef PyFrameObject* frame = PyEval_GetFrame()
    cdef object op
    if frame == NULL:
        return None
    op = PyType_GenericAlloc(classes[cls], 0)
    put(op, SimpleOp__unused, True)
    put(op, SimpleOp__site, made_at(frame))
    return op


cdef object spec_for(object shape, object dtype):
    """The spec of a plain shape and a scalar type, if it is known."""
    if PyLong_CheckExact(shape):
        shape = (shape,)
    elif PyTuple_CheckExact(shape):
        for extent in <tuple>shape:
            if not PyLong_CheckExact(extent):
                return None
    else:
        return None
    if not on or <PyObject*>Py_TYPE(dtype) != <PyObject*>type:
        return None
    return found(specs, (shape, dtype))


cdef object new_full(object spec, object value, str name):
    cdef object op = new_op(Full)
    if op is not None:
        put(op, Full__kind, spec)
        put(op, Full__value, value)
        put(op, Full__name, name)
    return op


def empty(shape, dtype=float32):
    cdef object spec = spec_for(shape, dtype), op
    op = None if spec is None else new_full(spec, None, "empty")
    return python["empty"](shape, dtype) if op is None else op


def zeros(shape, dtype=float32):
    cdef object spec = spec_for(shape, dtype), op = None
    if spec is not None and not holds(spec, ArraySpec_zero, None):
        op = new_full(spec, get(spec, ArraySpec_zero), "zeros")
    return python["zeros"](shape, dtype) if op is None else op


def from_host(array):
    cdef object spec = None, op = None
    if on and type(array) is ndarray:
        dtype = array.dtype
        spec = found(specs, (array.shape, dtype.type))
        if spec is not None and holds(spec, ArraySpec_dtype, dtype):
            op = new_op(FromHost)
    if op is None:
        return python["from_host"](array)
    put(op, Full__kind, spec)
    put(op, Full__name, "from_host")
    put(op, FromHost__array, array)
    put(op, FromHost_has_fast_path, 0 < <int64_t>get(spec, ArraySpec_nbytes) <= LARGE)
    return op


def Tensor_to_host(self):
    cdef object op = new_op(ToHost) if on and isa(self, Tensor) else None
    if op is None:
        return python["Tensor.to_host"](self)
    put(op, ToHost__tensor, self)
    return op


cdef bint is_simple(object op) noexcept:
    """Whether an operation is a `SimpleOp` of a class with a fast path."""
    return isa(op, Full) or isa(op, ToHost) or isa(op, FromHost) or isa(op, GraphLaunch)


cdef object result_of(object op):
    """`SimpleOp.result`."""
    cdef object result
    if isa(op, GraphLaunch):
        return None
    result = get(op, SimpleOp__result)
    na_clear(<PyObject*>op, where[SimpleOp__result])
    return result


cdef object name_of(object op):
    """The label of an operation that is no launch."""
    cdef object spec = None, label = None, tensor
    if isa(op, ToHost):
        tensor = get(op, ToHost__tensor)
        if isa(tensor, Tensor):
            spec, name = get(tensor, DeviceArray__kind), "to_host"
    elif isa(op, Full) or isa(op, FromHost):
        spec, name = get(op, Full__kind), get(op, Full__name)
    if spec is not None:
        label = found(get(spec, ArraySpec_labels), name)
    return op.label if label is None else label
