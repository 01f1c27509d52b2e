"""Write GPU kernels with Numba, compose them lazily, and await them from asyncio.

PYTEST_DONT_REWRITE: a process may import this before it calls pytest.main, which warns otherwise.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from numbasync import errors as errors
from numbasync import pickling as _pickling  # noqa: F401  # what it refuses
from numbasync.api import arange as arange
from numbasync.api import convert as convert
from numbasync.api import dup as dup
from numbasync.api import empty as empty
from numbasync.api import empty_like as empty_like
from numbasync.api import empty_pitched as empty_pitched
from numbasync.api import eye as eye
from numbasync.api import fill as fill
from numbasync.api import from_host as from_host
from numbasync.api import full as full
from numbasync.api import full_like as full_like
from numbasync.api import linspace as linspace
from numbasync.api import memcpy as memcpy
from numbasync.api import meta as meta
from numbasync.api import ones as ones
from numbasync.api import ones_like as ones_like
from numbasync.api import rand as rand
from numbasync.api import randn as randn
from numbasync.api import zeros as zeros
from numbasync.api import zeros_like as zeros_like
from numbasync.backend.base import Limits as Limits
from numbasync.backend.base import MemoryStats as MemoryStats
from numbasync.context import Context as Context
from numbasync.device import Device as Device
from numbasync.device import InFlight as InFlight
from numbasync.device import default_device as default_device
from numbasync.device import devices as devices
from numbasync.device import use_device as use_device
from numbasync.errors import NumbasyncError as NumbasyncError
from numbasync.event import Event as Event
from numbasync.execute import spawn as spawn
from numbasync.foreign import as_tensor as as_tensor
from numbasync.foreign import from_dlpack as from_dlpack
from numbasync.future import DeviceFuture as DeviceFuture
from numbasync.gathering import gather as gather
from numbasync.graph import CudaGraph as CudaGraph
from numbasync.graphed import graphed as graphed
from numbasync.host import HostBuffer as HostBuffer
from numbasync.host import pinned as pinned
from numbasync.inout import InOut as InOut
from numbasync.inout import inout as inout
from numbasync.joining import concatenate as concatenate
from numbasync.joining import stack as stack
from numbasync.kernel import compile_count as compile_count
from numbasync.launch import Launch as Launch
from numbasync.launch import LaunchResult as LaunchResult
from numbasync.launcher import CpuEngine as CpuEngine
from numbasync.launcher import Launcher as Launcher
from numbasync.launcher import launcher as launcher
from numbasync.limits import limit as limit
from numbasync.memory import MemoryPool as MemoryPool
from numbasync.module import Module as Module
from numbasync.op import DeviceOp as DeviceOp
from numbasync.ordering import ordering as ordering
from numbasync.ordering import set_ordering as set_ordering
from numbasync.partition import Partition as Partition
from numbasync.runtime import Runtime as Runtime
from numbasync.runtime import run as run
from numbasync.scheduling import LeastPending as LeastPending
from numbasync.scheduling import Priority as Priority
from numbasync.scheduling import SchedulingPolicy as SchedulingPolicy
from numbasync.scheduling import SingleStream as SingleStream
from numbasync.scheduling import StreamPoolRoundRobin as StreamPoolRoundRobin
from numbasync.scope import Scope as Scope
from numbasync.scope import ScopeBranch as ScopeBranch
from numbasync.signature import KernelInput as KernelInput
from numbasync.signature import KernelOutput as KernelOutput
from numbasync.signature import Tile as Tile
from numbasync.sources import defer as defer
from numbasync.sources import shared as shared
from numbasync.sources import value as value
from numbasync.sources import with_context as with_context
from numbasync.sources import zip as zip
from numbasync.stream import Stream as Stream
from numbasync.tensor import SharedTensor as SharedTensor
from numbasync.tensor import Tensor as Tensor
from numbasync.topology import GraphStatistics as GraphStatistics
from numbasync.topology import Node as Node
from numbasync.topology import Topology as Topology

if TYPE_CHECKING:
    from numbasync import random as random
    from numbasync import testing as testing
    from numbasync.batch import BatchGraph as BatchGraph
    from numbasync.batch import BatchPlan as BatchPlan
    from numbasync.batch import BufferId as BufferId
    from numbasync.batch import CommandBatch as CommandBatch
    from numbasync.batch import Elementwise as Elementwise
    from numbasync.batch import elementwise as elementwise
    from numbasync.random import random_states as random_states

__version__ = "0.1.0"

# Importing these takes long, and not every program has batches, or random numbers in kernels.
_LATER = {
    **dict.fromkeys(
        ("BatchGraph", "BatchPlan", "BufferId", "CommandBatch", "Elementwise", "elementwise"),
        "numbasync.batch",
    ),
    "random_states": "numbasync.random",
}
_MODULES = frozenset(("random", "testing"))  # the public ones; others are how it is made


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"numbasync.{name}")  # which sets the attribute
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(_LATER[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    names = {
        name for name, value in globals().items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }  # fmt: skip
    own = {"ModuleType", "TYPE_CHECKING", "import_module"}
    return sorted({*names, *_LATER, *_MODULES, "errors", "__version__"} - own)
