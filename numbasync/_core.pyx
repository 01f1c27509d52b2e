# cython: language_level=3, boundscheck=False, wraparound=False, binding=True, auto_pickle=False
"""The compiled core: the hot path of launches, in the place of Python functions of equal meaning.

The Python code is the specification. `native.compiled` puts a function of this module in the place
of the Python function of the same qualified name, which is kept, and called for everything unusual:
lazy arguments, work of other streams that must be waited for, limits, faults, classes that are not
exactly the known ones. Rules and messages are there, once.

Attributes that are slots are read by their offsets, which `know` takes from the classes' own
descriptors; every class is compared exactly before. The core opens no library: addresses of the
driver's functions are handed in by the backend.
"""
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF, Py_XINCREF, Py_XDECREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM, PyTuple_GET_SIZE, PyTuple_GET_ITEM
from cpython.list cimport PyList_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.string cimport memcpy
from libc.stdint cimport (
    int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t,
)

cdef extern from "Python.h":
    ctypedef struct PyFrameObject:
        pass
    PyFrameObject* PyEval_GetFrame()
    object na_code "(PyObject *)PyFrame_GetCode" (PyFrameObject*)
    int PyFrame_GetLasti(PyFrameObject*)
    object PyFrame_GetGlobals(PyFrameObject*)
    PyObject* PyDict_GetItemWithError(object, object) except? NULL
    object PyType_GenericAlloc(PyTypeObject*, Py_ssize_t)
    Py_ssize_t PyObject_Size(object) except -1
    PyTypeObject* Py_TYPE(object) noexcept
    int PyFloat_Pack2(double, char*, int) except -1
    bint PyMethod_Check(object) noexcept
    PyObject* PyMethod_GET_FUNCTION(object) noexcept

cdef extern from *:
    """
    #include "structmember.h"
    #ifdef _WIN32
    #define NA_THREAD __declspec(thread)
    #else
    #define NA_THREAD __thread
    #endif
    static NA_THREAD long na_ordinal = -1;  /* of the device whose context is current */
    static long na_current(void) { return na_ordinal; }
    static void na_set_current(long ordinal) { na_ordinal = ordinal; }

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
    static PyObject *na_get(PyObject *o, Py_ssize_t at) { return NA_SLOT(o, at); }
    """
    long na_current() noexcept nogil
    void na_set_current(long) noexcept nogil
    Py_ssize_t na_offset(object) noexcept
    PyObject* na_get(PyObject*, Py_ssize_t) noexcept
    void na_put(PyObject*, Py_ssize_t, PyObject*) noexcept


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
    "Device": ("backend", "busy", "is_limited", "lost", "submit_lock"),
    "Storage": ("fast_path_device", "identity", "writer", "readers"),
    "DeviceArray": ("own_storage", "own_handle", "source", "_fingerprint"),
    "Partition": ("tensor", "_fingerprint"),
    "TensorMap": ("mapped",),
    "Launch": (
        "_bound", "_config", "_form", "_launcher", "_lazy", "_parts", "_site", "_tensors",
        "_unused", "_values", "has_fast_path",
    ),
    "Launcher": ("_forms", "_plain_count", "label", "names", "planner", "result"),
    "Config": ("extents", "stream"),
    "Plan": ("work", "empty"),
    "FastCall": ("core",),
    "_Enqueued": ("op", "submission"),
    "Tensor": (), "MappedTensor": (),
}
cdef enum:
    at_stream, at_name, at_site, at_keep_alive, at_launched, at_number, at_nbytes, at_done
    at_error, at_queue, at_is_empty, at_is_trivial, at_signalled, at_detached, at_dependencies
    at_after, at_trace
    at_abandoned, at_broken, at_confirmed, at_in_flight, at_lock, at_owner, at_sequence
    at_last_signal, at_suspended, at_backend, at_device, at_has_dependencies, at_stream_nbytes
    at_verified
    at_follows, at_spin_backoff, at_spin_misses
    at_device_backend, at_busy, at_is_limited, at_lost, at_submit_lock
    at_fast_path_device, at_identity, at_writer, at_readers
    at_storage, at_handle, at_source, at_fingerprint
    at_tensor, at_tile_fingerprint
    at_mapped
    at_bound, at_config, at_form, at_launcher, at_lazy, at_parts, at_made_at, at_tensors
    at_unused, at_values, at_has_fast_path
    at_forms, at_plain_count, at_label, at_names, at_planner, at_result
    at_extents, at_config_stream
    at_work, at_is_without_blocks
    at_core
    at_enqueued_op, at_enqueued_submission
    PLACES
