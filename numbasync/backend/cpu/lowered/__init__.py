"""Kernels that Numba types and lowers unchanged: how their machine code is called, kept, checked."""
