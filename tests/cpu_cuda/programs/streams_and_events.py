"""Streams, events, page-locked arrays and callbacks."""

import numpy as np
from numba import cuda


@cuda.jit
def square(a):
    i = cuda.grid(1)
    if i < a.size:
        a[i] **= 2


n, parts = 4096, 4
data = cuda.pinned_array(n, dtype=np.float32)
data[:] = np.arange(n)
result = cuda.pinned_array_like(data)
streams = [cuda.stream() for _ in range(parts)]
start, end = cuda.event(), cuda.event(timing=True)
start.record()
size = n // parts
held = []
for k, stream in enumerate(streams):
    part = slice(k * size, (k + 1) * size)
    with stream.auto_synchronize():
        d_part = cuda.to_device(data[part], stream=stream)
        square[size // 128, 128, stream](d_part)
        d_part.copy_to_host(result[part], stream=stream)
        held.append(d_part)
end.record()
end.synchronize()
assert cuda.event_elapsed_time(start, end) >= 0 and end.query()
np.testing.assert_array_equal(result, np.arange(n, dtype=np.float32) ** 2)

seen = []
stream = cuda.stream()
first_done = cuda.event()
square[n // 128, 128, stream](held[0])
first_done.record(stream)
other = cuda.stream()
first_done.wait(other)
other.add_callback(lambda stream, status, arg: seen.append((status, arg)), "done")
other.synchronize()
assert seen == [(0, "done")]

host = np.ones(1000)
with cuda.pinned(host):
    device_host = cuda.to_device(host, stream=stream)
    stream.synchronize()
assert device_host.copy_to_host(stream=stream).sum() == 1000
cuda.default_stream().synchronize()
cuda.per_thread_default_stream()
cuda.legacy_default_stream()
cuda.external_stream(0).synchronize()
with cuda.defer_cleanup():
    square[1, 32](held[1])