cdef Py_ssize_t where[PLACES]  # offsets
cdef PyTypeObject* Submission = NULL
cdef PyTypeObject* Stream = NULL
cdef PyTypeObject* Tensor = NULL
cdef PyTypeObject* MappedTensor = NULL
cdef PyTypeObject* Launch = NULL
cdef PyTypeObject* Launcher = NULL
cdef PyTypeObject* Enqueued = NULL
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
    on = bool(wish) and len(known) == len(wanted)
    if on:
        learn()
    return on


def is_on():
    return on


cdef int learn() except -1:
    global Submission, Stream, Tensor, MappedTensor, Launch, Launcher, Enqueued
    places = [offsets[name, slot] for name, slots in wanted.items() for slot in slots]
    if len(places) != PLACES:
        raise SystemError(f"{len(places)} slots for {PLACES} places")
    for i, offset in enumerate(places):
        where[i] = offset
    Submission = <PyTypeObject*>known["Submission"]
    Stream = <PyTypeObject*>known["Stream"]
    Tensor = <PyTypeObject*>known["Tensor"]
    MappedTensor = <PyTypeObject*>known["MappedTensor"]
    Launch = <PyTypeObject*>known["Launch"]
    Launcher = <PyTypeObject*>known["Launcher"]
    Enqueued = <PyTypeObject*>known["_Enqueued"]
    return 0


cdef inline bint is_method(object bound, str name):
    """Whether a method is the Python function of this name, and no test's replacement."""
    return PyMethod_Check(bound) and PyMethod_GET_FUNCTION(bound) == PyDict_GetItemWithError(python, name)


cdef inline object get(object o, int at):
    """The object in a slot."""
    cdef PyObject* value = na_get(<PyObject*>o, where[at])
    if value == NULL:
        raise AttributeError(f"a slot of {type(o).__name__} is empty")
    return <object>value


cdef inline void put(object o, int at, object value) noexcept:
    na_put(<PyObject*>o, where[at], <PyObject*>value)


cdef inline bint holds(object o, int at, object value) noexcept:
    """Whether a slot holds this very object."""
    return na_get(<PyObject*>o, where[at]) == <PyObject*>value


# --- the line that submits ---

cdef dict is_between = None  # of `callsite`: module name -> whether its frames are skipped
cdef object CallSite = None


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
    cdef PyFrameObject* frame = PyEval_GetFrame()
    cdef PyObject* skipped
    if frame != NULL:
        skipped = PyDict_GetItemWithError(is_between, PyFrame_GetGlobals(frame).get("__name__", ""))
        if skipped != NULL and <object>skipped is False:
            return tuple.__new__(CallSite, (na_code(frame), PyFrame_GetLasti(frame)))
    return None if above < 0 else python["call_site"](above)


# --- submissions, and the streams that number and retire them ---

cdef tuple fresh = (  # what a new `Submission` has from `site` on, but for `keep_alive`
    None, None, (), zero, zero, False, None, None, False, False, False, False, None, None, None,
)


cdef object new_submission(object stream, object name, object launched):
    """A `Submission`, as its constructor makes it."""
    cdef object s = PyType_GenericAlloc(Submission, 0)
    cdef int i
    put(s, at_stream, stream)
    put(s, at_name, name)
    for i in range(at_site, at_trace + 1):
        put(s, i, fresh[i - at_site])
    put(s, at_keep_alive, [])
    put(s, at_launched, launched)
    return s


def Progress_commit(stream, submission, signal=True):
    if not on or Py_TYPE(stream) != Stream or Py_TYPE(submission) != Submission:
        return python["Progress.commit"](stream, submission, signal)
    commit(stream, submission, signal)


from asyncio import _get_running_loop as get_running_loop, current_task

cdef int LOOK_EVERY = 16
cdef int64_t MAX_UNSIGNALLED = 1 << 24


