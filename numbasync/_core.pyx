# cython: language_level=3, boundscheck=False, wraparound=False, binding=True, auto_pickle=False
"""The compiled core: the hot path of launches, in the place of Python functions of equal meaning.

The Python code is the specification. `native.compiled` puts a function of this module in the place
of the Python function of the same qualified name, with `_` for `.`. The Python function is called
for everything unusual: lazy arguments, work of other streams that must be waited for, limits,
faults, classes that are not exactly the known ones. Rules and messages are there, once.

Attributes that are slots are read by their offsets, which `know` takes from the classes' own
descriptors; every class is compared exactly before. The core opens no library: the backend hands in
the addresses of the driver's functions.
"""
from asyncio import _get_running_loop as get_running_loop, current_task
from cpython.buffer cimport (
    PyBUF_ND, PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_SetItem, PyDict_Size
from cpython.list cimport PyList_Append, PyList_GET_SIZE
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyTuple_New, PyTuple_SET_ITEM
from libc.stdint cimport (
    int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t,
)
from libc.string cimport memcpy
from numpy import float32

cdef extern from "Python.h":
    ctypedef struct PyFrameObject:
        pass
    ctypedef void* PyThread_type_lock
    PyFrameObject* PyEval_GetFrame()
    object na_code "(PyObject *)PyFrame_GetCode" (PyFrameObject*)
    int PyFrame_GetLasti(PyFrameObject*)
    object PyFrame_GetGlobals(PyFrameObject*)
    PyObject* PyDict_GetItemWithError(object, object) except? NULL
    object PyType_GenericAlloc(PyTypeObject*, Py_ssize_t)
    Py_ssize_t PyObject_Size(object) except -1
    PyTypeObject* Py_TYPE(object) noexcept
    PyObject* PyList_GET_ITEM(object, Py_ssize_t) noexcept
    object PyNumber_Index(object)
    int PyFloat_Pack2(double, char*, int) except -1
    bint PyFloat_CheckExact(object) noexcept
    double PyFloat_AS_DOUBLE(object) noexcept
    unsigned long PyThread_get_thread_ident() noexcept
    PyThread_type_lock PyThread_allocate_lock()
    int PyThread_acquire_lock(PyThread_type_lock, int) nogil
    void PyThread_release_lock(PyThread_type_lock)
    void PyThread_free_lock(PyThread_type_lock)
    bint PyLong_CheckExact(object) noexcept
    bint PyTuple_CheckExact(object) noexcept

cdef extern from *:
    """
    #include "structmember.h"
    #ifdef _WIN32
    #define NA_THREAD __declspec(thread)
    #else
    #define NA_THREAD __thread
    #endif
    static NA_THREAD long na_ordinal = -1;  /* of the device whose context is current */
    static NA_THREAD int na_busy = 0;       /* this thread is enqueuing an operation */

    /* The offset of a slot that holds an object, or -1. */
    static Py_ssize_t na_offset(PyObject *descriptor) {
        PyMemberDef *member;
        if (!Py_IS_TYPE(descriptor, &PyMemberDescr_Type)) return -1;
        member = ((PyMemberDescrObject *)descriptor)->d_member;
        return member->type == T_OBJECT_EX || member->type == T_OBJECT ? member->offset : -1;
    }
    #define NA_SLOT(o, at) (*(PyObject **)((char *)(o) + (at)))
    static void na_put(PyObject *o, Py_ssize_t at, PyObject *value) {
        PyObject *old = NA_SLOT(o, at);
        Py_INCREF(value);
        NA_SLOT(o, at) = value;
        Py_XDECREF(old);
    }
    static void na_clear(PyObject *o, Py_ssize_t at) { Py_CLEAR(NA_SLOT(o, at)); }
    static PyObject *na_get(PyObject *o, Py_ssize_t at) { return NA_SLOT(o, at); }

    /* A new tuple of the class `cls`, which takes its items from a tuple. */
    static PyObject *na_tuple(PyObject *cls, PyObject *items) {
        PyObject *result = NULL;
    #if PY_VERSION_HEX < 0x030E0000
        Py_ssize_t i, n = PyTuple_GET_SIZE(items);
        result = ((PyTypeObject *)cls)->tp_alloc((PyTypeObject *)cls, n);
        for (i = 0; result != NULL && i < n; i++)
            PyTuple_SET_ITEM(result, i, Py_NewRef(PyTuple_GET_ITEM(items, i)));
    #else  /* tuples have more fields */
        PyObject *args = PyTuple_Pack(1, items);
        if (args != NULL) result = PyTuple_Type.tp_new((PyTypeObject *)cls, args, NULL);
        Py_XDECREF(args);
    #endif
        return result;
    }
    /* Put another item into a new tuple, of which nobody else knows. */
    static void na_replace(PyObject *items, Py_ssize_t i, PyObject *value) {
        PyObject *old = PyTuple_GET_ITEM(items, i);
        PyTuple_SET_ITEM(items, i, Py_NewRef(value));
        Py_DECREF(old);
    }
    /* Put a function before what a class does when it is called, or has ended; what it did. */
    static ternaryfunc na_call_before(PyTypeObject *cls, void *function) {
        ternaryfunc before = cls->tp_call;
        if ((void *)before == function) return NULL;
        cls->tp_call = (ternaryfunc)function;
        return before;
    }
    static destructor na_end_before(PyTypeObject *cls, void *function) {
        destructor before = cls->tp_finalize;
        if ((void *)before == function) return NULL;
        cls->tp_finalize = (destructor)function;
        return before;
    }
    #define na_version(cls) ((cls)->tp_version_tag)
    """
    long na_ordinal
    int na_busy
    Py_ssize_t na_offset(object) noexcept
    PyObject* na_get(PyObject*, Py_ssize_t) noexcept
    void na_put(PyObject*, Py_ssize_t, PyObject*) noexcept
    void na_clear(PyObject*, Py_ssize_t) noexcept
    object na_tuple(object, object)
    void replace_item "na_replace" (object, Py_ssize_t, object)
    ctypedef object (*ternaryfunc)(object, object, PyObject*)
    ctypedef void (*destructor)(PyObject*) noexcept
    ternaryfunc call_before "na_call_before" (PyTypeObject*, void*) noexcept
    destructor end_before "na_end_before" (PyTypeObject*, void*) noexcept
    unsigned na_version(PyTypeObject*) noexcept


# --- the switch, the classes, and the Python functions ---

cdef bint on = False  # else every function calls its Python function
cdef dict python = {}  # the Python functions, by qualified name
cdef dict wanted = {  # slots, by class; in the order of the places below
    "Submission": (
        "stream", "name", "site", "keep_alive", "launched", "sequence", "nbytes", "done", "error",
        "queue", "is_empty", "is_trivial", "signalled", "detached", "dependencies", "after",
        "_trace",
    ),
    "Progress": (
        "_abandoned", "_broken", "_confirmed", "_in_flight", "_lock", "_owner", "_sequence",
        "_signalled", "_suspended", "backend", "device", "has_dependencies", "nbytes", "verified",
    ),
    "Stream": ("_follows", "_spin_backoff", "_spin_misses"),
    "Device": ("_policy", "_pool", "backend", "busy", "is_limited", "lost", "submit_lock"),
    "StreamPoolRoundRobin": ("_turn",),
    "Storage": (
        "fast_path_device", "identity", "writer", "readers", "attached_graphs", "links", "maps",
        "holders", "memory", "pool",
    ),
    "DeviceArray": (
        "own_storage", "own_handle", "source", "_fingerprint", "_former", "_key", "_kind",
        "_layout", "device", "dtype", "shape",
    ),
    "Partition": ("tensor", "_fingerprint"),
    "TensorMap": ("mapped",),
    "Launch": (
        "_bound", "_config", "_form", "_launcher", "_lazy", "_parts", "_plan", "_site", "_tensors",
        "_unused", "_values", "has_fast_path",
    ),
    "PreparedLaunch": (
        "_config", "_form", "_launcher", "_numbers", "_parts", "_plan", "_positions", "_tensors",
        "_values",
    ),
    "Launcher": ("_forms", "_plain_count", "_latest", "Result", "label", "names", "planner"),
    "Config": ("extents", "stream"),
    "Plan": ("work", "empty"),
    "FastCall": ("core",),
    "_Enqueued": ("op", "submission"),
    "Counters": ("launches", "allocations", "copies", "replays"),
    "CudaStream": ("calls", "_last"),
    "CudaArray": ("packed",),
    "Then": ("_then", "is_plain"),
    "Reactor": ("_last", "_queues"),
    "ArraySpec": ("at", "dtype", "labels", "nbytes", "shape", "zero"),
    "SimpleOp": ("_result", "_site", "_unused"),
    "Full": ("_kind", "_name", "_value"),
    "FromHost": ("_array", "has_fast_path"),
    "ToHost": ("_tensor",),
    "GraphLaunch": ("_graph", "default_stream"),
    "CudaGraph": (
        "_attached", "_backend", "_dependencies", "_is_own", "_launches", "_names", "_recorded",
        "_updated", "device", "stream",
    ),
    "AttachedGraph": ("_latest", "_stream", "stale"),
    "LastLaunch": ("latest",),
    "MemoryPool": ("_pool", "fast_path_device", "max_bytes"),
    "CudaPool": ("_high", "_lock", "_most_spare", "_spare", "_spare_bytes", "_used"),
    "CudaMemory": ("address", "lent", "nbytes"),
    "PinnedPool": ("_sizes",),
    "_Size": ("is_small", "nbytes", "spare"),
    "Context": (), "Tensor": (), "MappedTensor": (), "Later": (),
}
OF_A_GPU = {  # known only where there is one
    "CudaStream", "CudaArray", "CudaPool", "CudaMemory", "PinnedPool", "_Size",
}
cdef enum:
    Submission, Progress, Stream, Device, RoundRobin, Storage, DeviceArray, Partition, TensorMap
    Launch, PreparedLaunch, Launcher, Config, Plan, Fast, Enqueued, Counters, CudaStream, CudaArray
    Then, Reactor, ArraySpec, SimpleOp, Full, FromHost, ToHost, GraphLaunch, Graph, AttachedGraph
    LastLaunch, MemoryPool, CudaPool, CudaMemory, PinnedPool, PinnedSize
    Context, Tensor, MappedTensor, Later
    CLASSES
cdef enum:
    at_stream, at_name, at_site, at_keep_alive, at_launched, at_number, at_nbytes, at_done
    at_error, at_queue, at_is_empty, at_is_trivial, at_signalled, at_detached, at_dependencies
    at_after, at_trace
    at_abandoned, at_broken, at_confirmed, at_in_flight, at_lock, at_owner, at_sequence
    at_last_signal, at_suspended, at_backend, at_device, at_has_dependencies, at_stream_nbytes
    at_verified
    at_follows, at_spin_backoff, at_spin_misses
    at_policy, at_pool, at_device_backend, at_busy, at_is_limited, at_lost, at_submit_lock
    at_turn
    at_fast_path_device, at_identity, at_writer, at_readers, at_graphs, at_links, at_maps
    at_holders, at_memory, at_owner_of_memory
    at_storage, at_handle, at_source, at_fingerprint, at_former, at_key, at_kind
    at_layout, at_device_of, at_dtype, at_shape
    at_tensor, at_tile_fingerprint
    at_mapped
    at_bound, at_config, at_form, at_launcher, at_lazy, at_parts, at_plan, at_built_at, at_tensors
    at_unused, at_values, at_has_fast_path
    at_prepared_config, at_prepared_form, at_prepared_launcher, at_numbers, at_prepared_parts
    at_prepared_plan, at_positions, at_prepared_tensors, at_prepared_values
    at_forms, at_plain_count, at_latest, at_result, at_label, at_names, at_planner
    at_extents, at_config_stream
    at_work, at_is_without_blocks
    at_core
    at_enqueued_op, at_enqueued_submission
    at_launches, at_allocations, at_copies, at_replays
    at_calls, at_last_written
    at_packed
    at_then, at_is_plain
    at_last_task, at_queues
    at_spec_layout, at_spec_dtype, at_labels, at_spec_nbytes, at_spec_shape, at_spec_zero
    at_result_of, at_made_at, at_is_unused
    at_spec, at_op_name, at_fill_value
    at_array, at_is_fast
    at_read
    at_graph, at_default_stream
    at_attached, at_backend_graph, at_graph_dependencies, at_is_own, at_graph_launches
    at_graph_names, at_recorded, at_updated, at_graph_device, at_graph_stream
    at_last_launch, at_graph_last_stream, at_stale
    at_last
    at_blocks, at_pool_device, at_max_bytes
    at_high, at_pool_lock, at_most_spare, at_spare, at_spare_bytes, at_used
    at_address, at_lent, at_memory_nbytes
    at_sizes
    at_is_small, at_size_nbytes, at_spare_blocks
    PLACES
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


def switch(wish):
    """Switch the core on or off; whether it is on. It stays off if a class is not known."""
    global on
    on = bool(wish) and not wanted.keys() - known.keys() - OF_A_GPU
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
    for i in (Launch, Full, FromHost, ToHost, GraphLaunch):
        if classes[i] != NULL:
            ends = end_before(classes[i], <void*>(end_of_launch if i == Launch else end_of_simple))
            ends_of_python = ends if ends != NULL else ends_of_python
    return 0


cdef inline bint isa(object o, int cls) noexcept:
    """Whether an object is exactly of this class."""
    return Py_TYPE(o) == classes[cls]


cdef inline object get(object o, int at):
    """The object in a slot."""
    cdef PyObject* value = na_get(<PyObject*>o, where[at])
    if value == NULL:
        raise AttributeError(f"a slot of {type(o).__name__} is empty")
    return <object>value


cdef inline PyObject* peek(PyObject* o, int at) noexcept:
    """The object in a slot that is never empty, borrowed."""
    return na_get(o, where[at])


cdef inline void put(object o, int at, object value) noexcept:
    na_put(<PyObject*>o, where[at], <PyObject*>value)


cdef inline bint holds(object o, int at, object value) noexcept:
    """Whether a slot holds this very object."""
    return na_get(<PyObject*>o, where[at]) == <PyObject*>value


# --- locks ---


cdef class Lock:
    """A reentrant lock, as `threading.RLock`. The interpreter lock guards its fields, so that a
    lock that is free is taken by writing two of them.
    """
    cdef unsigned long owner
    cdef int depth, waiting
    cdef PyThread_type_lock door  # opened for a thread that waits

    def __cinit__(self):
        self.door = PyThread_allocate_lock()
        if self.door == NULL:
            raise MemoryError
        PyThread_acquire_lock(self.door, 1)

    def __dealloc__(self):
        if self.door != NULL:
            PyThread_release_lock(self.door)
            PyThread_free_lock(self.door)

    cdef inline bint is_free(self) noexcept:
        """Whether this thread could take the lock at once, and so needs not to take it for work
        that keeps the interpreter lock.
        """
        return not self.depth or self.owner == PyThread_get_thread_ident()

    cdef inline int take(self) except -1:
        cdef unsigned long here = PyThread_get_thread_ident()
        if self.depth and self.owner != here:
            self.waiting += 1
            while self.depth:
                with nogil:
                    PyThread_acquire_lock(self.door, 1)
            self.waiting -= 1
        self.owner = here
        self.depth += 1
        return 0

    cdef inline int give(self) except -1:
        if not self.depth or self.owner != PyThread_get_thread_ident():
            raise RuntimeError("cannot release un-acquired lock")
        self.depth -= 1
        if not self.depth and self.waiting:
            PyThread_release_lock(self.door)
        return 0

    def acquire(self, bint blocking=True):
        if not blocking and not self.is_free():
            return False
        return self.take() == 0

    def release(self):
        self.give()

    def __enter__(self):
        self.take()
        return True

    def __exit__(self, *exc):
        self.give()


cdef class Busy:
    """The flag of each thread that `reentrancy` sets while the thread enqueues an operation."""

    @property
    def busy(self):
        return bool(na_busy)

    @busy.setter
    def busy(self, value):
        global na_busy
        na_busy = bool(value)


# --- the line that submits ---

cdef dict is_between = None  # of `callsite`: module name -> whether its frames are skipped
cdef object CallSite = None
cdef object latest_code = None  # of a program's line


def know_frames(dict between, kind):
    """Note what `callsite` knows of modules, and its class of call sites."""
    global is_between, CallSite
    is_between, CallSite = between, kind


def call_site(int above):
    cdef object site
    if on and above == 0:
        site = site_of_caller(-1)
        if site is not None:
            return site
    return python["call_site"](above)


cdef object site_of_caller(int above):
    """The call site of the Python code that is running; `above` as for `call_site`, from there."""
    global latest_code
    cdef PyFrameObject* frame = PyEval_GetFrame()
    cdef PyObject* skipped
    if frame != NULL:
        code = na_code(frame)
        if code is not latest_code:
            skipped = PyDict_GetItemWithError(
                is_between, PyFrame_GetGlobals(frame).get("__name__", "")
            )
            if skipped == NULL or <object>skipped is not False:
                return None if above < 0 else python["call_site"](above)
            latest_code = code
        return na_tuple(CallSite, (code, PyFrame_GetLasti(frame)))
    return None if above < 0 else python["call_site"](above)


# --- the driver ---

ctypedef int (*launch_t)(
    void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
    void**,
) noexcept nogil
ctypedef int (*of_stream_t)(void*) noexcept nogil
ctypedef int (*fill_t)(uint64_t, unsigned, size_t, void*) noexcept nogil
ctypedef int (*copy_t)(void*, void*, size_t, void*) noexcept nogil
ctypedef int (*replay_t)(void*, void*) noexcept nogil
cdef launch_t launch_kernel = NULL
ctypedef int (*write_t)(void*, void*, unsigned, unsigned) noexcept nogil
cdef of_stream_t query_stream = NULL, synchronize_stream = NULL
cdef write_t write_value = NULL
cdef fill_t fill_8 = NULL, fill_16 = NULL, fill_32 = NULL
cdef copy_t copy_to_device = NULL, copy_to_host = NULL
cdef replay_t launch_graph = NULL
cdef enum:
    NOT_READY = 600
    LOOKS = 16  # of a spin poll, as in `fast_calls_compiled`
cdef object fail = None
cdef object counters = None
cdef unsigned own_methods = 0  # the version of the class of streams that was compared last
METHODS = (
    "launch", "completed", "query", "spin_poll", "synchronize", "write", "fill", "upload",
    "download", "replay",
)


def use_driver(dict addresses, failing, counting):
    """Use the driver's functions at these addresses.

    Args:
        failing: called with a result that is not 0 and the function's name; raises.
        counting: the `counters`.
    """
    global launch_kernel, query_stream, synchronize_stream, write_value, fail, counters
    global fill_8, fill_16, fill_32, copy_to_device, copy_to_host, launch_graph
    launch_kernel = <launch_t><uintptr_t>addresses["cuLaunchKernel"]
    query_stream = <of_stream_t><uintptr_t>addresses["cuStreamQuery"]
    synchronize_stream = <of_stream_t><uintptr_t>addresses["cuStreamSynchronize"]
    write_value = <write_t><uintptr_t>addresses["cuStreamWriteValue32_v2"]
    fill_8 = <fill_t><uintptr_t>addresses["cuMemsetD8Async"]
    fill_16 = <fill_t><uintptr_t>addresses["cuMemsetD16Async"]
    fill_32 = <fill_t><uintptr_t>addresses["cuMemsetD32Async"]
    copy_to_device = <copy_t><uintptr_t>addresses["cuMemcpyHtoDAsync_v2"]
    copy_to_host = <copy_t><uintptr_t>addresses["cuMemcpyDtoHAsync_v2"]
    launch_graph = <replay_t><uintptr_t>addresses["cuGraphLaunch"]
    fail, counters = failing, counting


def enter(device):
    """`driver.enter`, also while the core is off: the core notes the current device of a thread."""
    global na_ordinal
    python["enter"](device)
    na_ordinal = device.ordinal


def forget_current():
    """Forget the current device of this thread, in a forked process."""
    global na_ordinal
    na_ordinal = -1


cdef class DriverStream:
    """The driver's calls of one stream, of the class `CudaStream`: its `calls`.

    `word` is the address of its completion counter, and `device_word` what the device writes to;
    `records` has its prepared launches.
    """
    cdef void* number
    cdef long ordinal
    cdef object device
    cdef uint32_t* word
    cdef void* device_word
    cdef int64_t passed
    cdef int result  # of the latest launch
    cdef object records  # a dict

    def __cinit__(self, number, device, word, device_word, records):
        self.device_word = <void*><uintptr_t>device_word
        self.number, self.word = <void*><uintptr_t>number, <uint32_t*><uintptr_t>word
        self.device, self.ordinal, self.records = device, device.ordinal, records

    cdef inline int64_t completed(self) noexcept:
        """`CounterCompletion.completed`."""
        self.passed += <uint32_t>((<volatile uint32_t*>self.word)[0] - <uint32_t>self.passed)
        return self.passed

    cdef int write(self, object number) except -1:
        """`CudaStream.write`, but for its note of the number."""
        cdef int result
        cdef unsigned low = <uint64_t>number & 0xFFFFFFFF
        if na_ordinal != self.ordinal:
            enter(self.device)
        with nogil:
            result = write_value(self.number, self.device_word, low, 0)
        if result != 0:
            fail(result, "cuStreamWriteValue32")
        return 0

    cdef int spin_poll(self) except -1:
        cdef int i, result = NOT_READY
        with nogil:
            for i in range(LOOKS + 1):
                result = query_stream(self.number)
                if result != NOT_READY:
                    break
        return result

    cdef int synchronize(self) except -1:
        cdef int result
        if na_ordinal != self.ordinal:
            enter(self.device)
        with nogil:
            result = synchronize_stream(self.number)
        return result


    cdef int launch(self, launch_s** launches, char** arguments, int count) except -1:
        """Make launches, in order, until one fails; how many were made, and its `result`."""
        cdef int i = 0, result = 0
        if na_ordinal != self.ordinal:
            enter(self.device)
        with nogil:
            while i < count and result == 0:
                result = submit(launches[i], arguments[i])
                i += 1
        self.result = result
        if result != 0:
            i -= 1
        put(counters, at_launches, get(counters, at_launches) + i)
        return i

    cdef LaunchRecord record_of(self, object queue, object work):
        """The record of a launch; None if it has none of the core."""
        cdef PyObject* known = PyDict_GetItemWithError(self.records, work)
        record = <object>known if known != NULL else queue.record_of(work)
        return record if type(record) is LaunchRecord else None


cdef bint is_replaced(object cls, str name) except -1:
    """Whether a class of streams has another method than its own, or the core's in its place."""
    method = vars(cls)[name]
    return method is not python[f"CudaStream.{name}"] and (
        method is not globals().get(f"CudaStream_{name}")
    )


cdef inline DriverStream calls_of(object queue):
    """The driver's calls of a backend's stream; None if it has none, or a test has replaced one of
    its methods.
    """
    global own_methods
    if not isa(queue, CudaStream):
        return None
    if na_version(classes[CudaStream]) != own_methods or not own_methods:
        cls = <object>classes[CudaStream]
        if any(is_replaced(cls, name) for name in METHODS):
            return None
        own_methods = na_version(classes[CudaStream])
    return <DriverStream>get(queue, at_calls)


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

    `parts` has for each argument its `struct` code, "s" for an array, or "" for nothing, and its
    offset in the buffer of `nbytes` bytes. The caller serialises the launches of a record.
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
            if self.code[i] == c"s":
                self.pack_array(i, args[i])
            elif not self.pack(i, args[i]):
                raise OverflowError(f"{args[i]!r} does not fit {chr(self.code[i])!r}")
        with nogil:
            result = submit(&self.launch, self.buffer)
        return result

    cdef inline int pack_array(self, int i, object handle) except -1:
        cdef object packed
        cdef PyObject* value = NULL
        if isa(handle, CudaArray):
            value = na_get(<PyObject*>handle, where[at_packed])
        packed = handle.packed if value == NULL else <object>value
        memcpy(self.buffer + self.offset[i], PyBytes_AS_STRING(packed), PyBytes_GET_SIZE(packed))
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


# --- submissions, and the streams that number and retire them ---

cdef tuple fresh = (  # what a new `Submission` has from `site` on, but for `keep_alive`
    None, None, (), zero, zero, False, None, None, False, False, False, False, None, None, None,
)
cdef int LOOK_EVERY = 64
cdef int64_t MAX_UNSIGNALLED = 1 << 24
cdef tuple lost = ()


def know_faults(tuple classes):
    """Note the errors of a driver that reports a fault of earlier work."""
    global lost
    lost = classes


cdef object new_submission(object stream, object name, object launched):
    """A `Submission`, as its constructor makes it."""
    cdef object s = PyType_GenericAlloc(classes[Submission], 0)
    cdef int i
    put(s, at_stream, stream)
    put(s, at_name, name)
    for i in range(at_site, at_trace + 1):
        put(s, i, fresh[i - at_site])
    put(s, at_keep_alive, [])
    put(s, at_launched, launched)
    return s


def Progress_commit(stream, submission, signal=True):
    if not on or signal or not isa(stream, Stream) or not isa(submission, Submission):
        return python["Progress.commit"](stream, submission, signal)
    commit(stream, submission)


cdef int commit(object stream, object submission) except -1:
    """`Progress.commit`, without a signal."""
    cdef object in_flight
    cdef Py_ssize_t count
    cdef int64_t number
    if holds(submission, at_is_empty, True) and not PyList_GET_SIZE(get(submission, at_keep_alive)):
        put(submission, at_done, True)  # nothing was enqueued, and so nothing can fail
        return 0
    if holds(submission, at_is_empty, True) or not (<Lock>get(stream, at_lock)).is_free():
        python["Progress.commit"](stream, submission, False)
        return 0
    in_flight = get(stream, at_in_flight)
    # No call from here on lets another thread run.
    number = <int64_t>get(stream, at_sequence) + 1
    put(stream, at_sequence, number)
    put(submission, at_number, get(stream, at_sequence))
    in_flight.append(submission)
    count = PyObject_Size(in_flight)
    if count == 1:
        (<dict>get(get(stream, at_owner), at_busy))[stream] = None
    if not holds(submission, at_nbytes, zero):
        put(stream, at_stream_nbytes, get(stream, at_stream_nbytes) + get(submission, at_nbytes))
    if count % LOOK_EVERY == 0 or number - <int64_t>get(stream, at_last_signal) >= MAX_UNSIGNALLED:
        try:
            ensure_signalled(stream, number)
            advance(stream)
        except lost:  # the awaiter polls again, and raises the error
            pass
    return 0


cdef int ensure_signalled(object stream, object number) except -1:
    """`Progress.ensure_signalled`."""
    cdef object queue = get(stream, at_backend), in_flight = get(stream, at_in_flight), last
    cdef DriverStream calls = calls_of(queue)
    cdef Lock lock = get(stream, at_lock)
    if calls is None or <int64_t>get(stream, at_last_signal) >= <int64_t>number:
        stream.ensure_signalled(number)
        return 0
    lock.take()
    try:
        if PyObject_Size(in_flight):
            last = in_flight[PyObject_Size(in_flight) - 1]
            last.signalled = True
        last = get(stream, at_sequence)
        put(stream, at_last_signal, last)
        calls.write(last)
        put(queue, at_last_written, last)
    finally:
        lock.give()
    return 0


def Progress_advance(stream):
    if not on or not isa(stream, Stream):
        return python["Progress.advance"](stream)
    return advance(stream)


cdef int64_t advance(object stream) except -1:
    """`Progress.advance`."""
    cdef object in_flight, first, queue
    cdef DriverStream calls
    cdef int64_t passed, confirmed
    if not holds(stream, at_broken, None) or PyObject_Size(get(stream, at_abandoned)):
        return python["Progress.advance"](stream)
    queue = get(stream, at_backend)
    calls = calls_of(queue)
    passed = queue.completed() if calls is None else calls.completed()
    confirmed = get(stream, at_confirmed)
    if passed < confirmed:
        passed = confirmed
    in_flight = get(stream, at_in_flight)
    if PyObject_Size(in_flight):
        first = in_flight[0]
        if <int64_t>first.sequence <= passed:
            retire(stream, passed)
    return passed


cdef int retire(object stream, int64_t passed) except -1:
    """`Progress._retire`."""
    cdef object in_flight, submission, error
    cdef list dropped = []  # dropped outside the lock: finalisers may take long
    cdef Lock lock
    cdef bint is_sound
    if not holds(stream, at_has_dependencies, False):
        python["Progress._retire"](stream, passed)
        return 0
    lock = get(stream, at_lock)
    lock.take()
    try:
        in_flight, is_sound = get(stream, at_in_flight), holds(stream, at_broken, None)
        while PyObject_Size(in_flight):
            submission = in_flight[0]
            if <int64_t>submission.sequence > passed:
                break
            if is_sound and isa(submission, Submission) and holds(submission, at_queue, None) and (
                holds(submission, at_dependencies, None) and holds(submission, at_after, None)
            ):
                dropped.append(get(submission, at_keep_alive))
                put(submission, at_keep_alive, [])
                put(submission, at_done, True)
                if not holds(submission, at_nbytes, zero):
                    put(stream, at_stream_nbytes,
                        get(stream, at_stream_nbytes) - get(submission, at_nbytes))
            else:
                dropped.append(submission.retire(get(stream, at_broken)))
                error = submission.error
                if error is not None and submission.detached and stream._unreported is None:
                    stream._unreported = error
                put(stream, at_stream_nbytes, get(stream, at_stream_nbytes) - submission.nbytes)
            # Removed last: another thread that still sees the submission waits for the lock, so
            # that no result is returned before its host side is complete.
            in_flight.popleft()
        else:
            put(stream, at_has_dependencies, False)
            busy = get(get(stream, at_owner), at_busy)
            if PyDict_Size(get(stream, at_suspended)) or type(busy) is not dict:
                stream._forget_if_idle()
            else:
                (<dict>busy).pop(stream, None)  # no other thread runs in between
    finally:
        lock.give()
    return 0


cdef inline bint is_open(object stream) noexcept:
    """Whether no fault is known of a stream and its device."""
    return holds(stream, at_broken, None) and holds(get(stream, at_owner), at_lost, None)


def Progress_verify(stream, sequence):
    if not on or not isa(stream, Stream) or not is_verified(stream, sequence):
        python["Progress.verify"](stream, sequence)


cdef inline bint is_verified(object stream, int64_t number) except -1:
    """Whether `Progress.verify` has nothing to ask."""
    return 0 < number <= <int64_t>get(stream, at_verified) and is_open(stream)


cdef int note_passed(object stream, object number) except -1:
    """`Progress._has_passed`, and what that lets retire."""
    cdef Lock lock = get(stream, at_lock)
    if not lock.is_free():
        stream._has_passed(number)
    elif number > get(stream, at_confirmed):
        put(stream, at_confirmed, number)
    advance(stream)
    return 0


def Stream_wait_until_idle(stream):
    cdef DriverStream calls = None
    if on and isa(stream, Stream) and is_open(stream) and holds(stream, at_follows, None):
        calls = calls_of(get(stream, at_backend))
    if calls is not None:
        number = get(stream, at_sequence)
        if calls.synchronize() == 0:
            note_passed(stream, number)
            return
    python["Stream.wait_until_idle"](stream)


def Stream_has_passed_soon(stream, sequence):
    if not on or not isa(stream, Stream):
        return python["Stream.has_passed_soon"](stream, sequence)
    return has_passed_soon(stream, sequence)


cdef bint has_passed_soon(object stream, object sequence) except -1:
    """`Stream.has_passed_soon`."""
    cdef object loop, watcher, number
    cdef DriverStream calls
    cdef int result
    if advance(stream) >= <int64_t>sequence:
        return True
    loop = get_running_loop()
    watcher = getattr(loop, "_numbasync_reactor", None)
    calls = calls_of(get(stream, at_backend))
    if watcher is None or calls is None or not holds(stream, at_spin_backoff, zero):
        return python["Stream.has_passed_soon"](stream, sequence)
    running = current_task(loop)
    if <uintptr_t>get(watcher, at_last_task) != <uintptr_t><PyObject*>running:
        put(watcher, at_last_task, <uintptr_t><PyObject*>running)
        return False
    if PyDict_Size(get(watcher, at_queues)):
        return False
    number = get(stream, at_sequence)
    result = calls.spin_poll()
    if result == NOT_READY:
        misses = min(2 * get(stream, at_spin_misses) + 1, 63)
        put(stream, at_spin_misses, misses)
        put(stream, at_spin_backoff, misses)
        return False
    if result != 0:
        return stream._spin_poll()  # which asks again, and raises the fault
    put(stream, at_spin_misses, zero)
    if number > get(stream, at_verified):
        put(stream, at_verified, number)
    note_passed(stream, number)
    return True


# --- launches of known arguments ---

cdef enum:
    NUMBER = 0
    TENSOR = 1  # the tensor itself
    MAP = 2  # a tensor map
    SHARED = 3  # a shared tensor, or a partition that is read
    PARTITION = 4  # a partition that is written
    WHOLE = 5  # a number that must fit 64 bits
    LITERAL = 6  # a number that the plan depends on
    MANY_READERS = 8

NUMBER_, TENSOR_, MAP_, SHARED_, PARTITION_, WHOLE_, LITERAL_ = (
    NUMBER, TENSOR, MAP, SHARED, PARTITION, WHOLE, LITERAL
)


cdef class FastCall:
    """`fast_path.FastCall`'s functions for one tuple of argument types.

    `codes` has NUMBER to LITERAL for each argument; `outputs` are positions.
    """
    cdef int count, arrays, written
    cdef int code[MOST]
    cdef bint output[MOST]
    cdef bint may_alias
    cdef tuple kinds
    cdef object in_python  # the generated functions
    # The fingerprints of the latest call; device, fingerprints, extents and plan of the latest
    # launch. Each is replaced as one object, since another thread may look at any time.
    cdef tuple latest_parts, latest_launch

    def __cinit__(self, tuple kinds, codes, outputs, may_alias, in_python):
        if len(kinds) > MOST:
            raise ValueError(f"{len(kinds)} arguments")
        self.kinds, self.count, self.may_alias = kinds, len(kinds), may_alias
        self.in_python = in_python
        for i in range(self.count):
            self.code[i] = codes[i]
            self.output[i] = i in outputs
            self.arrays += TENSOR <= codes[i] <= PARTITION
            self.written += self.output[i]

    def take(self, values):
        return self.taken(values) if on else self.in_python.take(values)

    def enqueue(self, plan, values, tensors, submission):
        if on and isa(submission, Submission):
            return self.enqueued(plan, values, tensors, submission)
        return self.in_python.enqueue(plan, values, tensors, submission)

    cdef inline bint fits(self, tuple values) noexcept:
        """Whether the arguments are of these types."""
        cdef int i
        if PyTuple_GET_SIZE(values) != self.count:
            return False
        for i in range(self.count):
            if <PyObject*>Py_TYPE(<object>PyTuple_GET_ITEM(values, i)) != PyTuple_GET_ITEM(self.kinds, i):
                return False
        return True

    cdef object taken(self, tuple values):
        """The tensors and the fingerprints, or None: `FastCall.take`. A tuple that is dropped may
        have empty places.
        """
        cdef int i, j, a = 0, code
        cdef object value, tensor, part
        cdef PyObject* storage
        cdef PyObject* storages[MOST]
        cdef bint outputs[MOST]
        cdef tuple latest = self.latest_parts
        cdef tuple tensors = PyTuple_New(self.arrays), parts = None  # until one differs
        for i in range(self.count):
            code = self.code[i]
            value = <object>PyTuple_GET_ITEM(values, i)
            if code == NUMBER or code >= WHOLE:
                part = <object>PyTuple_GET_ITEM(self.kinds, i)
                if code != NUMBER and not -9223372036854775808 <= value < 9223372036854775808:
                    return None
                if code == LITERAL:
                    part = (part, value)
            else:
                tensor = value
                if code == MAP:
                    tensor = get(value, at_mapped)
                elif code == PARTITION:
                    tensor = get(value, at_tensor)
                elif code != TENSOR:
                    tensor = value.tensor
                if not isa(tensor, MappedTensor if code == MAP else Tensor):
                    return self.in_python.take(values)
                storage = na_get(<PyObject*>tensor, where[at_storage])
                if storage == <PyObject*>None or not holds(tensor, at_source, None):
                    return None
                if code == PARTITION:
                    part = get(value, at_tile_fingerprint)
                    if <int64_t>part < 0:
                        part = value.fingerprint
                else:
                    part = get(tensor, at_fingerprint)
                    if <int64_t>part < 0:
                        part = tensor.fingerprint
                storages[a], outputs[a] = storage, self.output[i]
                Py_INCREF(tensor)
                PyTuple_SET_ITEM(tensors, a, tensor)
                a += 1
            if parts is None and (latest is None or PyTuple_GET_ITEM(latest, i) != <PyObject*>part):
                parts = PyTuple_New(self.count)
                for j in range(i):
                    value = <object>PyTuple_GET_ITEM(latest, j)
                    Py_INCREF(value)
                    PyTuple_SET_ITEM(parts, j, value)
            if parts is not None:
                Py_INCREF(part)
                PyTuple_SET_ITEM(parts, i, part)
        if self.written and not self.may_alias:
            for i in range(1, a):
                for j in range(i):
                    if (outputs[i] or outputs[j]) and (
                        storages[i] == storages[j]
                        or get(<object>storages[i], at_identity) == get(<object>storages[j], at_identity)
                    ):
                        return None
        if parts is None:
            return tensors, latest  # the same object, by which `plan_of` knows it
        self.latest_parts = parts
        return tensors, parts

    cdef object plan_of(self, object launcher, object device, object parts, object extents):
        """The plan of a call, if an earlier call has created it."""
        cdef tuple latest = self.latest_launch
        if latest is not None and PyTuple_GET_ITEM(latest, 0) == <PyObject*>device and (
            PyTuple_GET_ITEM(latest, 1) == <PyObject*>parts
            and PyTuple_GET_ITEM(latest, 2) == <PyObject*>extents
        ):
            return <object>PyTuple_GET_ITEM(latest, 3)
        plan = get(launcher, at_planner).plans.get((device, parts, extents))
        if plan is not None:
            self.latest_launch = device, parts, extents, plan
        return plan

    cdef int check(
        self, tuple values, tuple tensors, object stream, object backend, LaunchRecord record,
        list args, list storages,
    ) except -1:
        """Test every storage, append it to `storages`, and pack the arguments, or without a record
        append them to `args`. 0: not now; 2: an argument does not fit, and Python says why.
        """
        cdef PyObject* tensor
        cdef PyObject* storage
        cdef PyObject* handle
        cdef object value
        cdef int i, a = 0
        for i in range(self.count):
            if not TENSOR <= self.code[i] <= PARTITION:
                value = <object>PyTuple_GET_ITEM(values, i)
                if record is None:
                    args.append(value)
                elif not record.pack(i, value):
                    return 2
                continue
            tensor = PyTuple_GET_ITEM(tensors, a)
            a += 1
            storage = peek(tensor, at_storage)
            if storage == <PyObject*>None or (
                peek(storage, at_fast_path_device) != <PyObject*>backend
            ):
                return 0
            PyList_Append(storages, <object>storage)  # which keeps the storage, from here on
            if is_busy_elsewhere(peek(storage, at_writer), stream):
                return 0
            if self.output[i] and PyDict_Size(<object>peek(storage, at_readers)):
                for reader in list((<object>peek(storage, at_readers)).values()):
                    if is_busy_elsewhere(<PyObject*>reader, stream):
                        return 0
            handle = peek(tensor, at_handle)
            value = (<object>tensor).handle if handle == <PyObject*>None else <object>handle
            if record is None:
                args.append(value)
            else:
                record.pack_array(i, value)
        return 1

    cdef Py_ssize_t note(self, list storages, Py_ssize_t a, object submission, object stream) except -1:
        """Update the access records of the storages from `a` on; the number behind them."""
        cdef PyObject* storage
        cdef object readers
        cdef int i
        for i in range(self.count):
            if not TENSOR <= self.code[i] <= PARTITION:
                continue
            storage = PyList_GET_ITEM(storages, a)
            a += 1
            readers = <object>peek(storage, at_readers)
            if self.output[i]:
                na_put(storage, where[at_writer], <PyObject*>submission)
                if PyDict_Size(readers):
                    put(<object>storage, at_readers, {})
            else:
                if PyDict_Size(readers) >= MANY_READERS:
                    readers = (<object>storage).forget_readers()
                PyDict_SetItem(readers, stream, submission)
        return a

    cdef bint enqueued(self, plan, tuple values, tuple tensors, submission) except -1:
        """`FastCall.enqueue`: tests every storage, launches, then updates the access records."""
        cdef object stream = get(submission, at_stream), device = get(stream, at_device)
        cdef object queue = get(stream, at_backend), work = get(plan, at_work)
        cdef Lock lock = get(device, at_submit_lock)
        cdef DriverStream calls = calls_of(queue)
        cdef LaunchRecord record = None if calls is None else calls.record_of(queue, work)
        cdef list args = [] if record is None else None, storages = []
        cdef launch_s* launch
        cdef int status
        lock.take()
        try:
            status = self.check(
                values, tensors, stream, get(device, at_device_backend), record, args, storages
            )
            if status == 2:
                return self.in_python.enqueue(plan, values, tensors, submission)
            if status == 0:
                return False
            keep(submission, storages)
            if record is None:
                put(submission, at_queue, queue.launch(work, args, get(submission, at_queue)))
            else:
                launch = &record.launch
                if calls.launch(&launch, &record.buffer, 1) == 0:
                    fail(calls.result, "cuLaunchKernel")
            self.note(storages, 0, submission, stream)
        finally:
            lock.give()
        return True


cdef int keep(object submission, list storages) except -1:
    """Let a submission keep storages alive; `storages` may become its list."""
    cdef list keep_alive = get(submission, at_keep_alive)
    if PyList_GET_SIZE(keep_alive):
        for storage in storages:
            keep_alive.append(storage)
    else:
        put(submission, at_keep_alive, storages)
    return 0


cdef bint is_busy_elsewhere(PyObject* recorded, object stream) except -1:
    """Whether a recorded access is in flight on another stream: see `access`."""
    cdef object submission
    if recorded == <PyObject*>None:
        return False
    submission = <object>recorded
    if isa(submission, Submission):
        if holds(submission, at_done, True) or holds(submission, at_stream, stream):
            return False
    elif submission.done or submission.stream is stream:
        return False
    submission.stream.advance()
    return not submission.done


# --- operations ---


cdef object DEFAULT = None  # the configuration of a call that sets nothing
cdef dict queued = None  # the submission queues that are not empty, of all threads
cdef object thread_of_queue = None


def know_operations(default, dict queues, queue):
    """Note the configuration of plain calls, the submission queues that are not empty, and the
    thread-local state of `submission_queue`.
    """
    global DEFAULT, queued, thread_of_queue
    DEFAULT, queued, thread_of_queue = default, queues, queue


cdef object call(object launcher, tuple values, object config):
    """The `Launch` of a call whose arguments are plain; None: of any other call."""
    cdef PyFrameObject* frame = PyEval_GetFrame()  # the caller of the kernel
    cdef PyObject* form
    cdef object taken, core = get(launcher, at_latest)
    if frame == NULL:
        return None
    if core is None or not (<FastCall>core).fits(values):
        form = PyDict_GetItemWithError(get(launcher, at_forms), tuple(map(type, values)))
        core = None if form == NULL or <object>form is None else get(<object>form, at_core)
        if core is None:
            return None
        put(launcher, at_latest, core)
    taken = (<FastCall>core).taken(values)
    if taken is None:
        return None
    return new_launch(
        launcher, values, config, (<FastCall>core).in_python, <object>PyTuple_GET_ITEM(taken, 0),
        <object>PyTuple_GET_ITEM(taken, 1), None, frame,
    )


cdef object new_launch(
    object launcher, object values, object config, object form, object tensors, object parts,
    object plan, PyFrameObject* caller,
):
    """`Launch.known`."""
    cdef object op = PyType_GenericAlloc(classes[Launch], 0)
    put(op, at_unused, True)
    put(op, at_has_fast_path, True)
    put(op, at_built_at, (na_code(caller), PyFrame_GetLasti(caller)))
    put(op, at_launcher, launcher)
    put(op, at_values, values)
    put(op, at_config, config)
    put(op, at_lazy, ())
    put(op, at_bound, None)
    put(op, at_plan, plan)
    put(op, at_form, form)
    put(op, at_tensors, tensors)
    put(op, at_parts, parts)
    if config is not DEFAULT and not holds(config, at_config_stream, None):
        op.stream = get(config, at_config_stream)
    return op


cdef object call_launcher(object self, object args, PyObject* kwargs):
    """`Launcher.__call__`, which the class calls without looking it up."""
    if on and kwargs == NULL and isa(self, Launcher) and (
        PyTuple_GET_SIZE(args) == <int64_t>get(self, at_plain_count)
    ):
        op = call(self, args, DEFAULT)
        if op is not None:
            return op
    return calls_of_python(self, args, kwargs)


def Configured___call__(self, /, *args, **kwargs):
    if on and not kwargs:
        launcher = self._launcher
        if isa(launcher, Launcher) and len(args) == get(launcher, at_plain_count):
            op = call(launcher, args, self._config)
            if op is not None:
                return op
    return python["Configured.__call__"](self, *args, **kwargs)


cdef object changed(object run, dict changes):
    """The arguments of a prepared launch with changed numbers; None, if something else changes."""
    cdef tuple values = get(run, at_prepared_values), result
    cdef PyObject* position
    cdef Py_ssize_t i, place
    if not changes:
        return values
    result = PyTuple_New(PyTuple_GET_SIZE(values))
    for i in range(PyTuple_GET_SIZE(values)):
        value = <object>PyTuple_GET_ITEM(values, i)
        Py_INCREF(value)
        PyTuple_SET_ITEM(result, i, value)
    for name, value in changes.items():
        position = PyDict_GetItemWithError(get(run, at_positions), name)
        if position == NULL:
            return None
        place = <object>position
        if <PyObject*>value != PyTuple_GET_ITEM(values, place):
            position = PyDict_GetItemWithError(get(run, at_numbers), name)
            if position != <PyObject*>Py_TYPE(value) or (
                type(value) is int and not -9223372036854775808 <= value < 9223372036854775808
            ):
                return None
            replace_item(result, place, value)
    return result


def PreparedLaunch___call__(self, /, *unnamed, **changes):
    cdef PyFrameObject* frame = PyEval_GetFrame()  # the caller
    cdef object values = None
    if on and frame != NULL and isa(self, PreparedLaunch) and not (
        unnamed or holds(self, at_prepared_form, None) or holds(self, at_prepared_plan, None)
    ):
        values = changed(self, changes)
    if values is None:
        return python["PreparedLaunch.__call__"](self, *unnamed, **changes)
    return new_launch(
        get(self, at_prepared_launcher), values, get(self, at_prepared_config),
        get(self, at_prepared_form), get(self, at_prepared_tensors), get(self, at_prepared_parts),
        get(self, at_prepared_plan), frame,
    )


cdef object enqueued_again(object run, object stream, tuple values):
    """`enqueued` of an operation of a prepared launch, which is not built; None: it has to be."""
    cdef object plan = get(run, at_prepared_plan), launcher = get(run, at_prepared_launcher), form
    if values is None or plan is None or not is_idle() or not isa(stream, Stream) or (
        not is_free(stream)
        or not holds(get(stream, at_device), at_device_backend, <object>PyTuple_GET_ITEM(plan, 0))
        or not holds(get(run, at_prepared_config), at_config_stream, None)
    ):
        return None
    plan, form = <object>PyTuple_GET_ITEM(plan, 1), get(get(run, at_prepared_form), at_core)
    if form is None or not holds(plan, at_is_without_blocks, False):
        return None
    submission = new_submission(stream, get(launcher, at_label), get(launcher, at_names))
    try:
        if not (<FastCall>form).enqueued(
            plan, values, get(run, at_prepared_tensors), submission
        ):
            return None
        commit(stream, submission)
    except BaseException as error:
        python["note_failed_enqueue"](error, submission, stream)
        raise
    put(submission, at_site, site_of_caller(0))
    return submission


def PreparedLaunch_async_on(self, stream, /, **changes):
    cdef object values = changed(self, changes) if isa(self, PreparedLaunch) else None
    cdef object submission = enqueued_again(self, stream, values)
    if submission is None:
        return python["PreparedLaunch.async_on"](self, stream, **changes)
    put(submission, at_detached, True)
    return na_tuple(get(get(self, at_prepared_launcher), at_result), values)


def PreparedLaunch_sync_on(self, stream, /, **changes):
    cdef object values = changed(self, changes) if isa(self, PreparedLaunch) else None
    cdef object submission = enqueued_again(self, stream, values)
    if submission is None:
        return python["PreparedLaunch.sync_on"](self, stream, **changes)
    wait_for_submission(submission, stream)
    return na_tuple(get(get(self, at_prepared_launcher), at_result), values)


cdef void end_of_launch(PyObject* op) noexcept:
    """`RunsOnce.__del__` of a launch, which has nothing to say of one that was used."""
    if peek(op, at_unused) != <PyObject*>False:
        ends_of_python(op)


cdef void end_of_simple(PyObject* op) noexcept:
    """`RunsOnce.__del__` of a `SimpleOp`."""
    if peek(op, at_is_unused) != <PyObject*>False:
        ends_of_python(op)


cdef object core_of(object op):
    """The `FastCall` of a launch; None if it has none."""
    form = get(op, at_form)
    return None if form is None else get(form, at_core)


cdef object planned(object op, FastCall core, object submission):
    """The plan of a launch whose name is added to the submission's; None if there is none."""
    cdef object launcher = get(op, at_launcher), names, launched, plan = get(op, at_plan)
    cdef object device = get(get(get(submission, at_stream), at_device), at_device_backend)
    if plan is not None and PyTuple_GET_ITEM(plan, 0) == <PyObject*>device:
        plan = <object>PyTuple_GET_ITEM(plan, 1)
    else:
        plan = core.plan_of(
            launcher, device, get(op, at_parts), get(get(op, at_config), at_extents)
        )
    if plan is None or not holds(plan, at_is_without_blocks, False):
        return None
    # First: the message of a fault lists the launch.
    names, launched = get(launcher, at_names), get(submission, at_launched)
    if not PyTuple_GET_SIZE(launched):
        put(submission, at_launched, names)
    elif launched[PyTuple_GET_SIZE(launched) - 1] != names[0]:
        put(submission, at_launched, launched + names)
    return plan


cdef int enqueue(object op, object submission) except -1:
    """`Launch.try_enqueue`: 1, 0, or 2, if only Python can tell."""
    cdef object core = core_of(op), plan
    if core is None:
        return 2
    plan = planned(op, core, submission)
    return plan is not None and (<FastCall>core).enqueued(
        plan, get(op, at_values), get(op, at_tensors), submission
    )


def Launch_try_enqueue(self, submission, pool):
    cdef int status = 2
    if on and isa(self, Launch) and isa(submission, Submission):
        status = enqueue(self, submission)
    return python["Launch.try_enqueue"](self, submission, pool) if status == 2 else bool(status)


cdef inline object value_of(object op):
    """The value of an operation that was enqueued on its fast path."""
    if isa(op, Launch):
        return na_tuple(get(get(op, at_launcher), at_result), get(op, at_values))
    return result_of(op) if is_simple(op) else op.result()


def try_enqueue(op, stream, signal, pool=None):
    if on and not signal and pool is None and isa(stream, Stream):
        return enqueued(op, stream) if op.has_fast_path else None
    return python["try_enqueue"](op, stream, signal, pool)


cdef inline bint is_free(object stream) except -1:
    """Whether a stream and its device are known to be sound, and have no limits."""
    cdef object device = get(stream, at_device)
    return holds(stream, at_broken, None) and holds(device, at_lost, None) and holds(
        device, at_is_limited, False
    )


cdef object enqueued(object op, object stream):
    """`try_enqueue` of an operation with a fast path, without a signal."""
    cdef object submission
    cdef bint is_launch = isa(op, Launch)
    cdef int status = 2
    if not is_free(stream):
        return None
    submission = new_submission(
        stream, get(get(op, at_launcher), at_label) if is_launch else name_of(op), ()
    )
    try:
        if is_launch:
            status = enqueue(op, submission)
        if status == 2:
            status = op.try_enqueue(submission, None)
        if not status:
            return None
        commit(stream, submission)
    except BaseException as error:
        python["note_failed_enqueue"](error, submission, stream)
        raise
    return submission


cdef inline bint is_idle() except -1:
    """Whether this thread enqueues no operation, and none waits in its queue."""
    if not on or na_busy:
        return False
    if not PyDict_Size(queued):
        return True
    line = thread_of_queue.line
    return line is None or not len(line)


cdef inline bint is_plain(object launch) except -1:
    """Whether a launch has no lazy arguments, and asks for no stream."""
    return holds(get(launch, at_config), at_config_stream, None) and not get(launch, at_lazy)


cdef bint may_begin(object op, object stream) except -1:
    """Whether an operation can be enqueued on the stream now, and asks for no other one."""
    if not is_idle() or not isa(stream, Stream):
        return False
    if is_plain(op) if isa(op, Launch) else is_simple(op):
        return True
    own = op.stream
    return own is None or own is stream


cdef object begun(object op, object stream):
    """The submission of an operation that may begin, consumed; None, if it has no fast path."""
    if isa(op, Launch) and holds(op, at_unused, True):
        put(op, at_unused, False)
        return enqueued(op, stream) if holds(op, at_has_fast_path, True) else None
    if is_simple(op) and holds(op, at_is_unused, True):
        put(op, at_is_unused, False)
        if isa(op, FromHost) and not holds(op, at_is_fast, True):
            return None
        return enqueued(op, stream)
    op.consume()
    return enqueued(op, stream) if op.has_fast_path else None


def Runs_async_on(self, stream):
    cdef object submission, value
    if not may_begin(self, stream):
        return python["Runs.async_on"](self, stream)
    submission = begun(self, stream)
    if submission is None:
        value = python["enqueued_by_steps"](self, stream, None, site_of_caller(0))[1]
    else:
        put(submission, at_site, site_of_caller(0))
        put(submission, at_detached, True)
        value = value_of(self)
    if not isa(self, Launch) and not is_simple(self):
        python["check_there"](value, "async_on")
    return value


def Runs_sync_on(self, stream):
    cdef object submission
    if not may_begin(self, stream):
        return python["Runs.sync_on"](self, stream)
    submission = begun(self, stream)
    if submission is None:
        return python["synchronised_by_steps"](self, stream, site_of_caller(0))
    put(submission, at_site, site_of_caller(0))
    wait_for_submission(submission, stream)
    return value_of(self)


cdef int wait_for_submission(object submission, object stream) except -1:
    """Block until a stream is idle; raise the submission's error."""
    try:
        Stream_wait_until_idle(stream)
    except Exception as error:
        python["_note_failure"](error, submission)
        raise
    if not holds(submission, at_error, None):
        submission.raise_error()
    return 0


cdef object current_device = None  # the context variable of `use_device`
cdef object default_device = None


def know_devices(variable, device):
    """Note the context variable that has the device of `use_device`, and the default device."""
    global current_device, default_device
    current_device, default_device = variable, device


cdef object stream_for(object op):
    """`run.stream_for`, without a policy of the caller."""
    cdef object device, policy
    if is_plain(op) if isa(op, Launch) else is_simple(op) and not isa(op, GraphLaunch):
        device = current_device.get() or default_device
        if device is not None:
            policy = get(device, at_policy)
            if isa(policy, RoundRobin):
                return next(get(policy, at_turn))
    return python["stream_for"](op)


cdef int finished_awaits = 0


cdef bint is_turn_due() noexcept:
    """Whether an await whose work is done must let the loop turn."""
    global finished_awaits
    finished_awaits = (finished_awaits + 1) % 16
    return finished_awaits == 0


def turn_is_due():
    return is_turn_due()


def Runs___await__(self):
    return await_fast(self) if on and self.has_fast_path else python["Runs.__await__"](self)


def await_fast(op):
    """`run.awaiting` of an operation with a fast path."""
    if not is_idle() or get_running_loop() is None or not op._unused:
        return (yield from python["awaiting"](op))
    stream = stream_for(op)
    if not isa(stream, Stream):
        return (yield from python["awaiting"](op))
    submission = begun(op, stream)
    if submission is None:
        return (yield from python["awaiting_steps"](op, stream))
    put(submission, at_site, site_of_caller(0))
    number = get(submission, at_number)
    if holds(submission, at_done, True) or has_passed_soon(stream, number):
        if is_turn_due():
            yield
    else:
        yield from stream.wait_for_signal(number)
    if not holds(submission, at_error, None):
        submission.raise_error()
    if not is_verified(stream, number):
        python["Progress.verify"](stream, number)
    return value_of(op)


def _start(op, site):
    cdef object stream, submission, started
    if not isa(op, Launch) and not getattr(op, "has_fast_path", False):
        return python["_start"](op, site)
    if not op._unused or not is_idle():
        return python["_start"](op, site)
    stream = stream_for(op)
    if not isa(stream, Stream):
        return python["_wanted"](python["claimed"](op), stream, site)
    submission = begun(op, stream)
    if submission is None:
        return python["_wanted"](op, stream, site)
    put(submission, at_site, site)
    started = PyType_GenericAlloc(classes[Enqueued], 0)
    put(started, at_enqueued_op, op)
    put(started, at_enqueued_submission, submission)
    return started


def add_values(list started, list values):
    cdef object future, submission
    cdef Py_ssize_t i
    if not on:
        return python["add_values"](started, values)
    for i in range(PyList_GET_SIZE(values), PyList_GET_SIZE(started)):
        future = started[i]
        if not isa(future, Enqueued):
            return
        submission = get(future, at_enqueued_submission)
        if not isa(submission, Submission) or not holds(submission, at_done, True) or (
            not holds(submission, at_error, None)
            or <int64_t>get(submission, at_number)
            > <int64_t>get(get(submission, at_stream), at_verified)
        ):
            return
        values.append(value_of(get(future, at_enqueued_op)))


# --- operations of operations ---


cdef object submission_of(object ctx):
    """The submission of a plain context, to which children may be added here; else None."""
    if on and isa(ctx, Context) and ctx.admission is None:
        submission = ctx.submission
        return submission if isa(submission, Submission) else None
    return None


cdef int enqueue_child(object op, object ctx, object submission) except -1:
    """`Context.try_enqueue`; the caller notes that a `submission` that is not None is used."""
    cdef int status = 2
    if submission is not None and isa(op, Launch) and holds(op, at_has_fast_path, True):
        status = enqueue(op, submission)
    return bool(op.has_fast_path and ctx.try_enqueue(op)) if status == 2 else status


cdef enum:
    CHUNK = 32  # launches
    CHUNK_BYTES = 8192  # of arguments


cdef Py_ssize_t enqueue_launches(tuple ops, Py_ssize_t first, object submission) except -1:
    """Enqueue launches from position `first` on, as many as go together, and release the
    interpreter lock once for all of them; how many were enqueued.
    """
    cdef object stream = get(submission, at_stream), device = get(stream, at_device), op, core
    cdef object backend = get(device, at_device_backend), queue = get(stream, at_backend), plan
    cdef DriverStream calls = calls_of(queue)
    cdef Lock lock = get(device, at_submit_lock)
    cdef LaunchRecord record = None
    cdef list storages = [], records = []
    cdef object launcher = None, parts = None, extents = None  # of the launch before
    cdef launch_s* launches[CHUNK]
    cdef char* arguments[CHUNK]
    cdef char block[CHUNK_BYTES]
    cdef Py_ssize_t i, a = 0, before, used = 0
    cdef int count = 0, launched, status
    if calls is None:
        return 0
    lock.take()
    try:
        while count < CHUNK and first + count < PyTuple_GET_SIZE(ops):
            op = ops[first + count]
            core = core_of(op) if isa(op, Launch) and holds(op, at_has_fast_path, True) else None
            if core is None:
                break
            if not (
                holds(op, at_launcher, launcher) and holds(op, at_parts, parts)
                and holds(get(op, at_config), at_extents, extents) and record is not None
            ):
                plan = planned(op, core, submission)
                record = None if plan is None else calls.record_of(queue, get(plan, at_work))
                launcher, parts = get(op, at_launcher), get(op, at_parts)
                extents = get(get(op, at_config), at_extents)
                records.append(record)  # which another thread may drop from the stream
            if record is None or used + <Py_ssize_t>record.launch.size > CHUNK_BYTES:
                break
            before = PyList_GET_SIZE(storages)
            status = (<FastCall>core).check(
                get(op, at_values), get(op, at_tensors), stream, backend, record, None, storages
            )
            if status != 1:
                del storages[before:]
                break
            arguments[count], launches[count] = block + used, &record.launch
            memcpy(block + used, record.buffer, record.launch.size)
            used += (record.launch.size + 15) // 16 * 16
            count += 1
        if count == 0:
            return 0
        keep(submission, storages[:])
        launched = calls.launch(launches, arguments, count)
        for i in range(launched):
            op = ops[first + i]
            a = (<FastCall>core_of(op)).note(storages, a, submission, stream)
        if launched < count:
            fail(calls.result, "cuLaunchKernel")
    finally:
        lock.give()
    return count


def enqueue_leading(ctx, tuple ops, list values):
    cdef Py_ssize_t i = PyList_GET_SIZE(values), together
    cdef bint used = False
    cdef object submission = submission_of(ctx), op
    try:
        while i < PyTuple_GET_SIZE(ops):
            together = 0 if submission is None else enqueue_launches(ops, i, submission)
            for i in range(i, i + together):
                values.append(value_of(ops[i]))
            i = PyList_GET_SIZE(values)
            if together == 0:
                op = ops[i]
                if not enqueue_child(op, ctx, submission):
                    break
                i += 1
                used = used or isa(op, Launch)  # the context notes other work, if there is any
                values.append(value_of(op))
            used = used or together > 0
    finally:
        note_use(ctx, submission, used)


cdef int note_use(object ctx, object submission, bint used) except -1:
    """Note that a context is used, if something was enqueued in it, also before an error."""
    if submission is not None and (used or PyList_GET_SIZE(get(submission, at_keep_alive))):
        ctx._used = True
    return 0


def enqueue_chain(ctx, op, list links):
    cdef object value = None, submission = submission_of(ctx)
    cdef bint used = False
    try:
        while op is not None:
            while not isa(op, Launch) and op.is_link:
                links.append(op)
                op = op._first
            if not enqueue_child(op, ctx, submission):
                return op, None
            used = used or isa(op, Launch)  # the context notes other work, if there is any
            op, value = follow_links(ctx, links, value_of(op))
        return None, value
    finally:
        note_use(ctx, submission, used)


def follow_links(ctx, list links, value):
    cdef object link
    if not on:
        return python["follow_links"](ctx, links, value)
    while links:
        link = links.pop()
        if not isa(link, Then) or not holds(link, at_is_plain, True):
            links.append(link)
            return python["follow_links"](ctx, links, value)
        if type(value) is tuple or isa(value, Later):
            python["check_there"](value, link)
        value = get(link, at_then)(value)
        if isa(value, Launch) and is_plain(value) and holds(value, at_unused, True):
            put(value, at_unused, False)
            return value, None
        return link.child(ctx, value), None
    return None, value


# --- memory ---

cdef object specs = None  # of `array_spec`: (shape, scalar type) -> spec
cdef object ndarray = None
cdef int64_t LARGE = 0  # bytes of an array that is copied by several threads
cdef enum:
    GRANULE = 256  # as in `storage`
cdef object pattern_of = None  # the value whose pattern was asked for last
cdef int pattern_unit = 0
cdef unsigned pattern_number = 0


def know_memory(known_specs, array_class, large, counting):
    """Note the specs of new arrays, NumPy's class of arrays, the bytes of the largest array that is
    copied by one thread, and the `counters`.
    """
    global specs, ndarray, LARGE, counters
    specs, ndarray, LARGE, counters = known_specs, array_class, large, counting


cdef inline object new_op(int cls):
    """A `SimpleOp` of the Python code that is running."""
    cdef PyFrameObject* frame = PyEval_GetFrame()
    cdef object op
    if frame == NULL:
        return None
    op = PyType_GenericAlloc(classes[cls], 0)
    put(op, at_is_unused, True)
    put(op, at_made_at, (na_code(frame), PyFrame_GetLasti(frame)))
    return op


cdef object spec_for(object shape, object dtype):
    """The spec of a plain shape and a scalar type, if it is known."""
    cdef PyObject* spec
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
    spec = PyDict_GetItemWithError(specs, (shape, dtype))
    return None if spec == NULL else <object>spec


cdef object new_full(object spec, object value, str name):
    cdef object op = new_op(Full)
    if op is not None:
        put(op, at_spec, spec)
        put(op, at_fill_value, value)
        put(op, at_op_name, name)
    return op


def empty(shape, dtype=float32):
    cdef object spec = spec_for(shape, dtype), op
    op = None if spec is None else new_full(spec, None, "empty")
    return python["empty"](shape, dtype) if op is None else op


def zeros(shape, dtype=float32):
    cdef object spec = spec_for(shape, dtype), op = None
    if spec is not None and not holds(spec, at_spec_zero, None):
        op = new_full(spec, get(spec, at_spec_zero), "zeros")
    return python["zeros"](shape, dtype) if op is None else op


def from_host(array):
    cdef PyObject* spec = NULL
    cdef object op = None
    if on and type(array) is ndarray:
        dtype = array.dtype
        spec = PyDict_GetItemWithError(specs, (array.shape, dtype.type))
        if spec != NULL and holds(<object>spec, at_spec_dtype, dtype):
            op = new_op(FromHost)
    if op is None:
        return python["from_host"](array)
    put(op, at_spec, <object>spec)
    put(op, at_op_name, "from_host")
    put(op, at_array, array)
    put(op, at_is_fast, 0 < <int64_t>get(<object>spec, at_spec_nbytes) <= LARGE)
    return op


def Tensor_to_host(self):
    cdef object op = new_op(ToHost) if on and isa(self, Tensor) else None
    if op is None:
        return python["Tensor.to_host"](self)
    put(op, at_read, self)
    return op


cdef bint is_simple(object op) noexcept:
    """Whether an operation is a `SimpleOp` of a class with a fast path."""
    return isa(op, Full) or isa(op, ToHost) or isa(op, FromHost) or isa(op, GraphLaunch)


cdef object result_of(object op):
    """`SimpleOp.result`."""
    cdef object result
    if isa(op, GraphLaunch):
        return None
    result = get(op, at_result_of)
    na_clear(<PyObject*>op, where[at_result_of])
    return result


cdef object name_of(object op):
    """The label of an operation that is no launch."""
    cdef object spec = None, tensor
    cdef PyObject* label = NULL
    if isa(op, ToHost):
        tensor = get(op, at_read)
        if isa(tensor, Tensor):
            spec, name = get(tensor, at_kind), "to_host"
    elif isa(op, Full) or isa(op, FromHost):
        spec, name = get(op, at_spec), get(op, at_op_name)
    if spec is not None:
        label = PyDict_GetItemWithError(get(spec, at_labels), name)
    return op.label if label == NULL else <object>label


cdef object take(object blocks, object nbytes):
    """`CudaPool.reuse`."""
    cdef PyObject* spare = PyDict_GetItemWithError(get(blocks, at_spare), nbytes)
    if spare == NULL or PyList_GET_SIZE(<object>spare) == 0:
        return None
    if not (<Lock>get(blocks, at_pool_lock)).is_free():
        return python["CudaPool.reuse"](blocks, nbytes)
    block = (<list>spare).pop()
    used = get(blocks, at_used) + nbytes
    put(blocks, at_spare_bytes, get(blocks, at_spare_bytes) - nbytes)
    put(blocks, at_used, used)
    if used > get(blocks, at_high):
        put(blocks, at_high, used)
    put(counters, at_allocations, get(counters, at_allocations) + 1)
    return block


cdef bint give_back(object blocks, object memory) except -1:
    """`CudaPool.free`, where a list of spare blocks takes the memory; whether one does."""
    cdef object nbytes
    cdef PyObject* spare
    if not isa(blocks, CudaPool) or not isa(memory, CudaMemory) or not holds(memory, at_lent, False):
        return False
    nbytes = get(memory, at_memory_nbytes)
    spare = PyDict_GetItemWithError(get(blocks, at_spare), nbytes)
    if spare == NULL or not (<Lock>get(blocks, at_pool_lock)).is_free():
        return False
    kept = get(blocks, at_spare_bytes) + nbytes
    if kept > get(blocks, at_most_spare):
        return False
    put(blocks, at_used, get(blocks, at_used) - nbytes)
    put(blocks, at_spare_bytes, kept)
    (<list>spare).append(memory)
    return True


def CudaPool_reuse(self, nbytes):
    return take(self, nbytes) if on and isa(self, CudaPool) else python["CudaPool.reuse"](self, nbytes)


def CudaPool_free(self, memory):
    if not on or not give_back(self, memory):
        python["CudaPool.free"](self, memory)


cdef class Block:
    """A small block of page-locked memory, an object with a buffer. Its end returns the address to
    the list of spare blocks.
    """
    cdef void* start
    cdef Py_ssize_t nbytes
    cdef list spare

    def __cinit__(self, nbytes, list spare, address):
        self.start, self.nbytes, self.spare = <void*><uintptr_t>address, nbytes, spare

    def __dealloc__(self):
        self.spare.append(<uintptr_t>self.start)

    def __len__(self):
        return self.nbytes

    @property
    def address(self):
        return <uintptr_t>self.start

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.start, self.nbytes, 0, flags)


