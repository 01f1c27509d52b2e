"""What one launch may ask of the CPU device."""

from __future__ import annotations

from numbasync.backend.protocols import Limits

# The limits of a CUDA device of today, so that a launch refused there is refused here.
LIMITS = Limits(
    max_threads_per_block=1024,
    max_block=(1024, 1024, 64),
    max_grid=(2**31 - 1, 65535, 65535),
    max_shared_bytes=48 * 1024,
    max_dynamic_shared_bytes=227 * 1024,  # of an H100
    warp_size=32,
    multiprocessors=1,
    tensor_cores="emulated",
    max_cluster=8,
)
