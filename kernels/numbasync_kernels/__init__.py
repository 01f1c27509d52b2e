"""Ready kernels for numbasync, each with its NumPy reference beside it.

PYTEST_DONT_REWRITE: as in numbasync.
"""
