# Locks, and the regions in which a thread enqueues an operation. The interpreter lock guards both.

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


cdef class Region:
    """A `with` block in which its thread is enqueuing an operation, or in which it may run others.
    A region that ^C has kept from being left ends with its last reference.
    """
    cdef int value, before
    cdef unsigned long thread  # 0: not open

    def __cinit__(self, int value):
        self.value = value

    def __enter__(self):
        global na_busy
        self.before, self.thread, na_busy = na_busy, PyThread_get_thread_ident(), self.value

    def __exit__(self, *exc):
        self.close()

    cdef int close(self) noexcept:
        global na_busy
        if self.thread == PyThread_get_thread_ident():
            na_busy = self.before
        self.thread = 0
        return 0

    def __dealloc__(self):
        self.close()


cdef class Regions:
    """`reentrancy._Thread`: what each thread is enqueuing."""

    @property
    def busy(self):
        return bool(na_busy)

    def busy_region(self):
        return Region(1)

    def free_region(self):
        return Region(0)
