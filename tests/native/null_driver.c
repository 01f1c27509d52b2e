/* A driver whose calls run nothing: they note the launches, and write completion counters.
 *
 * Work of a stream that is held stays pending, and its counter writes wait, until `null_pass`. A
 * wait for a stream passes all of its work, so that no test can hang.
 */
#include <pthread.h>
#include <stdint.h>
#include <string.h>

enum { LAUNCHES = 4096, BYTES = 1024, WRITES = 4096, STREAMS = 64,
       NOT_READY = 600, CONTEXT_IS_DESTROYED = 709 };

typedef struct {
    uint64_t function, stream, nbytes;
    uint32_t extents[7];
    unsigned char bytes[BYTES];
} Launch;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Launch launches[LAUNCHES];  /* the latest ones */
static uint64_t launched, others;
static uint64_t filled[3];  /* the latest fill: bytes of its pattern, the pattern, how often */
static uint64_t peer[5];  /* the arguments of the latest copy between two devices */
static uint64_t replayed;  /* the latest graph */
static struct { uint64_t stream; volatile uint32_t *word; uint32_t number; } writes[WRITES];
static int waiting;  /* of `writes` */
static struct { uint64_t stream; int held; uint64_t pending; } streams[STREAMS];
static struct { int result, skip, times; } next;
static uint64_t waits[STREAMS][2], waited;  /* a stream, and the one that it waits for */
static uint64_t events[STREAMS];  /* the stream that each was recorded on */
static uint64_t captured;  /* a stream that another library captures */
static uint64_t switched;  /* how often threads have switched to another context */
static uint64_t lost_context;  /* to which no thread can switch */

static int result_of_call(void) {
    if (next.result == 0 || next.skip-- > 0 || next.times == 0) return 0;
    next.times--;
    return next.result;
}

static int place_of(uint64_t stream) {
    int i = 0;
    while (i < STREAMS - 1 && streams[i].stream != stream && streams[i].stream != 0) i++;
    streams[i].stream = stream;
    return i;
}

static void pass(uint64_t stream) {
    int left = 0;
    for (int i = 0; i < waiting; i++) {
        if (writes[i].stream == stream) *writes[i].word = writes[i].number;
        else writes[left++] = writes[i];
    }
    waiting = left;
    streams[place_of(stream)].pending = 0;
}

/* --- the driver's functions --- */

