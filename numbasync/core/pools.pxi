# Memory of a pool: blocks that are taken and given back, storages, and tensors.

cdef object take(object blocks, object nbytes):
    """`CudaPool.reuse`."""
    cdef object spare = found(get(blocks, CudaPool__spare), nbytes)
    if spare is None or PyList_GET_SIZE(spare) == 0:
        return None
    if not (<Lock>get(blocks, CudaPool__lock)).is_free():
        return python["CudaPool.reuse"](blocks, nbytes)
    block = (<list>spare).pop()
    used = get(blocks, CudaPool__used) + nbytes
    put(blocks, CudaPool__spare_bytes, get(blocks, CudaPool__spare_bytes) - nbytes)
    put(blocks, CudaPool__used, used)
    if used > get(blocks, CudaPool__high):
        put(blocks, CudaPool__high, used)
    put(counters, Counters_allocations, get(counters, Counters_allocations) + 1)
    return block


cdef bint give_back(object blocks, object memory) except -1:
    """`CudaPool.free`, where a list of spare blocks takes the memory; whether one does."""
    cdef object nbytes, spare
    if not isa(blocks, CudaPool) or not isa(memory, CudaMemory) or not holds(
        memory, CudaMemory_lent, False
    ):
        return False
    nbytes = get(memory, CudaMemory_nbytes)
    spare = found(get(blocks, CudaPool__spare), nbytes)
    if spare is None or not (<Lock>get(blocks, CudaPool__lock)).is_free():
        return False
    spare_bytes = get(blocks, CudaPool__spare_bytes) + nbytes
    if spare_bytes > get(blocks, CudaPool__most_spare):
        return False
    put(blocks, CudaPool__used, get(blocks, CudaPool__used) - nbytes)
    put(blocks, CudaPool__spare_bytes, spare_bytes)
    (<list>spare).append(memory)
    return True


def CudaPool_reuse(self, nbytes):
    return take(self, nbytes) if on and isa(self, CudaPool) else python["CudaPool.reuse"](self, nbytes)


def CudaPool_free(self, memory):
    if not on or not give_back(self, memory):
        python["CudaPool.free"](self, memory)


@no_gc
cdef class Block:
    """A small block of page-locked memory, an object with a buffer. Its end returns the address to
    the list of spare blocks. The collector, which would take that list from it first, does not know
    it: a list of numbers is in no cycle.
    """
    cdef void* start
    cdef Py_ssize_t nbytes
    cdef list spare

    def __cinit__(self, nbytes, list spare not None, address):
        self.start, self.nbytes = <void*><uintptr_t>address, nbytes
        self.spare = spare  # last: what failed before has no address to return

    def __dealloc__(self):
        if self.spare is not None:
            self.spare.append(<uintptr_t>self.start)

    def __len__(self):
        return self.nbytes

    @property
    def address(self):
        return <uintptr_t>self.start

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.start, self.nbytes, 0, flags)


def PinnedPool_reuse(self, nbytes):
    cdef object size
    cdef list spare
    if on and isa(self, PinnedPool):
        size = found(get(self, PinnedPool__sizes), nbytes)
        if size is not None and holds(size, _Size_is_small, True):
            spare = get(size, _Size_spare)
            if PyList_GET_SIZE(spare):
                return Block(nbytes, spare, spare.pop())
    return python["PinnedPool.reuse"](self, nbytes)


cdef object new_storage(object pool, int64_t nbytes):
    """`MemoryPool.reuse`."""
    cdef object blocks, memory, room = (nbytes + GRANULE - 1) // GRANULE * GRANULE or GRANULE
    cdef object storage
    if not isa(pool, MemoryPool) or not holds(pool, MemoryPool_max_bytes, None):
        return pool.reuse(nbytes)
    blocks = get(pool, MemoryPool__pool)
    storage = PyType_GenericAlloc(classes[Storage], 0)  # first, as it owns the memory from then on
    put(storage, Storage_pool, pool)
    memory = take(blocks, room) if isa(blocks, CudaPool) else blocks.reuse(room)
    if memory is None:
        return None
    fill_storage(storage, pool, memory, get(pool, MemoryPool_fast_path_device))
    return storage


cdef int fill_storage(object storage, object owner, object memory, object device) except -1:
    """What `Storage` has from the start; its end gives the memory back from then on."""
    put(storage, Storage_memory, memory)
    for i in (Storage_writer, Storage_attached_graphs, Storage_links, Storage_maps):
        put(storage, i, None)
    put(storage, Storage_readers, {})
    put(storage, Storage_holders, zero)
    put(storage, Storage_identity, <uintptr_t><PyObject*>storage)
    put(storage, Storage_pool, owner)
    put(storage, Storage_fast_path_device, device)
    return 0


def Storage___del__(self):
    cdef object memory, pool
    if on and isa(self, Storage):
        memory = get_or_none(self, Storage_memory)
        if memory is None:
            return
        pool = get(self, Storage_pool)
        if isa(pool, BorrowedOwner):
            return
        if isa(pool, MemoryPool) and give_back(get(pool, MemoryPool__pool), memory):
            return
    python["Storage.__del__"](self)


cdef void end_of_storage(PyObject* storage) noexcept:
    """`Storage.__del__`, which has nothing to give back of another library's memory."""
    if on and isa(<object>storage, Storage) and isa(
        get_or_none(<object>storage, Storage_pool), BorrowedOwner
    ):
        return
    ends_of_python(storage)


