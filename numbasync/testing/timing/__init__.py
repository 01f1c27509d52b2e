"""How long kernels take: `time_kernel` and `benchmark_kernel`."""
