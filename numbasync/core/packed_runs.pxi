# Runs of algorithms: memory from a pool, and launches whose arguments are packed but for addresses.

cdef enum:
    AREAS = 32  # operands, and what a run makes

MOST_AREAS = AREAS


ctypedef struct patch_s:
    int launch, argument  # where an address goes to
    int at  # in the packed arguments
    bint is_twice  # numba-cuda-mlir passes an address twice
    int view, area
    int64_t offset


cdef class PackedRun:
    """`PlannedRun.enqueue`, where the operands are plain tensors and the memory is a GPU's.

    Args:
        aligned, made, launches, results, names: of the `PlannedRun`.
        views: of each view, its area, its offset, and the numbers that a kernel of numba-cuda gets
            of it, without the address, as bytes.
        in_python: the `PlannedRun`.
    """
    cdef tuple aligned, made, works, values, views, results, names
    cdef object in_python
    cdef int operands
    cdef list packed  # the arguments of each launch as bytes, once they are; replaced as a whole
    cdef patch_s* patches
    cdef int count  # of patches

    def __cinit__(
        self, tuple aligned, tuple made, tuple views, tuple launches, tuple results, tuple names,
        in_python,
    ):
        cdef patch_s* patch
        cdef int k
        self.aligned, self.made, self.views, self.names = aligned, made, views, names
        self.results, self.in_python, self.operands = results, in_python, len(aligned)
        self.works = tuple([work for work, _, _ in launches])
        self.values = tuple([values for _, values, _ in launches])
        if len(aligned) + len(made) > AREAS:
            raise ValueError(f"{len(aligned)} operands, and memory made {len(made)} times")
        self.packed = None
        self.patches = <patch_s*>PyMem_Calloc(
            1 + sum([len(arrays) for _, _, arrays in launches]), sizeof(patch_s)
        )
        if self.patches == NULL:
            raise MemoryError
        for k, (_, _, arrays) in enumerate(launches):
            for argument, view in arrays:
                patch = &self.patches[self.count]
                patch.launch, patch.argument, patch.view = k, argument, view
                patch.area, patch.offset = views[view][0], views[view][1]
                self.count += 1

    def __dealloc__(self):
        PyMem_Free(self.patches)

    def enqueue(self, tuple operands, submission, pool):
        cdef DriverStream calls = None
        cdef list storages = []
        if on and isa(submission, Submission) and PyTuple_GET_SIZE(operands) == self.operands:
            calls = calls_of(get(get(submission, Submission_stream), Progress_backend))
        if calls is None:
            return self.in_python.enqueue(operands, submission, pool)
        status = self.enqueue_packed(calls, operands, submission, pool, storages)
        if status == 2:
            return self.in_python.enqueue(operands, submission, pool)
        return None if status == 0 else self.given(operands, submission, storages)

    cdef int enqueue_packed(
        self, DriverStream calls, tuple operands, object submission, object pool, list storages
    ) except -1:
        """1: enqueued; 0: not now; 2: only Python can tell, and nothing is done."""
        cdef object stream = get(submission, Submission_stream)
        cdef object device = get(stream, Progress_device), queue = get(stream, Progress_backend)
        cdef object backend = get(device, Device_backend), x, storage, spec, value, nbytes
        cdef Lock lock = get(device, Device_submit_lock)
        cdef int64_t areas[AREAS]
        cdef int i, copied = 0, n = self.operands
        cdef list made = [], records = [], blocks = []
        if pool is None:
            pool = get(device, Device__pool)
            if pool is None:
                pool = device.pool
        for spec, value in self.made:
            storage = new_storage(pool, get(spec, ArraySpec_nbytes))
            if storage is None:
                return 0
            if type(value) is ndarray:
                block = backend.host_block(get(spec, ArraySpec_nbytes))
                if block is None:
                    return 0
                if not try_copy(value, spec, block, get(spec, ArraySpec_nbytes)):
                    return 2
                blocks.append(block)
            if not isa(storage, Storage) or not isa(get(storage, Storage_memory), CudaMemory):
                return 2
            made.append(storage)
        lock.take()
        try:
            for i in range(n):
                x = <object>PyTuple_GET_ITEM(operands, i)
                if not isa(x, Tensor) or not holds(x, DeviceArray_source, None):
                    return 2
                storage = get(x, DeviceArray_own_storage)
                if storage is None or not isa(storage, Storage) or not holds(
                    storage, Storage_fast_path_device, backend
                ):
                    return 0
                if is_busy_elsewhere(get(storage, Storage_writer), stream):
                    return 0
                if not isa(get(storage, Storage_memory), CudaMemory):
                    return 2
                areas[i] = get(get(storage, Storage_memory), CudaMemory_address)
                areas[i] += <int64_t>get(x, DeviceArray__layout)[0]
                if (areas[i] % VECTOR_BYTES == 0) != (self.aligned[i] is True):
                    return 0
                storages.append(storage)
            for i in range(<int>PyTuple_GET_SIZE(self.works)):
                record = calls.record_of(queue, self.works[i])
                if record is None:
                    return 2
                records.append(record)
            if self.packed is None and not self.pack(records):
                return 2
            if na_is_elsewhere(calls.ordinal):
                enter(calls.device)
            for storage in made:
                areas[n] = get(get(storage, Storage_memory), CudaMemory_address)
                n += 1
                storages.append(storage)
                put(storage, Storage_writer, submission)
            for i in range(self.operands):
                record_reader(storages[i], stream, submission)
            keep(submission, storages + blocks)
            names = get(submission, Submission_launched)
            put(submission, Submission_launched, names + self.names)  # a fault's message lists them
            for i in range(<int>PyTuple_GET_SIZE(self.made)):
                spec, value = self.made[i]
                nbytes = get(spec, ArraySpec_nbytes)
                put(submission, Submission_nbytes, get(submission, Submission_nbytes) + nbytes)
                if type(value) is ndarray:
                    copy_block(calls, made[i], blocks[copied], nbytes, True)
                    copied += 1
                    note_copied(submission, nbytes)
                    put(submission, Submission_nbytes, get(submission, Submission_nbytes) + nbytes)
                elif value is not None and not try_fill(calls, made[i], value, nbytes):
                    x = new_tensor(device, made[i], spec)
                    filled = queue.fill(x.handle, value, get(submission, Submission_queue))
                    put(submission, Submission_queue, filled)
            self.launch(calls, records, areas)
        finally:
            lock.give()
        return 1

    cdef bint pack(self, list records) except -1:
        """Pack the arguments of each launch, but for addresses. False: one has to be refused. The
        buffers are their records': no Python code runs before they are copied.
        """
        cdef LaunchRecord record
        cdef tuple values, view
        cdef bytes fields
        cdef list packed = []
        cdef patch_s* patch = self.patches
        cdef char* to
        cdef int i, k
        for k in range(<int>PyList_GET_SIZE(records)):
            record, values = records[k], self.values[k]
            if record.launch.size > CHUNK_BYTES or PyTuple_GET_SIZE(values) != record.count:
                return False
            for i in range(record.count):
                if not is_array(record.code[i]) and not record.pack(
                    i, <object>PyTuple_GET_ITEM(values, i)
                ):
                    return False
            while patch < self.patches + self.count and patch.launch == k:
                view = <tuple>PyTuple_GET_ITEM(self.views, patch.view)
                fields = <bytes>PyTuple_GET_ITEM(view, 2)
                patch.at = record.offset[patch.argument]
                patch.is_twice = record.code[patch.argument] == c"m"
                if not is_array(record.code[patch.argument]):
                    return False
                to = record.buffer + patch.at
                if patch.is_twice:
                    write_memref(
                        <int64_t*>to, <int64_t*>PyBytes_AS_STRING(fields),
                        PyBytes_GET_SIZE(fields) // 8,
                    )
                else:
                    memcpy(to, PyBytes_AS_STRING(fields), PyBytes_GET_SIZE(fields))
                    patch.at += 32  # two pointers and two sizes come before the address
                patch += 1
            packed.append(PyBytes_FromStringAndSize(record.buffer, record.launch.size))
        self.packed = packed
        return True

    cdef int launch(self, DriverStream calls, list records, int64_t* areas) except -1:
        """Make the launches, and release the interpreter lock once for `CHUNK` of them."""
        cdef launch_s* ready[CHUNK]
        cdef char* arguments[CHUNK]
        cdef char block[CHUNK_BYTES]
        cdef LaunchRecord record
        cdef bytes packed
        cdef patch_s* patch = self.patches
        cdef int64_t* to
        cdef Py_ssize_t used, made = 0
        cdef int count
        while made < PyList_GET_SIZE(records):
            count, used = 0, 0
            while count < CHUNK and made + count < PyList_GET_SIZE(records):
                record, packed = records[made + count], self.packed[made + count]
                if used + <Py_ssize_t>record.launch.size > CHUNK_BYTES:
                    break
                ready[count], arguments[count] = &record.launch, block + used
                memcpy(block + used, PyBytes_AS_STRING(packed), record.launch.size)
                while patch < self.patches + self.count and patch.launch == made + count:
                    to = <int64_t*>(block + used + patch.at)
                    to[0] = areas[patch.area] + patch.offset
                    if patch.is_twice:
                        to[1] = to[0]
                    patch += 1
                used += (record.launch.size + 15) // 16 * 16
                count += 1
            made += calls.launch(ready, arguments, count)
            if calls.result != 0:
                fail(calls.result, "cuLaunchKernel")
        return 0

    cdef tuple given(self, tuple operands, object submission, list storages):
        """The results of a run that is enqueued."""
        cdef object device = get(get(submission, Submission_stream), Progress_device), at
        cdef list tensors = []
        for place, at, dtype, spec in self.results:
            if place < self.operands:
                x = operands[place]
                start = get(x, DeviceArray__layout)[0]
                x = x._view(type(at)(start + at[0], at[1], at[2]), dtype)
            elif spec is not None:
                x = new_tensor(device, storages[place], spec)
            else:
                x = new_tensor(device, storages[place], self.made[place - self.operands][0])
                x = DeviceArray__view(x, at, dtype)
            tensors.append(x)
        return tuple(tensors)
