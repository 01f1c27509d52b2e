# The driver's functions by their addresses, and the calls of one stream.

ctypedef int (*launch_t)(
    void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
    void**,
) noexcept nogil
ctypedef int (*of_stream_t)(void*) noexcept nogil
ctypedef int (*fill_t)(uint64_t, unsigned, size_t, void*) noexcept nogil
ctypedef int (*copy_t)(void*, void*, size_t, void*) noexcept nogil
ctypedef int (*copy_peer_t)(uint64_t, void*, uint64_t, void*, size_t, void*) noexcept nogil
ctypedef int (*replay_t)(void*, void*) noexcept nogil
ctypedef int (*current_t)(void**) noexcept nogil
ctypedef int (*switch_t)(void*) noexcept nogil
ctypedef int (*record_event_t)(void*, void*) noexcept nogil
ctypedef int (*wait_for_event_t)(void*, void*, unsigned) noexcept nogil
ctypedef int (*is_capturing_t)(void*, int*) noexcept nogil
cdef launch_t launch_kernel = NULL
ctypedef int (*write_t)(void*, void*, unsigned, unsigned) noexcept nogil
cdef of_stream_t query_stream = NULL, synchronize_stream = NULL
cdef write_t write_value = NULL
cdef fill_t fill_8 = NULL, fill_16 = NULL, fill_32 = NULL
cdef copy_t copy_to_device = NULL, copy_to_host = NULL
cdef copy_peer_t copy_peer = NULL
cdef replay_t launch_graph = NULL
cdef record_event_t record_event = NULL
cdef wait_for_event_t wait_for_event = NULL
cdef is_capturing_t is_capturing = NULL
cdef switch_t switch_to = NULL
cdef dict contexts = {}  # of the devices that were entered, by ordinal
cdef enum:
    NOT_READY = 600
cdef object fail = None
cdef object counters = None
cdef unsigned own_methods = 0  # the version of the class of streams that was compared last
METHODS = (
    "launch", "completed", "query", "spin_poll", "synchronize", "write", "fill", "upload",
    "download", "replay", "copy_peer", "put_behind",
)


def use_driver(dict addresses, failing, counting):
    """Use the driver's functions at these addresses.

    Args:
        failing: called with a result that is not 0 and the function's name; raises.
        counting: the `counters`.
    """
    global launch_kernel, query_stream, synchronize_stream, write_value, fail, counters
    global fill_8, fill_16, fill_32, copy_to_device, copy_to_host, launch_graph, na_get_current
    global copy_peer, record_event, wait_for_event, is_capturing, switch_to
    launch_kernel = <launch_t><uintptr_t>addresses["cuLaunchKernel"]
    query_stream = <of_stream_t><uintptr_t>addresses["cuStreamQuery"]
    synchronize_stream = <of_stream_t><uintptr_t>addresses["cuStreamSynchronize"]
    write_value = <write_t><uintptr_t>addresses["cuStreamWriteValue32_v2"]
    fill_8 = <fill_t><uintptr_t>addresses["cuMemsetD8Async"]
    fill_16 = <fill_t><uintptr_t>addresses["cuMemsetD16Async"]
    fill_32 = <fill_t><uintptr_t>addresses["cuMemsetD32Async"]
    copy_to_device = <copy_t><uintptr_t>addresses["cuMemcpyHtoDAsync_v2"]
    copy_to_host = <copy_t><uintptr_t>addresses["cuMemcpyDtoHAsync_v2"]
    copy_peer = <copy_peer_t><uintptr_t>addresses["cuMemcpyPeerAsync"]
    launch_graph = <replay_t><uintptr_t>addresses["cuGraphLaunch"]
    record_event = <record_event_t><uintptr_t>addresses["cuEventRecord"]
    wait_for_event = <wait_for_event_t><uintptr_t>addresses["cuStreamWaitEvent"]
    is_capturing = <is_capturing_t><uintptr_t>addresses["cuStreamIsCapturing"]
    na_get_current = <current_t><uintptr_t>addresses["cuCtxGetCurrent"]
    switch_to = <switch_t><uintptr_t>addresses["cuCtxSetCurrent"]
    contexts.clear()
    fail, counters = failing, counting


