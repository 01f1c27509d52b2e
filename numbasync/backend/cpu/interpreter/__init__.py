"""Kernels that run as Python code: for debuggers and coverage tools, and those for tensor cores."""
