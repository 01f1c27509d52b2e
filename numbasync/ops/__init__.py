"""Operations: how they are composed, submitted, awaited, cancelled and limited.

Public names: DeviceOp, DeviceFuture, Context, value, shared, zip, defer, spawn, gather, limit.
"""