def enter(device):
    """`driver.enter`, also while the core is off: the core notes the current device of a thread. To
    a context that was current before it switches by one call of the driver.
    """
    global na_ordinal, na_context
    cdef long ordinal = device.ordinal
    cdef void* context
    cdef int result
    if na_get_current != NULL and not na_is_elsewhere(ordinal):
        return
    noted = contexts.get(ordinal)
    if noted is not None:
        context = <void*><uintptr_t>noted
        with nogil:
            result = switch_to(context)
        if result == 0:
            na_ordinal, na_context = ordinal, context
            return
    python["enter"](device)  # which says what is wrong
    na_ordinal = ordinal
    na_note_current()
    if na_context != NULL:
        contexts[ordinal] = <uintptr_t>na_context


def forget_current():
    """Forget the current device of this thread, and all contexts, in a forked process."""
    global na_ordinal
    na_ordinal = -1
    contexts.clear()


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
    cdef list spare  # the numbers of the device's `SpareEvents`; None until the first is needed

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
        if na_is_elsewhere(self.ordinal):
            enter(self.device)
        with nogil:
            result = write_value(self.number, self.device_word, low, 0)
        if result != 0:
            fail(result, "cuStreamWriteValue32")
        return 0

    cdef bint spin_poll(self, double seconds) except -1:
        """`CudaStream.spin_poll`, for so long at most."""
        cdef int result = NOT_READY
        cdef double end
        with nogil:
            end = na_now() + seconds
            while True:
                result = query_stream(self.number)
                if result != NOT_READY or na_now() >= end:
                    break
        if result != 0 and result != NOT_READY:
            fail(result, "cuStreamQuery")
        return result == 0

    cdef int look_for(self, int64_t number) except -1:
        """Read the completion counter until it has passed a number, for `SLICE_S` at most."""
        cdef int64_t passed = self.passed
        cdef double end
        cdef volatile uint32_t* word = self.word
        with nogil:
            end = na_now() + SLICE_S
            while passed + <uint32_t>(word[0] - <uint32_t>passed) < number and na_now() < end:
                pass
        return 0

    cdef int synchronize(self) except -1:
        cdef int result
        if na_is_elsewhere(self.ordinal):
            enter(self.device)
        with nogil:
            result = synchronize_stream(self.number)
        if result != 0:
            fail(result, "cuStreamSynchronize")
        return 0

    cdef int launch(self, launch_s** launches, char** arguments, int count) except -1:
        """Make launches, in order, until one fails; how many were made, and its `result`. The
        caller has entered the device, before it packed the arguments: to enter runs Python code.
        """
        cdef int i = 0, result = 0
        with nogil:
            while i < count and result == 0:
                result = submit(launches[i], arguments[i])
                i += 1
        self.result = result
        if result != 0:
            i -= 1
        put(counters, Counters_launches, get(counters, Counters_launches) + i)
        return i

    cdef LaunchRecord record_of(self, object queue, object work):
        """The record of a launch; None if it has none of the core."""
        record = found(self.records, work)
        if record is None:
            record = queue.record_of(work)
        return record if type(record) is LaunchRecord else None


cdef bint are_replaced(object cls) except -1:
    """Whether a class of streams has another method than its own, or the core's in its place."""
    for name in METHODS:
        method = vars(cls)[name]
        if method is not python[f"CudaStream.{name}"] and (
            method is not globals().get(f"CudaStream_{name}")
        ):
            return True
    return False


cdef inline DriverStream calls_of(object queue):
    """The driver's calls of a backend's stream; None if it has none, or a test has replaced one of
    its methods.
    """
    global own_methods
    if not isa(queue, CudaStream):
        return None
    if na_version(classes[CudaStream]) != own_methods or not own_methods:
        # Apart from here: a generator's variables would be made anew in each call.
        if are_replaced(<object>classes[CudaStream]):
            return None
        own_methods = na_version(classes[CudaStream])
    return <DriverStream>get(queue, CudaStream_calls)
