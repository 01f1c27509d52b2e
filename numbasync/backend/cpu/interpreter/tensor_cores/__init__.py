"""The meaning of the operations of `numbasync.tensor_cores` in kernels that run as Python.

What a warp or a warpgroup does together is done in NumPy, when its last thread has come. Tiles are
bytes of the block's dynamic shared memory, with their swizzles. Asynchronous operations read and
write at the latest moment that the kernel's waits allow: the targets of copies hold NaN until then.
Which threads may rely on what is kept (`order`), so that a missing wait, barrier or fence is an
error in whatever order the threads run.
"""
