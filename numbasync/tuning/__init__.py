"""Autotuning: the fastest of several configurations of a kernel, chosen by measuring them.

Public names: autotune, Autotuned, TuningResult.
"""
