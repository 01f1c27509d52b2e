"""Launchers: the parameters of a kernel, the grid of a call, and the launch itself.

Public names: launcher, Launcher, Launch, KernelInput, KernelOutput, Tile, Literal, CpuEngine,
compile_count.
"""