cdef int commit(object stream, object submission, bint signal) except -1:
    """`Progress.commit`."""
    cdef object lock, in_flight, number
    cdef Py_ssize_t count
    cdef bint is_trivial
    if holds(submission, at_is_empty, True) or signal:
        python["Progress.commit"](stream, submission, signal)
        return 0
    is_trivial = (
        holds(submission, at_queue, None) and holds(submission, at_dependencies, None)
        and holds(submission, at_after, None) and holds(submission, at_nbytes, zero)
    )
    put(submission, at_is_trivial, is_trivial)
    in_flight = get(stream, at_in_flight)
    lock = get(stream, at_lock)
    lock.acquire()
    try:
        number = get(stream, at_sequence) + 1
        put(stream, at_sequence, number)
        put(submission, at_number, number)
        in_flight.append(submission)
        count = PyObject_Size(in_flight)
        if count == 1:
            get(get(stream, at_owner), at_busy)[stream] = None
        if not is_trivial:
            put(stream, at_stream_nbytes, get(stream, at_stream_nbytes) + get(submission, at_nbytes))
    finally:
        lock.release()
    if count % LOOK_EVERY == 0 or number - get(stream, at_last_signal) >= MAX_UNSIGNALLED:
        look(stream, number)
    return 0


cdef int look(object stream, object number) except -1:
    """Enqueue a signal of `number`, and retire what the device has passed."""
    try:
        stream.ensure_signalled(number)
        advance(stream)
    except lost:  # the awaiter polls again, and raises the error
        pass
    return 0


cdef object lost = ()


def know_faults(tuple classes):
    """Note the errors of a driver that reports a fault of earlier work."""
    global lost
    lost = classes


def Progress_advance(stream):
    if not on or Py_TYPE(stream) != Stream:
        return python["Progress.advance"](stream)
    return advance(stream)


cdef object advance(object stream):
    """`Progress.advance`."""
    cdef object passed, in_flight, confirmed
    if not holds(stream, at_broken, None) or PyObject_Size(get(stream, at_abandoned)):
        return python["Progress.advance"](stream)
    passed = get(stream, at_backend).completed()
    confirmed = get(stream, at_confirmed)
    if passed < confirmed:
        passed = confirmed
    in_flight = get(stream, at_in_flight)
    if PyObject_Size(in_flight):
        try:
            first = in_flight[0]
        except IndexError:  # another thread has retired it in between
            return passed
        if first.sequence <= passed:
            retire(stream, passed)
    return passed


cdef int retire(object stream, object passed) except -1:
    """`Progress._retire`."""
    cdef object lock, in_flight, submission, broken, error
    cdef list dropped = []  # dropped outside the lock: finalisers may take long
    if not holds(stream, at_has_dependencies, False):
        python["Progress._retire"](stream, passed)
        return 0
    lock = get(stream, at_lock)
    lock.acquire()
    try:
        in_flight, broken = get(stream, at_in_flight), get(stream, at_broken)
        while PyObject_Size(in_flight):
            submission = in_flight[0]
            if submission.sequence > passed:
                break
            if (
                Py_TYPE(submission) == Submission and holds(submission, at_is_trivial, True)
                and broken is None
            ):
                dropped.append(get(submission, at_keep_alive))
                put(submission, at_keep_alive, [])
                put(submission, at_done, True)
            else:
                dropped.append(submission.retire(broken))
                error = submission.error
                if error is not None and submission.detached and stream._unreported is None:
                    stream._unreported = error
                put(stream, at_stream_nbytes, get(stream, at_stream_nbytes) - submission.nbytes)
            # Removed last: another thread that still sees the submission waits for the lock, so
            # that no result is returned before its host side is complete.
            in_flight.popleft()
        else:
            put(stream, at_has_dependencies, False)
            forget_if_idle(stream)
    finally:
        lock.release()
    return 0


cdef int forget_if_idle(object stream) except -1:
    """`Progress._forget_if_idle`."""
    cdef object busy
    if PyObject_Size(get(stream, at_suspended)) == 0 == PyObject_Size(get(stream, at_in_flight)):
        busy = get(get(stream, at_owner), at_busy)
        busy.pop(stream, None)
        if PyObject_Size(get(stream, at_suspended)) or PyObject_Size(get(stream, at_in_flight)):
            busy[stream] = None
    return 0


cdef bint is_open(object stream) noexcept:
    """Whether no fault is known of a stream and its device."""
    return holds(stream, at_broken, None) and holds(get(stream, at_owner), at_lost, None)


