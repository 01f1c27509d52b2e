"""Kernels that run as Python code, for debuggers and coverage tools."""
