"""All devices that there are: a part of the data for each."""

import numpy as np
from numba import cuda


@cuda.jit
def halve(a):
    i = cuda.grid(1)
    if i < a.size:
        a[i] /= 2


if not cuda.is_available():
    raise SystemExit("no GPU")
count = len(cuda.gpus)
data = np.arange(1000.0)
parts = np.array_split(data, count)
results = []
for gpu, part in zip(cuda.gpus, parts):
    with gpu:
        d = cuda.to_device(part)
        halve.forall(part.size)(d)
        results.append(d)
for number in range(count):
    cuda.select_device(number)
    cuda.synchronize()
np.testing.assert_array_equal(np.concatenate([r.copy_to_host() for r in results]), data / 2)

with cuda.gpus[0] as context:
    d = cuda.to_device(np.ones(3))
device = cuda.get_current_device()
print(device.name, device.compute_capability, device.id)
assert device.compute_capability >= (5, 0) and device.MAX_THREADS_PER_BLOCK >= 256
assert device.MAX_SHARED_MEMORY_PER_BLOCK >= 16384 and device.MAX_BLOCK_DIM_X >= 256
context = cuda.current_context()
free, total = context.get_memory_info()
assert 0 < free <= total and free / total <= 1
info = context.get_memory_info()
assert info.free <= info.total
assert context.device.id == count - 1
context.synchronize()
cuda.list_devices()
cuda.gpus.current
with cuda.profiling():
    halve[1, 32](d)
cuda.profile_start()
cuda.profile_stop()
cuda.current_context().deallocations.clear()
del d, results
cuda.close()
