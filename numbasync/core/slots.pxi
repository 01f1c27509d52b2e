# The switch, the replaced Python functions, and the slots that the core reads.

cdef bint on = False  # else every function calls its Python function
cdef dict python = {}  # the Python functions, by qualified name
cdef dict wanted = {  # slots, by class; in the order of the places below
    "Submission": (
        "stream", "name", "site", "keep_alive", "launched", "sequence", "nbytes", "copied", "done",
        "error", "queue", "is_empty", "is_trivial", "signalled", "detached", "dependencies", "after",
        "_trace",
    ),
    "Progress": (
        "_abandoned", "_broken", "_confirmed", "_in_flight", "_lock", "_owner", "_sequence",
        "_signalled", "_suspended", "backend", "device", "has_dependencies", "nbytes", "verified",
    ),
    "Stream": ("_follows", "number"),
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
    "TensorMap": ("box", "mapped", "swizzle", "tensor"),
    "Launch": (
        "_bound", "_config", "_form", "_launcher", "_lazy", "_parts", "_plan", "_site", "_tensors",
        "_unused", "_values", "has_fast_path",
    ),
    "PreparedLaunch": (
        "_config", "_form", "_launcher", "_numbers", "_parts", "_plan", "_positions", "_tensors",
        "_values",
    ),
    "Launcher": (
        "_forms", "_plain_count", "_latest", "Result", "label", "planner",
        "launch_class",
    ),
    "Config": ("extents", "stream"),
    "Plan": ("work", "empty", "names"),
    "FastCall": ("core",),
    "_Enqueued": ("op", "submission"),
    "Counters": ("launches", "allocations", "copies", "replays"),
    "CudaStream": ("calls", "_last"),
    "CudaArray": ("packed",),
    "Then": ("_first", "_then", "_unused", "is_plain"),
    "Map": (
        "_change", "_first", "_keep", "_label", "_links", "_result", "_site", "_unused", "element",
        "has_fast_path",
    ),
    "Reactor": ("_last", "_turning", "last_waits"),
    "WaitEstimate": ("is_long",),
    "ArraySpec": ("at", "dtype", "labels", "nbytes", "shape", "zero"),
    "SimpleOp": ("_result", "_site", "_unused"),
    "Full": ("_kind", "_name", "_value"),
    "FromHost": ("_array", "has_fast_path"),
    "ToHost": ("_tensor",),
    "GraphLaunch": ("_graph",),
    "CudaGraph": (
        "_attached", "_backend", "_dependencies", "_is_own", "_launches", "_names", "_recorded",
        "_updated", "device", "stream",
    ),
    "ExecutableGraph": ("checks", "number"),
    "AttachedGraph": ("_latest", "_stream", "stale"),
    "LastLaunch": ("latest",),
    "MemoryPool": ("_pool", "fast_path_device", "max_bytes"),
    "CudaPool": ("_high", "_lock", "_most_spare", "_spare", "_spare_bytes", "_used"),
    "CudaMemory": ("address", "lent", "nbytes"),
    "PinnedPool": ("_sizes",),
    "_Size": ("is_small", "nbytes", "spare"),
    "CpuStream": ("_owned", "_pushed", "_queue", "_word", "engine"),
    "CpuQueue": ("_stream", "error"),
    "Engine": ("_ready", "checks", "drawn", "stepper", "stopping"),
    "Stepper": ("_draw_bits", "_engine", "_lock", "_thread", "steps"),
    "ShortLaunch": ("_entry_point", "_extents", "_kernel", "_nbytes", "is_plain"),
    "Work": ("prepared",),
    "CpuArray": ("array",),
    "BlockMemory": ("address", "each"),
    "Borrowed": (
        "_export", "address", "keep", "lent", "mark", "nbytes", "ordinal", "owner", "reader",
        "stream",
    ),
    "Entry": ("is_alone", "key", "ref"),
    "ArrayKind": (
        "alignment", "at", "dtype", "fingerprint", "handles", "key", "low", "nbytes", "shape",
        "unaligned",
    ),
    "Reader": ("core",),
    "Context": (), "Tensor": (), "MappedTensor": ("box", "swizzle"), "Later": (), "BorrowedOwner": (),
    "CallersLaunch": (),
}
OF_A_DEVICE = {  # known only where one of this kind is used
    "CudaStream", "CudaArray", "CudaPool", "CudaMemory", "ExecutableGraph", "PinnedPool",
    "_Size",
    "CpuStream", "CpuQueue", "Engine", "Stepper", "ShortLaunch", "CpuArray", "BlockMemory",
}
cdef enum:
    Submission, Progress, Stream, Device, RoundRobin, Storage, DeviceArray, Partition, TensorMap
    Launch, PreparedLaunch, Launcher, Config, Plan, Fast, Enqueued, Counters, CudaStream, CudaArray
    Then, Map, Reactor, WaitEstimate, ArraySpec, SimpleOp, Full, FromHost, ToHost, GraphLaunch, Graph
    ExecutableGraph, AttachedGraph, LastLaunch, MemoryPool, CudaPool, CudaMemory, PinnedPool, PinnedSize
    CpuStream, CpuQueue, Engine, Stepper, ShortLaunch, Work, CpuArray, BlockMemory
    Borrowed, Entry, ArrayKind, Reader
    Context, Tensor, MappedTensor, Later, BorrowedOwner, CallersLaunch
    CLASSES
