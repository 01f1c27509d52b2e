"""Devices: streams, events, pools, policies; what is in flight, and how its end is seen.

Face: Device, Stream, Event, MemoryPool, the policies, devices, use_device, ordering.
"""