def PinnedPool_reuse(self, nbytes):
    cdef PyObject* size
    if on and isa(self, PinnedPool):
        size = PyDict_GetItemWithError(get(self, at_sizes), nbytes)
        if size != NULL and holds(<object>size, at_is_small, True):
            spare = <list>get(<object>size, at_spare_blocks)
            if PyList_GET_SIZE(spare):
                return Block(nbytes, spare, spare.pop())
    return python["PinnedPool.reuse"](self, nbytes)


cdef object new_storage(object pool, int64_t nbytes):
    """`MemoryPool.reuse`."""
    cdef object blocks, memory, room = (nbytes + GRANULE - 1) // GRANULE * GRANULE or GRANULE
    cdef object storage
    if not isa(pool, MemoryPool) or not holds(pool, at_max_bytes, None):
        return pool.reuse(nbytes)
    blocks = get(pool, at_blocks)
    memory = take(blocks, room) if isa(blocks, CudaPool) else blocks.reuse(room)
    if memory is None:
        return None
    storage = PyType_GenericAlloc(classes[Storage], 0)
    put(storage, at_owner_of_memory, pool)
    put(storage, at_memory, memory)
    for i in (at_writer, at_graphs, at_links, at_maps):
        put(storage, i, None)
    put(storage, at_readers, {})
    put(storage, at_holders, zero)
    put(storage, at_identity, <uintptr_t><PyObject*>storage)
    put(storage, at_fast_path_device, get(pool, at_pool_device))
    return storage


