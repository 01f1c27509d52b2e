# The launch of a graph.

def CudaGraph_launch(self):
    cdef object op = new_op(GraphLaunch) if on and isa(self, Graph) else None
    if op is None:
        return python["CudaGraph.launch"](self)
    put(op, at_graph, self)
    return op


def GraphLaunch_try_enqueue(self, submission, pool):
    return enqueue_graph(self, submission, pool)


cdef object enqueue_graph(object self, object submission, object pool):
    """`GraphLaunch.try_enqueue`, with `CudaGraph.try_launch`."""
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
        if calls is None or not isa(backend, ExecutableGraph) or get(backend, at_graph_checks):
            put(submission, at_queue, queue.replay(backend, get(submission, at_queue)))
        else:
            replay(calls, <void*><uintptr_t>get(backend, at_graph_number))
        put(graph, at_graph_launches, get(graph, at_graph_launches) + 1)
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
    put(counters, at_replays, get(counters, at_replays) + 1)
    return 0