cdef enum:
    at_stream, at_name, at_site, at_keep_alive, at_launched, at_number, at_nbytes, at_copied
    at_done, at_error, at_queue, at_is_empty, at_is_trivial, at_signalled, at_detached, at_dependencies
    at_after, at_trace
    at_abandoned, at_broken, at_confirmed, at_in_flight, at_lock, at_owner, at_sequence
    at_last_signal, at_suspended, at_backend, at_device, at_has_dependencies, at_stream_nbytes
    at_verified
    at_follows, at_stream_number
    at_policy, at_pool, at_device_backend, at_busy, at_is_limited, at_lost, at_submit_lock
    at_turn
    at_fast_path_device, at_identity, at_writer, at_readers, at_graphs, at_links, at_maps
    at_holders, at_memory, at_owner_of_memory
    at_storage, at_handle, at_source, at_fingerprint, at_former, at_key, at_kind
    at_layout, at_device_of, at_dtype, at_shape
    at_tensor, at_tile_fingerprint
    at_box, at_mapped, at_swizzle, at_tensor_of_map
    at_bound, at_config, at_form, at_launcher, at_lazy, at_parts, at_plan, at_built_at, at_tensors
    at_unused, at_values, at_has_fast_path
    at_prepared_config, at_prepared_form, at_prepared_launcher, at_numbers, at_prepared_parts
    at_prepared_plan, at_positions, at_prepared_tensors, at_prepared_values
    at_forms, at_plain_count, at_latest, at_result, at_label
    at_planner, at_launch_class
    at_extents, at_config_stream
    at_work, at_is_without_blocks, at_plan_names
    at_core
    at_enqueued_op, at_enqueued_submission
    at_launches, at_allocations, at_copies, at_replays
    at_calls, at_last_written
    at_packed
    at_first, at_then, at_link_is_unused, at_is_plain
    at_change, at_changed, at_keeps_value, at_change_label, at_change_links, at_changed_value
    at_change_made_at, at_change_is_unused, at_element, at_change_is_fast
    at_last_task, at_turning, at_last_waits
    at_is_long
    at_spec_layout, at_spec_dtype, at_labels, at_spec_nbytes, at_spec_shape, at_spec_zero
    at_result_of, at_made_at, at_is_unused
    at_spec, at_op_name, at_fill_value
    at_array, at_is_fast
    at_read
    at_graph
    at_attached, at_backend_graph, at_graph_dependencies, at_is_own, at_graph_launches
    at_graph_names, at_recorded, at_updated, at_graph_device, at_graph_stream
    at_graph_checks, at_graph_number
    at_last_launch, at_graph_last_stream, at_stale
    at_last
    at_blocks, at_pool_device, at_max_bytes
    at_high, at_pool_lock, at_most_spare, at_spare, at_spare_bytes, at_used
    at_address, at_lent, at_memory_nbytes
    at_sizes
    at_is_small, at_size_nbytes, at_spare_blocks
    at_owned, at_pushed, at_entries, at_word, at_engine
    at_queue_stream, at_queue_error
    at_ready, at_checks, at_drawn, at_stepper, at_stopping
    at_draw_bits, at_stepped, at_step_lock, at_thread, at_steps
    at_entry_point, at_launch_extents, at_kernel, at_block_nbytes, at_is_plain_launch
    at_prepared
    at_cpu_array
    at_block_address, at_each
    at_export, at_borrowed_address, at_keep, at_borrowed_lent, at_mark, at_borrowed_nbytes
    at_borrowed_ordinal, at_stream_owner, at_borrowed_reader, at_borrowed_stream
    at_is_alone, at_entry_key, at_ref
    at_alignment, at_kind_layout, at_kind_dtype, at_aligned, at_handles, at_kind_key, at_kind_low
    at_kind_nbytes, at_kind_shape, at_unaligned
    at_reader_core
    at_mapped_box, at_mapped_swizzle
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


def switch(state):
    """Switch the core on or off; whether it is on. It stays off if a class is not known."""
    global on
    on = bool(state) and not wanted.keys() - known.keys() - OF_A_DEVICE
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
