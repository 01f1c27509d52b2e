# The launch of a graph.

def CudaGraph_launch(self):
    cdef object op = new_op(GraphLaunch) if on and isa(self, CudaGraph) else None
    if op is None:
        return python["CudaGraph.launch"](self)
    put(op, GraphLaunch__graph, self)
    return op


def GraphLaunch_try_enqueue(self, submission, pool):
    return enqueue_graph(self, submission, pool)


cdef object enqueue_graph(object self, object submission, object pool):
    """`GraphLaunch.try_enqueue`, with `CudaGraph.try_launch`."""
    cdef object graph = None, stream, attached, last, queue, backend
    cdef DriverStream calls
    cdef Lock lock
    if is_plain_submission(submission) and isa(self, GraphLaunch):
        graph = get(self, GraphLaunch__graph)
    if graph is None or not isa(graph, CudaGraph) or not holds(graph, CudaGraph__is_own, True):
        return python["GraphLaunch.try_enqueue"](self, submission, pool)
    stream = get(submission, Submission_stream)
    queue, backend = get(stream, Progress_backend), get(graph, CudaGraph__backend)
    lock = get(get(graph, CudaGraph_device), Device_submit_lock)
    lock.take()
    try:
        attached = get(graph, CudaGraph__attached)
        last = get(attached, AttachedGraph__latest)
        if (
            last is None or PyTuple_GET_SIZE(get(submission, Submission_launched))
            or PyTuple_GET_SIZE(get(graph, CudaGraph__dependencies))
            or not holds(graph, CudaGraph__updated, None)
        ):
            return python["GraphLaunch.try_enqueue"](self, submission, pool)
        if (
            PyDict_Size(get(attached, AttachedGraph_stale))
            or not holds(attached, AttachedGraph__stream, stream)
            or not holds(stream, Progress_device, get(graph, CudaGraph_device))
        ):
            return False
        put(submission, Submission_launched, get(graph, CudaGraph__names))
        retain(submission, graph, get(graph, CudaGraph__recorded), 0)
        put(last, LastLaunch_latest, submission)  # before the replay: ^C may come right after it
        calls = calls_of(queue)
        if calls is None or not isa(backend, ExecutableGraph) or get(
            backend, ExecutableGraph_checks
        ):
            queue = queue.replay(backend, get(submission, Submission_queue))
            put(submission, Submission_queue, queue)
        else:
            replay(calls, <void*><uintptr_t>get(backend, ExecutableGraph_number))
        put(graph, CudaGraph__launches, get(graph, CudaGraph__launches) + 1)
    finally:
        lock.give()
    return True


cdef int replay(DriverStream calls, void* graph) except -1:
    cdef int result
    if na_is_elsewhere(calls.ordinal):
        enter(calls.device)
    with nogil:
        result = launch_graph(graph, calls.number)
    if result != 0:
        fail(result, "cuGraphLaunch")
    put(counters, Counters_replays, get(counters, Counters_replays) + 1)
    return 0
