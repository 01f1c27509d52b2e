"""CUDA graphs: recording operations, replaying them, and the buffers that replays own.

Face: CudaGraph, Scope, graphed, Module, Topology.
"""