def Progress_verify(stream, sequence):
    cdef int64_t number
    if on and Py_TYPE(stream) == Stream:
        number = sequence
        if 0 < number <= <int64_t>get(stream, at_verified) and is_open(stream):
            return
    python["Progress.verify"](stream, sequence)


cdef int note_passed(object stream, object number) except -1:
    """`Progress._has_passed`, and what that lets retire."""
    cdef object lock = get(stream, at_lock)
    lock.acquire()
    try:
        if number > get(stream, at_confirmed):
            put(stream, at_confirmed, number)
    finally:
        lock.release()
    advance(stream)
    return 0


def Stream_wait_until_idle(stream):
    if (
        not on or Py_TYPE(stream) != Stream or not is_open(stream)
        or not holds(stream, at_follows, None)
    ):
        python["Stream.wait_until_idle"](stream)
        return
    number = get(stream, at_sequence)
    try:
        get(stream, at_backend).synchronize()
    except BaseException:
        stream._is_broken()
        stream.check()  # raises the fault, whose message names the work that was running
        raise
    note_passed(stream, number)


def Stream_has_passed_soon(stream, sequence):
    if not on or Py_TYPE(stream) != Stream:
        return python["Stream.has_passed_soon"](stream, sequence)
    return has_passed_soon(stream, sequence)


cdef bint has_passed_soon(object stream, object sequence) except -1:
    """`Stream.has_passed_soon`."""
    cdef object loop, watcher, task, number
    if advance(stream) >= sequence:
        return True
    loop = get_running_loop()
    watcher = getattr(loop, "_numbasync_reactor", None)
    if watcher is None:
        return python["Stream.has_passed_soon"](stream, sequence)
    running = current_task(loop)
    task = <uintptr_t><PyObject*>running
    if watcher._last != task:
        watcher._last = task
        return False
    if PyObject_Size(watcher._queues):
        return False
    if not holds(stream, at_spin_backoff, zero):
        return stream._spin_poll()
    number = get(stream, at_sequence)
    try:
        if not get(stream, at_backend).spin_poll():
            misses = min(2 * get(stream, at_spin_misses) + 1, 63)
            put(stream, at_spin_misses, misses)
            put(stream, at_spin_backoff, misses)
            return False
    except BaseException:
        stream._is_broken()
        stream.check()
        raise
    put(stream, at_spin_misses, zero)
    if number > get(stream, at_verified):
        put(stream, at_verified, number)
    note_passed(stream, number)
    return True


# --- launches of known arguments ---

cdef enum:
    MOST = 32  # arguments
    NUMBER = 0
    TENSOR = 1  # the tensor itself
    MAP = 2  # a tensor map
    SHARED = 3  # a shared tensor, or a partition that is read
    PARTITION = 4  # a partition that is written
    WHOLE = 5  # a number that must fit 64 bits
    LITERAL = 6  # a number that the plan depends on
    MANY_READERS = 8

