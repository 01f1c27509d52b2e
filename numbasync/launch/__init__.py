"""Launchers: the parameters of a kernel, the grid of a call, and the launch itself.

Face: launcher, Launcher, Launch, KernelInput, KernelOutput, Tile, CpuEngine, compile_count.
"""
