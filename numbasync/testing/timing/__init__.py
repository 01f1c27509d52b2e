"""Measures how long kernels take: `do_bench` and `benchmark_kernel`."""