MOST_ARGUMENTS = MOST
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
    cdef object last_device, last_parts, last_extents, last_plan  # of the latest call

    def __cinit__(self, tuple kinds, codes, outputs, may_alias, in_python):
        if len(kinds) > MOST:
            raise ValueError(f"{len(kinds)} arguments")
        self.kinds, self.count, self.may_alias = kinds, len(kinds), may_alias
        self.in_python = in_python
        self.last_device = self.last_parts = self.last_extents = self.last_plan = None
        for i in range(self.count):
            self.code[i] = codes[i]
            self.output[i] = i in outputs
            self.arrays += TENSOR <= codes[i] <= PARTITION
            self.written += self.output[i]

    def take(self, values):
        return self.taken(values) if on else self.in_python.take(values)

    def enqueue(self, plan, values, tensors, submission):
        if on and Py_TYPE(submission) == Submission:
            return self.enqueued(plan, values, tensors, submission)
        return self.in_python.enqueue(plan, values, tensors, submission)

    cdef object taken(self, tuple values):
        """The tensors and the fingerprints, or None: `FastCall.take`. A tuple that is dropped may
        have empty places.
        """
        cdef int i, j, a = 0, code
        cdef object value, tensor, part
        cdef PyObject* storage
        cdef PyObject* storages[MOST]
        cdef bint outputs[MOST]
        cdef tuple tensors = PyTuple_New(self.arrays), parts = PyTuple_New(self.count)
        for i in range(self.count):
            code = self.code[i]
            value = values[i]
            if code == NUMBER or code >= WHOLE:
                part = self.kinds[i]
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
                if Py_TYPE(tensor) != (MappedTensor if code == MAP else Tensor):
                    return self.in_python.take(values)
                storage = na_get(<PyObject*>tensor, where[at_storage])
                if storage == <PyObject*>None or not holds(tensor, at_source, None):
                    return None
                if code == PARTITION:
                    part = get(value, at_tile_fingerprint)
                    if part < 0:
                        part = value.fingerprint
                else:
                    part = get(tensor, at_fingerprint)
                    if part < 0:
                        part = tensor.fingerprint
                storages[a], outputs[a] = storage, self.output[i]
                Py_INCREF(tensor)
                PyTuple_SET_ITEM(tensors, a, tensor)
                a += 1
            Py_INCREF(part)
            PyTuple_SET_ITEM(parts, i, part)
        if self.written and not self.may_alias:
            for i in range(1, a):
                for j in range(i):
                    if (outputs[i] or outputs[j]) and (
                        get(<object>storages[i], at_identity) == get(<object>storages[j], at_identity)
                    ):
                        return None
        return tensors, parts

    cdef object plan_of(self, object launcher, object device, object parts, object extents):
        """The plan of a call, if an earlier call has created it."""
        if (
            self.last_device is device and self.last_extents is extents
            and self.last_parts == parts
        ):
            return self.last_plan
        plan = get(launcher, at_planner).plans.get((device, parts, extents))
        if plan is not None:
            self.last_device, self.last_parts = device, parts
            self.last_extents, self.last_plan = extents, plan
        return plan

    cdef bint enqueued(self, plan, tuple values, tuple tensors, submission) except -1:
        """`FastCall.enqueue`: tests every storage, launches, then updates the access records."""
        cdef object stream = get(submission, at_stream), device = get(stream, at_device)
        cdef object backend = get(device, at_device_backend), queue = get(stream, at_backend)
        cdef object lock = get(device, at_submit_lock)
        cdef object tensor, storage, handle, reader, readers, work = get(plan, at_work)
        cdef LaunchRecord record = None
        cdef list args = None, storages = []
        cdef int i, a = 0
        records = queue.records
        if records is not None and is_method(queue.launch, "CudaStream.launch"):
            prepared = records.get(work) or queue.record_of(work)
            if type(prepared) is LaunchRecord:  # else it is Python's, prepared while this was off
                record = prepared
        if record is None:
            args = []
        lock.acquire()
        try:
            for i in range(self.count):
                if not TENSOR <= self.code[i] <= PARTITION:
                    if record is None:
                        args.append(values[i])
                    elif not record.pack(i, values[i]):
                        return self.in_python.enqueue(plan, values, tensors, submission)
                    continue
                tensor = tensors[a]
                a += 1
                storage = get(tensor, at_storage)
                if storage is None or not holds(storage, at_fast_path_device, backend):
                    return False
                if is_busy_elsewhere(get(storage, at_writer), stream):
                    return False
                if self.output[i]:
                    readers = get(storage, at_readers)
                    if PyObject_Size(readers):
                        for reader in list(readers.values()):
                            if is_busy_elsewhere(reader, stream):
                                return False
                storages.append(storage)
                handle = get(tensor, at_handle)
                if handle is None:
                    handle = tensor.handle
                if record is None:
                    args.append(handle)
                else:
                    record.pack_array(i, handle)
            put(submission, at_keep_alive, get(submission, at_keep_alive) + storages)
            if record is None:
                put(submission, at_queue, queue.launch(work, args, get(submission, at_queue)))
            else:
                record.launch(queue)
            a = 0
            for i in range(self.count):
                if not TENSOR <= self.code[i] <= PARTITION:
                    continue
                storage = storages[a]
                a += 1
                readers = get(storage, at_readers)
                if self.output[i]:
                    put(storage, at_writer, submission)
                    if PyObject_Size(readers):
                        put(storage, at_readers, {})
                else:
                    if PyObject_Size(readers) >= MANY_READERS:
                        readers = storage.forget_readers()
                    readers[stream] = submission
        finally:
            lock.release()
        return True


cdef bint is_busy_elsewhere(object submission, object stream) except -1:
    """Whether a recorded access is in flight on another stream: see `access`."""
    if submission is None:
        return False
    if Py_TYPE(submission) == Submission:
        if holds(submission, at_done, True) or holds(submission, at_stream, stream):
            return False
    elif submission.done or submission.stream is stream:
        return False
    submission.stream.advance()
    return not submission.done


