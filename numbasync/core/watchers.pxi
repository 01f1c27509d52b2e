# Threads that sleep until a device has passed a point, and wake an event loop.

cdef extern from *:
    """
    #ifndef _WIN32
    #include <unistd.h>
    #ifdef __linux__
    #include <sys/prctl.h>
    static void na_wake_exactly(void) { prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL); }
    #else
    static void na_wake_exactly(void) {}
    #endif
    static void na_sleep(double seconds) {
        struct timespec time;
        time.tv_sec = (time_t)seconds;
        time.tv_nsec = (long)((seconds - (double)time.tv_sec) * 1e9);
        nanosleep(&time, NULL);
    }
    static void na_ring(int descriptor) {
        uint64_t one = 1;
        if (write(descriptor, &one, sizeof one) < 0) return;  /* full: it wakes the loop anyway */
    }
    #else  /* no waker of Windows has an eventfd, so no watcher is started */
    static void na_wake_exactly(void) {}
    static void na_sleep(double seconds) { (void)seconds; }
    static void na_ring(int descriptor) { (void)descriptor; }
    #endif
    """
    void na_wake_exactly() noexcept nogil
    void na_sleep(double) noexcept nogil
    void na_ring(int) noexcept nogil


cdef double LOOK_S = 20e-6  # between two looks at a counter


cdef class Watcher:
    """What one thread waits for: the point of a stream at which an event is recorded, or the number
    before it in the stream's completion counter, at which it also looks for a while. Then it writes
    to an eventfd. The thread has no interpreter lock meanwhile: it runs beside computing threads.
    """
    cdef PyThread_type_lock door  # opened when there is something to watch
    cdef void* event
    cdef DriverStream stream  # which is watched, and kept
    cdef void* driver_stream
    cdef volatile uint32_t* word
    cdef volatile int64_t* proved
    cdef int64_t number
    cdef double end  # of its looks, by `na_now`
    cdef int descriptor
    cdef volatile bint busy

    def __cinit__(self, uintptr_t event):
        self.event = <void*>event
        self.door = PyThread_allocate_lock()
        if self.door == NULL:
            raise MemoryError
        PyThread_acquire_lock(self.door, 1)

    def run(self):
        """Watch, for ever; on a thread of its own, which the device's context is current on."""
        with nogil:
            na_wake_exactly()
            while True:
                PyThread_acquire_lock(self.door, 1)
                if self.has_passed() and self.proved[0] < self.number:
                    self.proved[0] = self.number
                self.busy = False
                na_ring(self.descriptor)

    cdef bint has_passed(self) noexcept nogil:
        """Wait; whether the work is passed without a fault, as far as the driver knows."""
        cdef int result
        while True:
            if <int32_t>(self.word[0] - <uint32_t>self.number) >= 0:
                result = query_stream(self.driver_stream)
                return result == 0 or result == NOT_READY
            if na_now() >= self.end:
                break
            na_sleep(LOOK_S)
        return synchronize_event(self.event) == 0

    def start(self, DriverStream stream, number, double seconds, int descriptor):
        """Watch for a number in a stream's counter; the event is recorded behind it.

        Args:
            seconds: how long to look at the counter.
            descriptor: the eventfd.
        """
        self.stream, self.driver_stream, self.number = stream, stream.number, number
        self.word, self.proved = stream.word, &stream.proved
        self.end, self.descriptor = na_now() + seconds, descriptor
        self.busy = True
        PyThread_release_lock(self.door)

    def rest(self):
        """Keep no stream any more; the caller has found that the thread waits for nothing."""
        self.stream = None

    @property
    def is_busy(self):
        return self.busy
