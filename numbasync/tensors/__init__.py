"""Tensors: making them, copying them, partitions of them, and arrays of other libraries as tensors.

Face: Tensor, SharedTensor, Partition, zeros and the like, memcpy, pinned, as_tensor, from_dlpack.
"""