# --- the driver ---

ctypedef int (*launch_t)(
    void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
    void**,
) noexcept nogil
cdef launch_t launch_kernel = NULL
cdef object fail = None
cdef object counters = None


def use_driver(dict addresses, failing, counting):
    """Use the driver's functions at these addresses.

    Args:
        failing: called with a result that is not 0 and the function's name; raises.
        counting: the `counters`.
    """
    global launch_kernel, fail, counters
    launch_kernel = <launch_t><uintptr_t>addresses["cuLaunchKernel"]
    fail, counters = failing, counting


def enter(device):
    """`driver.enter`, also while the core is off: the core notes the current device of a thread."""
    python["enter"](device)
    na_set_current(device.ordinal)


def forget_current():
    """Forget the current device of this thread, in a forked process."""
    na_set_current(-1)


cdef class LaunchRecord:
    """A launch prepared for one stream, complete but for its arguments; as `launch_records.Record`.

    `parts` has for each argument its `struct` code, "s" for an array, or "" for nothing, and its
    offset in the buffer of `nbytes` bytes. The caller serialises the launches of a record.
    """
    cdef void* function
    cdef void* stream
    cdef unsigned extents[7]
    cdef char* buffer
    cdef size_t size
    cdef void* description[5]
    cdef int count
    cdef char code[MOST]
    cdef int offset[MOST]

    def __cinit__(self, function, grid, block, shared_bytes, stream, nbytes, parts, constants):
        if len(parts) > MOST or launch_kernel == NULL:
            raise ValueError(f"{len(parts)} arguments")
        self.function, self.stream = <void*><uintptr_t>function, <void*><uintptr_t>stream
        for i, extent in enumerate((*grid, *block, shared_bytes)):
            self.extents[i] = extent
        self.size = nbytes
        self.buffer = <char*>PyMem_Calloc(1, nbytes + 8)
        if self.buffer == NULL:
            raise MemoryError
        # CU_LAUNCH_PARAM_BUFFER_POINTER, the buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, its size's
        # address, CU_LAUNCH_PARAM_END.
        self.description[0] = <void*>1
        self.description[1] = self.buffer
        self.description[2] = <void*>2
        self.description[3] = &self.size
        self.description[4] = NULL
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
        cdef int i
        for i in range(self.count):
            if self.code[i] == c"s":
                self.pack_array(i, args[i])
            elif not self.pack(i, args[i]):
                raise OverflowError(f"{args[i]!r} does not fit {chr(self.code[i])!r}")
        return self.submit()

    cdef int pack_array(self, int i, object handle) except -1:
        cdef bytes packed = handle.packed
        memcpy(self.buffer + self.offset[i], PyBytes_AS_STRING(packed), PyBytes_GET_SIZE(packed))
        return 0

    cdef bint pack(self, int i, object value) except -1:
        """Write a number. False: it does not fit, or is no number; Python says why."""
        cdef char* to = self.buffer + self.offset[i]
        cdef char code = self.code[i]
        cdef int64_t number
        cdef uint64_t whole
        cdef double real
        cdef float single
        try:
            if code == c"x":
                return True
            if code == c"d" or code == c"f" or code == c"e":
                real = value
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
            if code == c"?":
                to[0] = 1 if value else 0
                return True
            if code == c"Q":
                whole = value
                (<uint64_t*>to)[0] = whole
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

    cdef int launch(self, object queue) except -1:
        """Launch on `queue`, the backend's stream, with what was packed."""
        cdef object device = queue.device
        cdef long ordinal = device.ordinal
        if na_current() != ordinal:
            enter(device)
        cdef int result = self.submit()
        if result != 0:
            fail(result, "cuLaunchKernel")
        counters.launches += 1
        return 0

    cdef int submit(self):
        cdef int result
        cdef unsigned* e = self.extents
        with nogil:
            result = launch_kernel(
                self.function, e[0], e[1], e[2], e[3], e[4], e[5], e[6], self.stream, NULL,
                self.description,
            )
        return result


# --- operations ---


cdef object DEFAULT = None  # the configuration of a call that sets nothing
cdef object thread_of_exclusive = None, thread_of_queue = None


