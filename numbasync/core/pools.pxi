# Memory of a pool: blocks that are taken and given back, storages, and tensors.

cdef object take(object blocks, object nbytes):
    """`CudaPool.reuse`."""
    cdef object spare = found(get(blocks, at_spare), nbytes)
    if spare is None or PyList_GET_SIZE(spare) == 0:
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
    cdef object nbytes, spare
    if not isa(blocks, CudaPool) or not isa(memory, CudaMemory) or not holds(memory, at_lent, False):
        return False
    nbytes = get(memory, at_memory_nbytes)
    spare = found(get(blocks, at_spare), nbytes)
    if spare is None or not (<Lock>get(blocks, at_pool_lock)).is_free():
        return False
    spare_bytes = get(blocks, at_spare_bytes) + nbytes
    if spare_bytes > get(blocks, at_most_spare):
        return False
    put(blocks, at_used, get(blocks, at_used) - nbytes)
    put(blocks, at_spare_bytes, spare_bytes)
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
        size = found(get(self, at_sizes), nbytes)
        if size is not None and holds(size, at_is_small, True):
            spare = get(size, at_spare_blocks)
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
    storage = PyType_GenericAlloc(classes[Storage], 0)  # first, as it owns the memory from then on
    put(storage, at_owner_of_memory, pool)
    memory = take(blocks, room) if isa(blocks, CudaPool) else blocks.reuse(room)
    if memory is None:
        return None
    fill_storage(storage, pool, memory, get(pool, at_pool_device))
    return storage


cdef int fill_storage(object storage, object owner, object memory, object device) except -1:
    """What `Storage` has from the start; its end gives the memory back from then on."""
    put(storage, at_memory, memory)
    for i in (at_writer, at_graphs, at_links, at_maps):
        put(storage, i, None)
    put(storage, at_readers, {})
    put(storage, at_holders, zero)
    put(storage, at_identity, <uintptr_t><PyObject*>storage)
    put(storage, at_owner_of_memory, owner)
    put(storage, at_fast_path_device, device)
    return 0


def Storage___del__(self):
    cdef object memory, pool
    if on and isa(self, Storage):
        memory = get_or_none(self, at_memory)
        if memory is None:
            return
        pool = get(self, at_owner_of_memory)
        if isa(pool, BorrowedOwner):
            return
        if isa(pool, MemoryPool) and give_back(get(pool, at_blocks), memory):
            return
    python["Storage.__del__"](self)


cdef void end_of_storage(PyObject* storage) noexcept:
    """`Storage.__del__`, which has nothing to give back of another library's memory."""
    if on and isa(<object>storage, Storage) and isa(
        get_or_none(<object>storage, at_owner_of_memory), BorrowedOwner
    ):
        return
    ends_of_python(storage)


cdef void end_of_tensor(PyObject* tensor) noexcept:
    """`DeviceArray.__del__`."""
    cdef object storage = None
    if on and isa(<object>tensor, Tensor):
        storage = get_or_none(<object>tensor, at_storage)
    if storage is not None and isa(storage, Storage):
        put(storage, at_holders, get(storage, at_holders) - 1)
    else:
        ends_of_python(tensor)


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


def DeviceArray__view(self, at, dtype=None):
    cdef object storage = None, view
    if on and isa(self, Tensor) and isinstance(at, tuple):
        storage = get(self, at_storage)
    if storage is None or not isa(storage, Storage):
        return python["DeviceArray._view"](self, at, dtype)
    view = PyType_GenericAlloc(classes[Tensor], 0)
    for i in (at_kind, at_handle, at_key, at_former):
        put(view, i, None)
    for i in (at_device_of, at_source):
        put(view, i, get(self, i))
    put(view, at_dtype, get(self, at_dtype) if dtype is None else dtype)
    put(view, at_shape, <object>PyTuple_GET_ITEM(at, 1))
    put(view, at_layout, at)
    put(view, at_fingerprint, -1)
    put(view, at_storage, storage)
    put(storage, at_holders, get(storage, at_holders) + 1)
    return view


def tensor_map(t, box, swizzle=128):
    cdef object again = None
    if on and isa(t, Tensor) and PyTuple_CheckExact(box):
        again = mapped_again(t, box, swizzle)
    return python["tensor_map"](t, box, swizzle) if again is None else again


cdef object mapped_again(object tensor, object box, object swizzle):
    """A tensor map like one that was launched before; None if there is none."""
    cdef object storage = get(tensor, at_storage), maps, kept, mapped, again
    if storage is None or not isa(storage, Storage):
        return None
    maps = get(storage, at_maps)
    if maps is None:
        return None
    kept = found(maps, (get(tensor, at_layout), get(tensor, at_dtype), box, swizzle))
    # Comparing keys may run Python code, which may move the tensor.
    if kept is None or not holds(tensor, at_storage, storage):
        return None
    mapped = PyType_GenericAlloc(classes[MappedTensor], 0)
    for i in (at_device_of, at_source, at_dtype, at_shape, at_layout):
        put(mapped, i, get(tensor, i))
    put(mapped, at_kind, None)
    put(mapped, at_former, None)
    put(mapped, at_handle, <object>PyTuple_GET_ITEM(kept, 0))
    put(mapped, at_key, <object>PyTuple_GET_ITEM(kept, 1))
    put(mapped, at_fingerprint, <object>PyTuple_GET_ITEM(kept, 2))
    put(mapped, at_mapped_box, box)
    put(mapped, at_mapped_swizzle, swizzle)
    put(storage, at_holders, get(storage, at_holders) + 1)
    put(mapped, at_storage, storage)
    again = PyType_GenericAlloc(classes[TensorMap], 0)
    put(again, at_tensor_of_map, tensor)
    put(again, at_box, box)
    put(again, at_swizzle, swizzle)
    put(again, at_mapped, mapped)
    return again


def DeviceArray___del__(self):
    cdef object storage
    if on and (isa(self, Tensor) or isa(self, MappedTensor)):
        storage = get_or_none(self, at_storage)
        if storage is None:
            return
        if isa(storage, Storage):
            put(storage, at_holders, get(storage, at_holders) - 1)
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
