"""What compiled kernels call: CUDA's functions in terms of the host's."""
