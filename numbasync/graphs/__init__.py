"""CUDA graphs: recording operations, replaying them, and the buffers that replays own.

Public names: CudaGraph, Scope, graphed, Module, Topology.
"""
