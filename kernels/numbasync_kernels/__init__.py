"""Ready kernels for numbasync, each with its NumPy reference beside it."""
