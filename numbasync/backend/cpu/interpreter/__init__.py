"""Kernels that Python itself runs: for debuggers, coverage and what cannot be compiled."""