def Storage___del__(self):
    cdef PyObject* memory
    cdef object pool
    if on and isa(self, Storage):
        memory = na_get(<PyObject*>self, where[at_memory])
        if memory == NULL:
            return
        pool = get(self, at_owner_of_memory)
        if isa(pool, MemoryPool) and holds(pool, at_max_bytes, None) and (
            give_back(get(pool, at_blocks), <object>memory)
        ):
            return
    python["Storage.__del__"](self)


cdef object new_tensor(object device, object storage, object spec):
    """`Tensor.of`, of a storage that no other tensor holds."""
    cdef object tensor = PyType_GenericAlloc(classes[Tensor], 0)
    cdef int i
    for i in (at_source, at_handle, at_key, at_former):
        put(tensor, i, None)
    put(tensor, at_device_of, device)
    put(tensor, at_dtype, get(spec, at_spec_dtype))
    put(tensor, at_shape, get(spec, at_spec_shape))
    put(tensor, at_layout, get(spec, at_spec_layout))
    put(tensor, at_kind, spec)
    put(tensor, at_fingerprint, -1)
    put(tensor, at_storage, storage)
    put(storage, at_holders, 1)
    return tensor


def DeviceArray___del__(self):
    cdef PyObject* storage = NULL
    if on and isa(self, Tensor):
        storage = na_get(<PyObject*>self, where[at_storage])
        if storage == NULL or storage == <PyObject*>None:
            return
        if isa(<object>storage, Storage):
            put(<object>storage, at_holders, get(<object>storage, at_holders) - 1)
            return
    python["DeviceArray.__del__"](self)


