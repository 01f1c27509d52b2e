"""Devices: streams, events, pools, policies; the work in flight, and how its completion is seen.

Public names: Device, Stream, Event, MemoryPool, the policies, devices, use_device, ordering.
"""
