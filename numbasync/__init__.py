"""Write GPU kernels with Numba, compose them lazily, and await them from asyncio.

PYTEST_DONT_REWRITE: a process may import this before it calls pytest.main, which warns otherwise.
"""

from importlib import import_module
from importlib.util import find_spec
from os import environ as _environ
from types import ModuleType
from typing import TYPE_CHECKING

from numbasync import errors as errors
from numbasync import native as _native
from numbasync import runtime as _runtime
from numbasync.backend.protocols import Limits as Limits
from numbasync.backend.protocols import MemoryStats as MemoryStats
from numbasync.backend.protocols import Peaks as Peaks
from numbasync.backend.shared_layout import SharedLayout as SharedLayout
from numbasync.backend.shared_layout import shared_layout as shared_layout
from numbasync.device.access import ordering as ordering
from numbasync.device.access import set_ordering as set_ordering
from numbasync.device.device import Device as Device
from numbasync.device.device import InFlight as InFlight
from numbasync.device.device import default_device as default_device
from numbasync.device.device import devices as devices
from numbasync.device.device import set_default_device as set_default_device
from numbasync.device.device import use_device as use_device
from numbasync.device.event import Event as Event
from numbasync.device.latency import waiting as waiting
from numbasync.device.policies import LeastPending as LeastPending
from numbasync.device.policies import Priority as Priority
from numbasync.device.policies import SchedulingPolicy as SchedulingPolicy
from numbasync.device.policies import SingleStream as SingleStream
from numbasync.device.policies import StreamPoolRoundRobin as StreamPoolRoundRobin
from numbasync.device.storage import MemoryPool as MemoryPool
from numbasync.device.stream import Stream as Stream
from numbasync.errors import NumbasyncError as NumbasyncError
from numbasync.graphs.graph import CudaGraph as CudaGraph
from numbasync.graphs.graphed import graphed as graphed
from numbasync.graphs.module import Module as Module
from numbasync.graphs.scope import Scope as Scope
from numbasync.graphs.scope import ScopeBranch as ScopeBranch
from numbasync.graphs.topology import GraphStatistics as GraphStatistics
from numbasync.graphs.topology import Node as Node
from numbasync.graphs.topology import Topology as Topology
from numbasync.launch.call import Launch as Launch
from numbasync.launch.call import LaunchResult as LaunchResult
from numbasync.launch.explain import Explanation as Explanation
from numbasync.launch.external import external as external
from numbasync.launch.launcher import Launcher as Launcher
from numbasync.launch.launcher import launcher as launcher
from numbasync.launch.parameters import KernelInput as KernelInput
from numbasync.launch.parameters import KernelOutput as KernelOutput
from numbasync.launch.parameters import Literal as Literal
from numbasync.launch.parameters import Tile as Tile
from numbasync.launch.prepared import PreparedLaunch as PreparedLaunch
from numbasync.launch.suggested import suggest_threads as suggest_threads
from numbasync.launch.variants import CpuEngine as CpuEngine
from numbasync.launch.variants import compile_count as compile_count
from numbasync.ops.backpressure import limit as limit
from numbasync.ops.constructors import defer as defer
from numbasync.ops.constructors import shared as shared
from numbasync.ops.constructors import value as value
from numbasync.ops.constructors import with_context as with_context
from numbasync.ops.constructors import zip as zip
from numbasync.ops.context import Context as Context
from numbasync.ops.future import DeviceFuture as DeviceFuture
from numbasync.ops.gather import gather as gather
from numbasync.ops.op import DeviceOp as DeviceOp
from numbasync.ops.run import spawn as spawn
from numbasync.ops.task_factory import task_factory as task_factory
from numbasync.runtime import Runtime as Runtime
from numbasync.runtime import run as run
from numbasync.runtime import warm_up as warm_up
from numbasync.tensors import pickling as _pickling  # noqa: F401  # what it refuses
from numbasync.tensors.create import arange as arange
from numbasync.tensors.create import convert as convert
from numbasync.tensors.create import dup as dup
from numbasync.tensors.create import empty as empty
from numbasync.tensors.create import empty_like as empty_like
from numbasync.tensors.create import empty_pitched as empty_pitched
from numbasync.tensors.create import eye as eye
from numbasync.tensors.create import fill as fill
from numbasync.tensors.create import from_host as from_host
from numbasync.tensors.create import full as full
from numbasync.tensors.create import full_like as full_like
from numbasync.tensors.create import linspace as linspace
from numbasync.tensors.create import memcpy as memcpy
from numbasync.tensors.create import meta as meta
from numbasync.tensors.create import ones as ones
from numbasync.tensors.create import ones_like as ones_like
from numbasync.tensors.create import rand as rand
from numbasync.tensors.create import randn as randn
from numbasync.tensors.create import zeros as zeros
from numbasync.tensors.create import zeros_like as zeros_like
from numbasync.tensors.device_group import DeviceGroup as DeviceGroup
from numbasync.tensors.device_group import GroupStatistics as GroupStatistics
from numbasync.tensors.devices import gather_parts as gather_parts
from numbasync.tensors.devices import replicate as replicate
from numbasync.tensors.devices import scatter as scatter
from numbasync.tensors.devices import to_device as to_device
from numbasync.tensors.import_array import as_tensor as as_tensor
from numbasync.tensors.import_array import from_dlpack as from_dlpack
from numbasync.tensors.inout import InOut as InOut
from numbasync.tensors.inout import inout as inout
from numbasync.tensors.join import concatenate as concatenate
from numbasync.tensors.join import stack as stack
from numbasync.tensors.partition import Partition as Partition
from numbasync.tensors.pinned import HostBuffer as HostBuffer
from numbasync.tensors.pinned import pinned as pinned
from numbasync.tensors.tensor import SharedTensor as SharedTensor
from numbasync.tensors.tensor import Tensor as Tensor
from numbasync.tensors.tensor_map import TensorMap as TensorMap
from numbasync.tensors.tensor_map import tensor_map as tensor_map

