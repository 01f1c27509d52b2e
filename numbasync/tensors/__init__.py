"""Tensors: creating, copying and partitioning them, and importing arrays of other libraries.

Public names: Tensor, SharedTensor, Partition, zeros and the like, memcpy, pinned, as_tensor,
from_dlpack.
"""
