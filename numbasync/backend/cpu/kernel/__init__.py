"""Kernels that Numba types and lowers unchanged: how their code is called, kept and checked."""
