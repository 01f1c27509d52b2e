"""Benchmarks: numbasync beside other libraries, in one run, answers checked first."""
