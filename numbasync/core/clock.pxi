# The clock of a trace's notes: that of `time.perf_counter_ns`.
#
# To ask the kernel takes as long as a tenth of a launch on some virtual machines. So on x86 the
# processor's ticks are read, where they are steady, and the kernel is asked once a millisecond.

cdef extern from *:
    """
    #if defined(_WIN32)
    static int64_t na_ns(void) { return (int64_t)(na_now() * 1e9); }
    #elif defined(__APPLE__)
    static int64_t na_ns(void) { return (int64_t)clock_gettime_nsec_np(CLOCK_UPTIME_RAW); }
    #else
    static int64_t na_kernel_ns(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    }
    #if defined(__x86_64__) && defined(__GNUC__)
    #include <cpuid.h>
    #include <x86intrin.h>
    #define NA_FRESH 1000000 /* nanoseconds, after which the kernel is asked again */
    #define NA_OLD 1000000000 /* nanoseconds, after which ticks are counted anew */
    #define NA_QUICK 1500 /* ticks in which the kernel answers a thread that is not interrupted */

    /* The caller holds the GIL. */
    static struct {
        uint64_t tick, fresh; /* of the last answer; for how many ticks it serves */
        uint64_t scale; /* nanoseconds a tick, times 2**32; 0: not known */
        int64_t ns, latest;
    } na_clock;

    static int na_ticks_are_steady(void) {
        static int answer = -1;
        unsigned a, b, c, d;
        if (answer < 0) answer = __get_cpuid(0x80000007, &a, &b, &c, &d) && (d >> 8 & 1);
        return answer;
    }

    static int64_t na_ask_kernel(uint64_t tick) {
        int64_t now = na_kernel_ns(), passed = now - na_clock.ns;
        uint64_t after = __rdtsc(), ticks, scale, old = na_clock.scale;
        if (!na_ticks_are_steady() || after - tick > NA_QUICK) return now;
        if (0 <= passed && passed < NA_FRESH) return now; /* too near to measure ticks by */
        tick += (after - tick) / 2;
        ticks = tick - na_clock.tick;
        scale = 0;
        if (0 < passed && passed < NA_OLD && ticks) {
            scale = ((uint64_t)passed << 32) / ticks;
            if (old && (scale > old + old / 64 || scale < old - old / 64)) scale = 0; /* it slept */
        }
        na_clock.tick = tick;
        na_clock.ns = now;
        na_clock.scale = scale;
        na_clock.fresh = scale ? ((uint64_t)NA_FRESH << 32) / scale : 0;
        return now;
    }

    static int64_t na_ns(void) {
        uint64_t tick = __rdtsc(), since = tick - na_clock.tick;
        int64_t now = since < na_clock.fresh
            ? na_clock.ns + (int64_t)(since * na_clock.scale >> 32) : na_ask_kernel(tick);
        if (now > na_clock.latest) na_clock.latest = now; /* it never goes back */
        return na_clock.latest;
    }
    #else
    #define na_ns na_kernel_ns
    #endif
    #endif
    """
    int64_t na_ns() noexcept


def clock_ns():
    """The time of the notes, in nanoseconds."""
    return na_ns()
