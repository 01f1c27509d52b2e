"""Benchmarks: numbasync beside other libraries, in one run, answers checked first.

`python -m benchmarks WHAT`, or `numbasync bench WHAT`. They are in a checkout, not in the wheel.
"""
