"""What `dir` shows of the public classes and their instances: what programs use, and nothing of the
machinery that other parts of the package use.
"""

from __future__ import annotations

_OP = """astype async_on coroutine dup explain first graph graph_on inspect item last map output
    partition reshape schedule shared shared_tensor sync sync_on then then_unchecked
    then_with_context to_dot to_host unpartition unzip"""
_ARRAY = """T astype copy_from copy_to device dtype dup is_contiguous is_readonly item nbytes ndim
    partition partition_prefix reinterpret reshape shape shared size strides take to_host"""
_BATCH = """abs add argmax cast clamp compute compute_op compute_sync device div dot equal execute
    execute_sync exp gelu graph greater greater_equal keep kernels_launched layer_norm less
    less_equal log max maximum mean min minimum mul neg not_equal num_buffers num_operations op
    plan pow read read_op read_sync relu scale sigmoid softmax sqrt sub sum swish tanh tensor
    transfers upload use where"""

NAMES = {
    name: frozenset(names.split())
    for name, names in {
        "Autotuned": "choice configs forget name results tune",
        "BatchGraph": "graph replay replay_sync stream",
        "BatchPlan": "kernels naive_bytes peak_bytes reasons rows source table to_dot",
        "BufferId": "dtype ndim number shape",
        "CommandBatch": _BATCH,
        "Context": "alloc device host_buffer pool retain stream",
        "CudaGraph": """capture device launch nodes recapture scope set_args statistics stream
            take_output to_dot topology update""",
        "Device": """can_access compute_capability in_flight kind label latency limits memory_stats
            name new_event new_pool new_stream ordinal policy pool ring streams synchronize""",
        "DeviceGroup": "devices map statistics",
        "DeviceFuture": "cancel cancelled done sync",
        "DeviceOp": _OP,
        "Event": "device elapsed_ms of query record synchronize wait was_recorded",
        "Launcher": """Result compile cpu_engine explain forall kernel label may_alias move_inputs
            name parameters preconditions prepare py_func""",
        "MemoryPool": "device reset_high stats trim",
        "PreparedLaunch": "async_on sync sync_on",
        "Partition": "blocks exact grid map tensor tile to_host unpartition",
        "Scope": "fork graph join record",
        "ScopeBranch": "fork join record",
        "SharedTensor": "device dtype dup partition shape tensor to_host",
        "Stream": "create device done next_stream numba number of query synchronize wait_for",
        "Tensor": _ARRAY,
        "TensorMap": "box device dtype shape swizzle tensor",
    }.items()
}


def _shown(kind: type) -> set[str]:
    """Names in `NAMES` and special methods of this package's classes; all names of others."""
    names = set[str]()
    for base in kind.__mro__:
        own = vars(base).keys()
        if base.__module__.startswith("numbasync."):
            names |= {n for n in own if n.startswith("__") and n.endswith("__")}
            names |= NAMES.get(base.__qualname__, frozenset())
        else:
            names |= own
    return names


class _Listed(type):
    def __dir__(cls) -> list[str]:
        return sorted(_shown(cls))


class Public(metaclass=_Listed):
    """A class of which `dir` shows what is in `NAMES`; of classes that programs make from it, all
    that they have besides.
    """

    __slots__ = ()

    def __dir__(self) -> list[str]:
        kind = type(self)
        own = () if kind.__module__.startswith("numbasync.") else getattr(self, "__dict__", ())
        return sorted(_shown(kind) | set(own))
