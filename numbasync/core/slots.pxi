# The switch, the replaced Python functions, and the slots that the core reads: see `core_table.py`.

cdef bint on = False  # else every function calls its Python function
cdef dict python = {}  # the Python functions, by qualified name
cdef Py_ssize_t where[PLACES]  # offsets
cdef PyTypeObject* classes[CLASSES]
cdef ternaryfunc calls_of_python = NULL  # of `Launcher`
cdef destructor ends_of_python = NULL  # of operations
cdef dict known = {}  # the classes by name, which keeps them alive
cdef dict offsets = {}
cdef object zero = 0


def know(cls):
    """Note a class whose slots the core reads; it is switched on when all are known."""
    names = wanted.get(cls.__name__)
    if names is not None:
        for name in names:
            offset = na_offset(getattr(cls, name, None))
            if offset < 0:
                raise TypeError(f"{cls.__name__}.{name} is no slot")
            offsets[cls.__name__, name] = offset
        known[cls.__name__] = cls
        learn()
    return cls


def take_over(function):
    """The function of this module in the place of a Python function, or that itself."""
    name = function.__qualname__
    python[name] = function
    return globals().get(name.replace(".", "_"), function)


def taken_over():
    """The names of the Python functions that were handed to `take_over`."""
    return list(python)


def switch(state):
    """Switch the core on or off; whether it is on. It stays off if a class is not known."""
    global on
    on = bool(state) and not wanted.keys() - known.keys() - IMPORTED_LATER
    return on


def is_on():
    return on


cdef int learn() except -1:
    """Note the offsets and classes that are known by now."""
    global calls_of_python, ends_of_python
    cdef int i
    cdef ternaryfunc calls
    cdef destructor ends
    places = [offsets.get((name, slot), 0) for name, slots in wanted.items() for slot in slots]
    if len(places) != PLACES or len(wanted) != CLASSES:
        raise SystemError(f"{len(places)} slots for {PLACES} places")
    for i, offset in enumerate(places):
        where[i] = offset
    for i, name in enumerate(wanted):
        classes[i] = <PyTypeObject*>known[name] if name in known else NULL
    if classes[Launcher] != NULL:
        calls = call_before(classes[Launcher], <void*>call_launcher)
        calls_of_python = calls if calls != NULL else calls_of_python
    for i in (Launch, Then, Full, FromHost, ToHost, GraphLaunch, Storage, Tensor):
        if classes[i] != NULL:
            ends = end_before(classes[i], <void*>(
                end_of_launch if i == Launch else end_of_link if i == Then
                else end_of_storage if i == Storage else end_of_tensor if i == Tensor
                else end_of_simple
            ))
            ends_of_python = ends if ends != NULL else ends_of_python
    return 0


cdef inline bint isa(object o, int cls) noexcept:
    """Whether an object is exactly of this class."""
    return Py_TYPE(o) == classes[cls]


cdef inline object get(object o, int at):
    """The object in a slot."""
    cdef PyObject* value = na_get(<PyObject*>o, where[at])
    if value == NULL:
        refuse_empty(o)
    return <object>value


cdef int refuse_empty(object o) except -1:
    raise AttributeError(f"a slot of {type(o).__name__} is empty")


cdef inline object get_or_none(object o, int at):
    """The object in a slot that may be empty."""
    cdef PyObject* value = na_get(<PyObject*>o, where[at])
    return None if value == NULL else <object>value


cdef inline void put(object o, int at, object value) noexcept:
    na_put(<PyObject*>o, where[at], <PyObject*>value)


cdef inline bint holds(object o, int at, object value) noexcept:
    """Whether a slot holds this very object."""
    return na_get(<PyObject*>o, where[at]) == <PyObject*>value


cdef inline object found(object entries, object key):
    """The value of a key of a dict, or None. A dict lends its values, and comparing keys may run
    Python code.
    """
    cdef PyObject* value = PyDict_GetItemWithError(entries, key)
    return None if value == NULL else <object>value


cdef inline tuple new_tuple(Py_ssize_t count):
    """A tuple with empty places. The collector, and so `gc.get_objects`, shows it to nobody until
    it is `complete`.
    """
    cdef tuple items = PyTuple_New(count)
    if count:
        PyObject_GC_UnTrack(<PyObject*>items)
    return items


cdef inline void put_item(tuple items, Py_ssize_t i, object value) noexcept:
    """Put a value into an empty place."""
    Py_INCREF(value)
    PyTuple_SET_ITEM(items, i, value)


cdef inline void complete(tuple items) noexcept:
    """Show the collector a new tuple, whose places are filled."""
    if PyTuple_GET_SIZE(items):
        PyObject_GC_Track(<PyObject*>items)