cdef void end_of_tensor(PyObject* tensor) noexcept:
    """`DeviceArray.__del__`."""
    cdef object storage = None
    if on and isa(<object>tensor, Tensor):
        storage = get_or_none(<object>tensor, DeviceArray_own_storage)
    if storage is not None and isa(storage, Storage):
        put(storage, Storage_holders, get(storage, Storage_holders) - 1)
    else:
        ends_of_python(tensor)


cdef object new_tensor(object device, object storage, object spec):
    """`Tensor.of`, of a storage that no other tensor holds."""
    cdef object tensor = PyType_GenericAlloc(classes[Tensor], 0)
    cdef int i
    for i in (DeviceArray_source, DeviceArray_own_handle, DeviceArray__key, DeviceArray__former):
        put(tensor, i, None)
    put(tensor, DeviceArray_device, device)
    put(tensor, DeviceArray_dtype, get(spec, ArraySpec_dtype))
    put(tensor, DeviceArray_shape, get(spec, ArraySpec_shape))
    put(tensor, DeviceArray__layout, get(spec, ArraySpec_at))
    put(tensor, DeviceArray__kind, spec)
    put(tensor, DeviceArray__fingerprint, -1)
    put(tensor, DeviceArray_own_storage, storage)
    put(storage, Storage_holders, 1)
    return tensor


def DeviceArray__view(self, at, dtype=None):
    cdef object storage = None, view
    if on and isa(self, Tensor) and isinstance(at, tuple):
        storage = get(self, DeviceArray_own_storage)
    if storage is None or not isa(storage, Storage):
        return python["DeviceArray._view"](self, at, dtype)
    view = PyType_GenericAlloc(classes[Tensor], 0)
    for i in (DeviceArray__kind, DeviceArray_own_handle, DeviceArray__key, DeviceArray__former):
        put(view, i, None)
    for i in (DeviceArray_device, DeviceArray_source):
        put(view, i, get(self, i))
    put(view, DeviceArray_dtype, get(self, DeviceArray_dtype) if dtype is None else dtype)
    put(view, DeviceArray_shape, <object>PyTuple_GET_ITEM(at, 1))
    put(view, DeviceArray__layout, at)
    put(view, DeviceArray__fingerprint, -1)
    put(view, DeviceArray_own_storage, storage)
    put(storage, Storage_holders, get(storage, Storage_holders) + 1)
    return view


def tensor_map(t, box, swizzle=128):
    cdef object again = None
    if on and isa(t, Tensor) and PyTuple_CheckExact(box):
        again = mapped_again(t, box, swizzle)
    return python["tensor_map"](t, box, swizzle) if again is None else again


cdef object mapped_again(object tensor, object box, object swizzle):
    """A tensor map like one that was launched before; None if there is none."""
    cdef object storage = get(tensor, DeviceArray_own_storage), maps, kept, mapped, again
    if storage is None or not isa(storage, Storage):
        return None
    maps = get(storage, Storage_maps)
    if maps is None:
        return None
    kept = found(
        maps, (get(tensor, DeviceArray__layout), get(tensor, DeviceArray_dtype), box, swizzle)
    )
    # Comparing keys may run Python code, which may move the tensor.
    if kept is None or not holds(tensor, DeviceArray_own_storage, storage):
        return None
    mapped = PyType_GenericAlloc(classes[MappedTensor], 0)
    for i in (
        DeviceArray_device, DeviceArray_source, DeviceArray_dtype, DeviceArray_shape,
        DeviceArray__layout,
    ):
        put(mapped, i, get(tensor, i))
    put(mapped, DeviceArray__kind, None)
    put(mapped, DeviceArray__former, None)
    put(mapped, DeviceArray_own_handle, <object>PyTuple_GET_ITEM(kept, 0))
    put(mapped, DeviceArray__key, <object>PyTuple_GET_ITEM(kept, 1))
    put(mapped, DeviceArray__fingerprint, <object>PyTuple_GET_ITEM(kept, 2))
    put(mapped, MappedTensor_box, box)
    put(mapped, MappedTensor_swizzle, swizzle)
    put(storage, Storage_holders, get(storage, Storage_holders) + 1)
    put(mapped, DeviceArray_own_storage, storage)
    again = PyType_GenericAlloc(classes[TensorMap], 0)
    put(again, TensorMap_tensor, tensor)
    put(again, TensorMap_box, box)
    put(again, TensorMap_swizzle, swizzle)
    put(again, TensorMap_mapped, mapped)
    return again


def DeviceArray___del__(self):
    cdef object storage
    if on and (isa(self, Tensor) or isa(self, MappedTensor)):
        storage = get_or_none(self, DeviceArray_own_storage)
        if storage is None:
            return
        if isa(storage, Storage):
            put(storage, Storage_holders, get(storage, Storage_holders) - 1)
            return
    python["DeviceArray.__del__"](self)


cdef object allocate(object op, object submission, object pool):
    """The new tensor of a `Made`; None if the pool has no free block."""
    cdef object device = get(get(submission, Submission_stream), Progress_device)
    cdef object spec = get(op, Full__kind)
    cdef object storage
    if pool is None:
        pool = get(device, Device__pool)
        if pool is None:
            pool = device.pool
    storage = new_storage(pool, get(spec, ArraySpec_nbytes))
    return None if storage is None else new_tensor(device, storage, spec)