cdef object allocated(object op, object submission, object pool):
    """The new tensor of a `Made`; None if the pool has no free block."""
    cdef object device = get(get(submission, at_stream), at_device), spec = get(op, at_spec)
    cdef object storage
    if pool is None:
        pool = get(device, at_pool)
        if pool is None:
            pool = device.pool
    storage = new_storage(pool, get(spec, at_spec_nbytes))
    return None if storage is None else new_tensor(device, storage, spec)


cdef inline bint is_plain_submission(object submission) noexcept:
    return on and isa(submission, Submission) and isa(get(submission, at_stream), Stream)


cdef int retain(object submission, object a, object b, object nbytes) except -1:
    """Let a submission keep two objects alive, and count bytes."""
    cdef list keep_alive = get(submission, at_keep_alive)
    keep_alive.append(a)
    if b is not None:
        keep_alive.append(b)
    put(submission, at_nbytes, get(submission, at_nbytes) + nbytes)
    return 0


def CudaStream_launch(self, work, args, queue):
    cdef DriverStream calls = calls_of(self) if on else None
    cdef LaunchRecord record = None if calls is None else calls.record_of(self, work)
    if record is None:
        return python["CudaStream.launch"](self, work, args, queue)
    if na_ordinal != calls.ordinal:
        enter(calls.device)
    try:
        result = record.run(args)
    except OverflowError:
        return python["CudaStream.launch"](self, work, args, queue)  # which says what is wrong
    if result != 0:
        fail(result, "cuLaunchKernel")
    put(counters, at_launches, get(counters, at_launches) + 1)
    return queue