def know_operations(default, exclusive, queue):
    """Note the configuration of plain calls, and the thread-local states of `reentrancy` and of
    `submission_queue`.
    """
    global DEFAULT, thread_of_exclusive, thread_of_queue
    DEFAULT, thread_of_exclusive, thread_of_queue = default, exclusive, queue


cdef object call(object launcher, tuple values, object config):
    """The `Launch` of a call whose arguments are plain; None: of any other call."""
    cdef PyFrameObject* frame = PyEval_GetFrame()  # the caller of the kernel
    cdef PyObject* found
    cdef object form, taken, core, stream, op
    cdef tuple types = PyTuple_New(PyTuple_GET_SIZE(values))
    cdef Py_ssize_t i
    for i in range(PyTuple_GET_SIZE(values)):
        kind = type(<object>PyTuple_GET_ITEM(values, i))
        Py_INCREF(kind)
        PyTuple_SET_ITEM(types, i, kind)
    found = PyDict_GetItemWithError(get(launcher, at_forms), types)
    if found == NULL or frame == NULL:
        return None
    form = <object>found
    if form is None:
        return None
    core = get(form, at_core)
    if core is None:
        return None
    taken = (<FastCall>core).taken(values)
    if taken is None:
        return None
    op = PyType_GenericAlloc(Launch, 0)
    put(op, at_unused, True)
    put(op, at_has_fast_path, True)
    put(op, at_made_at, (na_code(frame), PyFrame_GetLasti(frame)))
    put(op, at_launcher, launcher)
    put(op, at_values, values)
    put(op, at_config, config)
    put(op, at_lazy, ())
    put(op, at_bound, None)
    put(op, at_form, form)
    put(op, at_tensors, (<tuple>taken)[0])
    put(op, at_parts, (<tuple>taken)[1])
    if config is not DEFAULT:
        stream = get(config, at_config_stream)
        if stream is not None:
            op.stream = stream
    return op


def Launcher___call__(self, /, *args, **kwargs):
    if on and not kwargs and Py_TYPE(self) == Launcher and len(args) == get(self, at_plain_count):
        op = call(self, args, DEFAULT)
        if op is not None:
            return op
    return python["Launcher.__call__"](self, *args, **kwargs)


def Configured___call__(self, /, *args, **kwargs):
    if on and not kwargs:
        launcher = self._launcher
        if Py_TYPE(launcher) == Launcher and len(args) == get(launcher, at_plain_count):
            op = call(launcher, args, self._config)
            if op is not None:
                return op
    return python["Configured.__call__"](self, *args, **kwargs)


cdef object enqueued(object op, object stream, bint signal):
    """`try_enqueue` of a `Launch` on a `Stream`: the submission, or None."""
    cdef object device = get(stream, at_device), form, core, launcher, plan, names, submission
    if (
        not holds(op, at_has_fast_path, True) or not holds(stream, at_broken, None)
        or not holds(device, at_lost, None) or not holds(device, at_is_limited, False)
    ):
        return None
    form = get(op, at_form)
    core = None if form is None else get(form, at_core)
    if core is None:
        return python["try_enqueue"](op, stream, signal)
    launcher = get(op, at_launcher)
    plan = (<FastCall>core).plan_of(
        launcher, get(device, at_device_backend), get(op, at_parts), get(get(op, at_config), at_extents)
    )
    if plan is None or not holds(plan, at_is_without_blocks, False):
        return None
    submission = new_submission(stream, get(launcher, at_label), get(launcher, at_names))
    try:
        if not (<FastCall>core).enqueued(
            plan, get(op, at_values), get(op, at_tensors), submission
        ):
            return None
        commit(stream, submission, signal)
    except BaseException as error:
        python["note_failed_enqueue"](error, submission, stream)
        raise
    return submission


def try_enqueue(op, stream, signal, pool=None):
    if on and Py_TYPE(op) == Launch and Py_TYPE(stream) == Stream:
        return enqueued(op, stream, signal)
    return python["try_enqueue"](op, stream, signal, pool)


cdef object enqueued_other(object op, object stream):
    """`try_enqueue` of another operation with a fast path, without a signal."""
    cdef object device = get(stream, at_device), submission
    if (
        not holds(stream, at_broken, None) or not holds(device, at_lost, None)
        or not holds(device, at_is_limited, False)
    ):
        return None
    submission = new_submission(stream, op.label, ())
    try:
        if not op.try_enqueue(submission, None):
            return None
        commit(stream, submission, False)
    except BaseException as error:
        python["note_failed_enqueue"](error, submission, stream)
        raise
    return submission