int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void *stream, void **params, void **extra) {
    unsigned extents[7] = {gx, gy, gz, bx, by, bz, shared};
    pthread_mutex_lock(&lock);
    int result = params != NULL || extra[0] != (void *)1 || extra[2] != (void *)2 || extra[4] != 0
        ? 1 : result_of_call();
    if (result == 0) {
        Launch *at = &launches[launched++ % LAUNCHES];
        at->function = (uintptr_t)function;
        at->stream = (uintptr_t)stream;
        at->nbytes = *(size_t *)extra[3];
        memcpy(at->extents, extents, sizeof extents);
        memcpy(at->bytes, extra[1], at->nbytes < BYTES ? at->nbytes : BYTES);
        int place = place_of((uintptr_t)stream);
        streams[place].pending += streams[place].held;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

int cuStreamWriteValue32_v2(void *stream, uint32_t *word, uint32_t number, unsigned flags) {
    (void)flags;
    pthread_mutex_lock(&lock);
    int result = result_of_call(), place = place_of((uintptr_t)stream);
    if (result == 0 && !streams[place].held) *(volatile uint32_t *)word = number;
    else if (result == 0 && waiting < WRITES) {
        streams[place].pending++;
        writes[waiting].stream = (uintptr_t)stream;
        writes[waiting].word = word;
        writes[waiting++].number = number;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* Fills, copies and graphs do nothing but count and note. */
static int other(void *stream) {
    pthread_mutex_lock(&lock);
    int result = result_of_call(), place = place_of((uintptr_t)stream);
    if (result == 0) {
        others++;
        streams[place].pending += streams[place].held;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static int fill(uint64_t nbytes, unsigned number, size_t count, void *stream) {
    filled[0] = nbytes, filled[1] = number, filled[2] = count;
    return other(stream);
}

int cuMemsetD8Async(uint64_t at, unsigned char number, size_t count, void *stream) {
    (void)at;
    return fill(1, number, count, stream);
}

int cuMemsetD16Async(uint64_t at, unsigned short number, size_t count, void *stream) {
    (void)at;
    return fill(2, number, count, stream);
}

int cuMemsetD32Async(uint64_t at, unsigned number, size_t count, void *stream) {
    (void)at;
    return fill(4, number, count, stream);
}

int cuMemcpyHtoDAsync_v2(void *to, void *from, size_t count, void *stream) {
    (void)to, (void)from, (void)count;
    return other(stream);
}

int cuMemcpyPeerAsync(uint64_t to, void *near, uint64_t from, void *far, size_t count,
                      void *stream) {
    peer[0] = to, peer[1] = (uintptr_t)near, peer[2] = from, peer[3] = (uintptr_t)far;
    peer[4] = count;
    return other(stream);
}

int cuGraphLaunch(void *graph, void *stream) {
    replayed = (uintptr_t)graph;
    return other(stream);
}

static __thread void *current;  /* the context of the thread */

int cuCtxGetCurrent(void **context) {
    *context = current;
    return 0;
}

/* Not one of the calls that `null_fail` counts: work does not depend on it here. */
int cuCtxSetCurrent(void *context) {
    pthread_mutex_lock(&lock);
    int result = lost_context != 0 && lost_context == (uintptr_t)context ? CONTEXT_IS_DESTROYED : 0;
    if (result == 0) current = context, switched++;
    pthread_mutex_unlock(&lock);
    return result;
}

/* Another library's switch. */
void null_switch(uint64_t context) { current = (void *)(uintptr_t)context; }

int cuStreamQuery(void *stream) {
    pthread_mutex_lock(&lock);
    int result = result_of_call();
    if (result == 0 && streams[place_of((uintptr_t)stream)].pending) result = NOT_READY;
    pthread_mutex_unlock(&lock);
    return result;
}

int cuEventRecord(void *event, void *stream) {
    pthread_mutex_lock(&lock);
    int result = result_of_call();
    if (result == 0) events[(uintptr_t)event % STREAMS] = (uintptr_t)stream;
    pthread_mutex_unlock(&lock);
    return result;
}

int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
    (void)flags;
    pthread_mutex_lock(&lock);
    int result = result_of_call();
    if (result == 0) {
        uint64_t *at = waits[waited++ % STREAMS];
        at[0] = (uintptr_t)stream;
        at[1] = events[(uintptr_t)event % STREAMS];
    }
    pthread_mutex_unlock(&lock);
    return result;
}

int cuStreamIsCapturing(void *stream, int *status) {
    *status = captured != 0 && captured == (uintptr_t)stream;
    return 0;
}

int cuStreamSynchronize(void *stream) {
    pthread_mutex_lock(&lock);
    int result = result_of_call();
    if (result == 0) pass((uintptr_t)stream);
    pthread_mutex_unlock(&lock);
    return result;
}

/* --- NCCL's functions, of which each call is noted --- */

static uint64_t collectives[STREAMS][8], collected;  /* a group's calls, from its start on */
static uint64_t grouped;  /* how often a group has ended */
static uint64_t begun_context;  /* where the latest group has begun */
static uint64_t left_context;  /* which the end of a group leaves current, if any */

int ncclGroupStart(void) {
    int result = result_of_call();
    if (result == 0) collected = 0, begun_context = (uintptr_t)current;
    return result;
}

int ncclGroupEnd(void) {
    grouped++;
    if (left_context != 0) current = (void *)(uintptr_t)left_context;
    return result_of_call();
}

static int collect(uint64_t function, const void *send, void *recv, size_t count, int dtype,
                   int choice, void *comm, void *stream) {
    int result = result_of_call();
    uint64_t call[8] = {function, (uintptr_t)send, (uintptr_t)recv, count, dtype, choice,
                        (uintptr_t)comm, (uintptr_t)stream};
    if (result == 0) memcpy(collectives[collected++ % STREAMS], call, sizeof call);
    return result;
}

int ncclAllReduce(const void *send, void *recv, size_t count, int dtype, int op, void *comm,
                  void *stream) {
    return collect(1, send, recv, count, dtype, op, comm, stream);
}

int ncclReduceScatter(const void *send, void *recv, size_t count, int dtype, int op, void *comm,
                      void *stream) {
    return collect(2, send, recv, count, dtype, op, comm, stream);
}

int ncclAllGather(const void *send, void *recv, size_t count, int dtype, void *comm,
                  void *stream) {
    return collect(3, send, recv, count, dtype, 0, comm, stream);
}

int ncclBroadcast(const void *send, void *recv, size_t count, int dtype, int root, void *comm,
                  void *stream) {
    return collect(4, send, recv, count, dtype, root, comm, stream);
}

/* --- for tests --- */

uint64_t null_collected(void) { return collected; }

uint64_t *null_collective(uint64_t i) { return collectives[i % STREAMS]; }

uint64_t null_grouped(void) { return grouped; }

uint64_t null_begun(void) { return begun_context; }

void null_leave(uint64_t context) { left_context = context; }

void null_hold(void *stream, int held) {
    pthread_mutex_lock(&lock);
    streams[place_of((uintptr_t)stream)].held = held;
    if (!held) pass((uintptr_t)stream);
    pthread_mutex_unlock(&lock);
}

void null_pass(void *stream) {
    pthread_mutex_lock(&lock);
    pass((uintptr_t)stream);
    pthread_mutex_unlock(&lock);
}

/* The result of every call after `skip` calls; and of one call. */
void null_fail(int result, int skip) {
    next.result = result;
    next.skip = skip;
    next.times = -1;
}

void null_fail_once(int result, int skip) {
    null_fail(result, skip);
    next.times = 1;
}

uint64_t null_waited(void) { return waited; }

uint64_t null_switched(void) { return switched; }

void null_lose(uint64_t context) { lost_context = context; }

uint64_t *null_wait(uint64_t i) { return waits[i % STREAMS]; }

void null_capture(void *stream) { captured = (uintptr_t)stream; }

uint64_t null_launched(void) { return launched; }

uint64_t null_others(void) { return others; }

uint64_t *null_filled(void) { return filled; }

uint64_t *null_peer(void) { return peer; }

uint64_t null_replayed(void) { return replayed; }

Launch *null_launch(uint64_t i) { return &launches[i % LAUNCHES]; }

void null_reset(void) {
    pthread_mutex_lock(&lock);
    launched = others = waiting = next.result = next.skip = waited = captured = 0;
    switched = lost_context = left_context = collected = grouped = 0;
    memset(streams, 0, sizeof streams);
    pthread_mutex_unlock(&lock);
}
