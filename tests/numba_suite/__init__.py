"""An outside judge: numba-cuda's own tests, with the kernels run by the CPU device."""