cdef bint is_idle() except -1:
    """Whether this thread enqueues no operation, and none waits in its queue."""
    cdef object line
    if not on or thread_of_exclusive.busy:
        return False
    line = thread_of_queue.line
    return line is None or not len(line)


cdef bint may_begin(object op, object stream) except -1:
    """Whether an operation can be enqueued on the stream now, and asks for no other one."""
    cdef object own
    if not is_idle() or Py_TYPE(stream) != Stream:
        return False
    own = op.stream
    return own is None or own is stream


def Launch_try_enqueue(self, submission, pool):
    if not on or Py_TYPE(self) != Launch or Py_TYPE(submission) != Submission:
        return python["Launch.try_enqueue"](self, submission, pool)
    form = get(self, at_form)
    core = None if form is None else get(form, at_core)
    if core is None:
        return python["Launch.try_enqueue"](self, submission, pool)
    launcher = get(self, at_launcher)
    device = get(get(submission, at_stream), at_device)
    plan = (<FastCall>core).plan_of(
        launcher, get(device, at_device_backend), get(self, at_parts),
        get(get(self, at_config), at_extents),
    )
    if plan is None or not holds(plan, at_is_without_blocks, False):
        return False
    # First: the message of a fault lists the launch.
    put(submission, at_launched, get(submission, at_launched) + get(launcher, at_names))
    return (<FastCall>core).enqueued(plan, get(self, at_values), get(self, at_tensors), submission)


cdef object begun(object op, object stream):
    """The submission of an operation that may begin, consumed; None, if it has no fast path."""
    if Py_TYPE(op) == Launch and holds(op, at_unused, True):
        put(op, at_unused, False)
        return enqueued(op, stream, False)
    op.consume()
    return enqueued_other(op, stream) if op.has_fast_path else None


cdef object value_of(object op):
    """The value of an operation that was enqueued on its fast path."""
    if Py_TYPE(op) == Launch:
        return get(get(op, at_launcher), at_result)(get(op, at_values))
    return op.result()


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
    if Py_TYPE(self) != Launch:
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
    try:
        Stream_wait_until_idle(stream)
    except Exception as error:
        python["_note_failure"](error, submission)
        raise
    if not holds(submission, at_error, None):
        submission.raise_error()
    return value_of(self)


def awaiting(op):
    return await_fast(op) if on and op.has_fast_path else python["awaiting"](op)


def await_fast(op):
    """`awaiting` of an operation with a fast path."""
    if not is_idle() or get_running_loop() is None or not op._unused:
        return (yield from python["awaiting"](op))
    stream = python["stream_for"](op)
    if Py_TYPE(stream) != Stream:
        return (yield from python["awaiting"](op))
    submission = begun(op, stream)
    if submission is None:
        return (yield from python["awaiting_steps"](op, stream))
    put(submission, at_site, site_of_caller(0))
    number = get(submission, at_number)
    if holds(submission, at_done, True) or has_passed_soon(stream, number):
        if python["turn_is_due"]():
            yield
    else:
        yield from stream.wait_for_signal(number)
    if not holds(submission, at_error, None):
        submission.raise_error()
    Progress_verify(stream, number)
    return value_of(op)


def _start(op, site):
    cdef object stream, submission, started
    if not getattr(op, "has_fast_path", False) or not op._unused or not is_idle():
        return python["_start"](op, site)
    stream = python["stream_for"](op)
    if Py_TYPE(stream) != Stream:
        return python["_wanted"](python["claimed"](op), stream)
    submission = begun(op, stream)
    if submission is None:
        return python["_wanted"](op, stream)
    put(submission, at_site, site)
    started = PyType_GenericAlloc(Enqueued, 0)
    put(started, at_enqueued_op, op)
    put(started, at_enqueued_submission, submission)
    return started


def _Enqueued_is_well(self):
    cdef object submission
    if on and Py_TYPE(self) == Enqueued:
        submission = get(self, at_enqueued_submission)
        if Py_TYPE(submission) == Submission and holds(submission, at_done, True):
            return holds(submission, at_error, None) and bool(
                get(submission, at_number) <= get(get(submission, at_stream), at_verified)
            )
    return python["_Enqueued.is_well"](self)
