"""Code generation: sources of kernels for groups of nodes, and their files on disk."""