if TYPE_CHECKING:
    from numbasync import algorithms as algorithms
    from numbasync import block as block
    from numbasync import collective as collective
    from numbasync import cpu_cuda as cpu_cuda
    from numbasync import dask as dask
    from numbasync import extending as extending
    from numbasync import random as random
    from numbasync import ray as ray
    from numbasync import serve as serve
    from numbasync import tensor_cores as tensor_cores
    from numbasync import testing as testing
    from numbasync import torch as torch
    from numbasync import vectors as vectors
    from numbasync import warp as warp
    from numbasync.backend.cpu.target.twins import cpu_twin as cpu_twin
    from numbasync.batch import BatchGraph as BatchGraph
    from numbasync.batch import BatchPlan as BatchPlan
    from numbasync.batch import BufferId as BufferId
    from numbasync.batch import CommandBatch as CommandBatch
    from numbasync.batch import Elementwise as Elementwise
    from numbasync.batch import elementwise as elementwise
    from numbasync.cpu_cuda import cuda_on_cpu as cuda_on_cpu
    from numbasync.random import random_states as random_states
    from numbasync.timeline.flight_recorder import FlightRecorder as FlightRecorder
    from numbasync.timeline.flight_recorder import flight_recorder as flight_recorder
    from numbasync.timeline.records import TracedCompilation as TracedCompilation
    from numbasync.timeline.records import TracedOperation as TracedOperation
    from numbasync.timeline.records import TracedSample as TracedSample
    from numbasync.timeline.records import TracedWait as TracedWait
    from numbasync.timeline.summary import StreamUse as StreamUse
    from numbasync.timeline.summary import TraceSummary as TraceSummary
    from numbasync.timeline.timeline import Timeline as Timeline
    from numbasync.timeline.timeline import trace as trace
    from numbasync.tuning.autotune import Autotuned as Autotuned
    from numbasync.tuning.autotune import autotune as autotune
    from numbasync.tuning.measurements import TuningResult as TuningResult

__version__ = "0.2.0"

# Importing these takes long, and not every program has batches, random numbers in kernels, traces.
_LATER = {
    **dict.fromkeys(
        ("BatchGraph", "BatchPlan", "BufferId", "CommandBatch", "Elementwise", "elementwise"),
        "numbasync.batch",
    ),
    **dict.fromkeys(("Autotuned", "autotune"), "numbasync.tuning.autotune"),
    "TuningResult": "numbasync.tuning.measurements",
    **dict.fromkeys(("Timeline", "trace"), "numbasync.timeline.timeline"),
    **dict.fromkeys(("FlightRecorder", "flight_recorder"), "numbasync.timeline.flight_recorder"),
    **dict.fromkeys(
        ("TracedCompilation", "TracedOperation", "TracedSample", "TracedWait"),
        "numbasync.timeline.records",
    ),
    **dict.fromkeys(("StreamUse", "TraceSummary"), "numbasync.timeline.summary"),
    "random_states": "numbasync.random",
    "cuda_on_cpu": "numbasync.cpu_cuda",
    "cpu_twin": "numbasync.backend.cpu.target.twins",
}
_runtime.imported_later.update(_LATER.values())  # `warm_up` does it beforehand
# The public ones; others are how it is made.
_MODULES = frozenset(
    (
        "algorithms",
        "block",
        "collective",
        "cpu_cuda",
        "dask",
        "extending",
        "random",
        "ray",
        "serve",
        "tensor_cores",
        "testing",
        "torch",
        "vectors",
        "warp",
    )
)


_native.switch(True)

if _environ.get("NUMBASYNC_CUDA_ON_CPU") == "1":
    import_module("numbasync.cpu_cuda").switch(True)


def __getattr__(name: str) -> object:
    if name not in _MODULES and name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        found = import_module(_LATER.get(name, f"numbasync.{name}"))
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("numba.cuda."):
            raise
        raise ImportError(import_module("numbasync.backend.numba_cuda_arrays").MISSING) from error
    if name in _MODULES:
        return found  # which has set the attribute
    globals()[name] = getattr(found, name)
    return globals()[name]


def __dir__() -> list[str]:
    names = {
        name for name, value in globals().items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }  # fmt: skip
    own = {"ModuleType", "TYPE_CHECKING", "import_module", "find_spec"}
    if find_spec("distributed") is None:
        own.add("dask")  # which cannot be imported
    if find_spec("ray") is None:
        own.add("ray")
    return sorted({*names, *_LATER, *_MODULES, "errors", "__version__"} - own)
