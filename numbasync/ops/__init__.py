"""Operations: what they are made of, how they are submitted, and how they are awaited.

Face: DeviceOp, DeviceFuture, Context, value, shared, zip, defer, spawn, gather, limit.
"""