def Full_try_enqueue(self, submission, pool):
    cdef object tensor, storage, value, queue
    if not is_plain_submission(submission) or not isa(self, Full):
        return python["Full.try_enqueue"](self, submission, pool)
    tensor = allocated(self, submission, pool)
    if tensor is None:
        return False
    value, nbytes = get(self, at_fill_value), get(get(self, at_spec), at_spec_nbytes)
    put(self, at_result_of, tensor)
    if value is None or nbytes == 0:
        put(submission, at_is_empty, True)
        return True
    storage = get(tensor, at_storage)
    retain(submission, storage, None, nbytes)
    put(storage, at_writer, submission)  # which has no readers
    queue = get(get(submission, at_stream), at_backend)
    if not is_filled(calls_of(queue), storage, value, nbytes):
        put(submission, at_queue, queue.fill(tensor.handle, value, get(submission, at_queue)))
    return True


cdef bint is_filled(DriverStream calls, object storage, object value, int64_t nbytes) except -1:
    """Fill new memory, if the driver has a fill of such elements; whether it has."""
    global pattern_of, pattern_unit, pattern_number
    cdef int result
    cdef uint64_t address
    cdef fill_t fill
    if calls is None or not isa(get(storage, at_memory), CudaMemory):
        return False
    if value is not pattern_of:
        pattern_unit, pattern_number = python["pattern"](value)
        pattern_of = value
    if pattern_unit > 4:
        return False
    cdef int unit = pattern_unit
    cdef unsigned number = pattern_number
    if na_ordinal != calls.ordinal:
        enter(calls.device)
    fill = fill_8 if unit == 1 else fill_16 if unit == 2 else fill_32
    address = get(get(storage, at_memory), at_address)
    with nogil:
        result = fill(address, number, nbytes // unit, calls.number)
    if result != 0:
        fail(result, "cuMemsetAsync")
    return True


def FromHost_try_enqueue(self, submission, pool):
    cdef object stream, queue, block, tensor, storage, nbytes
    cdef DriverStream calls
    if not is_plain_submission(submission) or not isa(self, FromHost):
        return python["FromHost.try_enqueue"](self, submission, pool)
    stream, spec, array = get(submission, at_stream), get(self, at_spec), get(self, at_array)
    nbytes = get(spec, at_spec_nbytes)
    block = get(get(stream, at_device), at_device_backend).host_block(nbytes)
    if block is None:
        return False
    tensor = allocated(self, submission, pool)
    if tensor is None:
        return False
    if not is_copied(array, spec, block, nbytes):
        ndarray(get(spec, at_spec_shape), get(spec, at_spec_dtype), block)[...] = array
    storage = get(tensor, at_storage)
    retain(submission, storage, block, 2 * nbytes)
    put(storage, at_writer, submission)
    queue = get(stream, at_backend)
    calls = calls_of(queue)
    if calls is None or not isa(get(storage, at_memory), CudaMemory):
        put(submission, at_queue, queue.upload(tensor.handle, block, get(submission, at_queue)))
    else:
        copy_block(calls, storage, block, nbytes, True)
    put(self, at_result_of, tensor)
    return True


cdef bint is_copied(object array, object spec, object block, int64_t nbytes) except -1:
    """Copy the elements of an array to a page-locked block, if they lie as they will there."""
    cdef Py_buffer source
    cdef tuple shape = get(spec, at_spec_shape)
    cdef int i
    cdef bint fits
    if type(array) is not ndarray or array.dtype is not get(spec, at_spec_dtype):
        return False
    try:
        PyObject_GetBuffer(array, &source, PyBUF_ND)
    except (ValueError, BufferError):  # not contiguous, or of elements that no buffer describes
        return False
    fits = source.ndim == PyTuple_GET_SIZE(shape) and source.len == nbytes
    for i in range(source.ndim if fits else 0):
        fits = fits and source.shape[i] == <Py_ssize_t>shape[i]
    if fits:
        memcpy(place_of(block), source.buf, nbytes)
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
    cdef void* memory = <void*><uintptr_t>get(get(storage, at_memory), at_address)
    cdef void* host = place_of(block)
    cdef int result
    if na_ordinal != calls.ordinal:
        enter(calls.device)
    with nogil:
        if to_device:
            result = copy_to_device(memory, host, nbytes, calls.number)
        else:
            result = copy_to_host(host, memory, nbytes, calls.number)
    if result != 0:
        fail(result, "cuMemcpyHtoDAsync" if to_device else "cuMemcpyDtoHAsync")
    put(counters, at_copies, get(counters, at_copies) + 1)
    return 0


def ToHost_try_enqueue(self, submission, pool):
    cdef object stream, backend, tensor, storage, spec, block, queue, readers
    cdef DriverStream calls
    cdef Lock lock
    tensor = get(self, at_read) if is_plain_submission(submission) and isa(self, ToHost) else None
    # A tensor with a spec fills its storage, which is its pool's.
    if tensor is None or not isa(tensor, Tensor) or holds(tensor, at_kind, None):
        return python["ToHost.try_enqueue"](self, submission, pool)
    stream, spec, storage = get(submission, at_stream), get(tensor, at_kind), get(tensor, at_storage)
    backend = get(get(stream, at_device), at_device_backend)
    nbytes = get(spec, at_spec_nbytes)
    if storage is None or not holds(storage, at_fast_path_device, backend) or (
        not 0 < <int64_t>nbytes <= LARGE or not holds(tensor, at_source, None)
    ):
        return False
    block = backend.host_block(nbytes)
    if block is None:
        return False
    lock = get(get(stream, at_device), at_submit_lock)
    lock.take()
    try:
        if is_busy_elsewhere(peek(<PyObject*>storage, at_writer), stream):
            return False
        retain(submission, storage, block, nbytes)
        queue = get(stream, at_backend)
        calls = calls_of(queue)
        if calls is None or not isa(get(storage, at_memory), CudaMemory):
            put(submission, at_queue, queue.download(block, tensor.handle, get(submission, at_queue)))
        else:
            copy_block(calls, storage, block, nbytes, False)
        readers = get(storage, at_readers)
        if PyDict_Size(readers) >= MANY_READERS:
            readers = storage.forget_readers()
        readers[stream] = submission
    finally:
        lock.give()
    put(self, at_result_of, ndarray(get(spec, at_spec_shape), get(spec, at_spec_dtype), block))
    return True


# --- graphs ---


def CudaGraph_launch(self):
    cdef object op = new_op(GraphLaunch) if on and isa(self, Graph) else None
    if op is None:
        return python["CudaGraph.launch"](self)
    put(op, at_graph, self)
    put(op, at_default_stream, get(self, at_graph_stream))
    return op


def GraphLaunch_try_enqueue(self, submission, pool):
    """`CudaGraph.try_launch`."""
    cdef object graph = None, stream, attached, last, queue, backend
    cdef DriverStream calls
    cdef Lock lock
    if is_plain_submission(submission) and isa(self, GraphLaunch):
        graph = get(self, at_graph)
    if graph is None or not isa(graph, Graph) or not holds(graph, at_is_own, True):
        return python["GraphLaunch.try_enqueue"](self, submission, pool)
    stream = get(submission, at_stream)
    queue, backend = get(stream, at_backend), get(graph, at_backend_graph)
    lock = get(get(graph, at_graph_device), at_submit_lock)
    lock.take()
    try:
        attached = get(graph, at_attached)
        last = get(attached, at_last_launch)
        if (
            last is None or PyTuple_GET_SIZE(get(submission, at_launched))
            or PyTuple_GET_SIZE(get(graph, at_graph_dependencies))
            or not holds(graph, at_updated, None)
        ):
            return python["GraphLaunch.try_enqueue"](self, submission, pool)
        if (
            PyDict_Size(get(attached, at_stale))
            or not holds(attached, at_graph_last_stream, stream)
            or not holds(stream, at_device, get(graph, at_graph_device))
        ):
            return False
        put(submission, at_launched, get(graph, at_graph_names))
        retain(submission, graph, get(graph, at_recorded), 0)
        put(last, at_last, submission)  # before the replay: ^C may come right after it
        calls = calls_of(queue)
        if calls is None or backend.checks:
            put(submission, at_queue, queue.replay(backend, get(submission, at_queue)))
        else:
            replay(calls, <void*><uintptr_t>backend.number)
        put(graph, at_graph_launches, get(graph, at_graph_launches) + 1)
    finally:
        lock.give()
    return True


cdef int replay(DriverStream calls, void* graph) except -1:
    cdef int result
    if na_ordinal != calls.ordinal:
        enter(calls.device)
    with nogil:
        result = launch_graph(graph, calls.number)
    if result != 0:
        fail(result, "cuGraphLaunch")
    put(counters, at_replays, get(counters, at_replays) + 1)
    return 0
