"""The programs of other libraries, and the suites that each takes part in.

They are modules of the package `benchmarks.peers`. Each is imported when a suite needs it, and has
a function for each suite, which gives its cases.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.measure import Case, Missing, one_line
from numbasync.device.device import Device

PACKAGE = "benchmarks.peers"

# Library, its module, and its suites.
PEERS = (
    ("driver", "floor", ("launch",)),
    ("cuda.bindings", "raw", ("launch", "await", "flight", "alloc", "batch_small")),
    ("cuda.bindings", "raw_graph", ("graph", "node", "chain", "step")),
    ("cuda.bindings", "raw_devices", ("peer", "move")),
    ("PyTorch", "torch_collectives", ("collective",)),
    ("Python host callback", "host_callback", ("await", "flight")),
    ("cuda.core", "core_peer", ("launch",)),
    ("Numba", "numba_peer", ("launch", "await", "flight", "alloc", "trip", "chain", "batch_host")),
    ("Numba", "numba_peer", ("interop", "reading")),
    ("CuPy", "cupy_peer", ("interop", "reading")),
    ("PyTorch", "torch_peer", ("interop", "reading")),
    ("cuda.core", "core_peer", ("interop", "reading")),
    ("RMM", "rmm_peer", ("interop", "reading")),
    ("JAX", "jax_peer", ("interop", "reading")),
    ("CuPy", "cupy_peer", ("alloc", "copy", "trip", "batch_chain")),
    ("CuPy RawKernel", "cupy_peer", ("launch", "await", "flight")),
    ("PyTorch", "torch_peer", ("launch", "alloc", "copy", "trip")),
    ("PyTorch", "torch_batches", ("batch_chain", "batch_reduce", "batch_tall")),
    ("PyTorch", "torch_plain", ("plain_add", "plain_neighbours", "plain_types", "plain_views")),
    ("PyTorch", "torch_products", ("products", "attention", "ready_calls")),
    ("PyTorch", "torch_embeddings", ("embeddings",)),
    ("PyTorch", "torch_algorithms", ("algorithms",)),
    ("CuPy", "cupy_algorithms", ("algorithms",)),
    ("CUB by hand", "cub_by_hand", ("block_collectives",)),
    ("Triton", "triton_peer", ("launch",)),
    ("numba-cuda-mlir", "mlir_peer", ("launch",)),
)
CPU_PEERS = ("by_hand", "warp_cpu")  # of `bench cpu`, beside the simulator


@dataclass(slots=True)
class Peers:
    """The cases of other libraries, and the libraries that have none."""

    cases: list[Case] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)


def module(name: str) -> Any:
    """The module `name` of the peers."""
    return importlib.import_module(f"{PACKAGE}.{name}")


def of(suite: str, device: Device, *sizes: int) -> Peers:
    """The peers' cases of one suite on `device`.

    Args:
        sizes: of the work, where a suite has a table for each size.
    """
    peers = Peers()
    for library, name, suites in PEERS:
        if suite not in suites:
            continue
        if not has_own_processor(device):
            peers.missing.append(Missing(library, "needs a GPU"))
            continue
        try:
            make_cases = getattr(module(name), f"of_{suite}")
            peers.cases += excusable(make_cases(device.ordinal, *sizes))
        except Exception as error:
            peers.missing.append(Missing(library, one_line(error)))
    return peers


def give_back() -> None:
    """Have the libraries that keep memory of a GPU for themselves return what they do not use."""
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()
    if "cupy" in sys.modules:
        sys.modules["cupy"].get_default_memory_pool().free_all_blocks()


def excusable(cases: list[Case]) -> list[Case]:
    """The cases as those of a peer, which may fail without ending the run."""
    return [replace(case, peer=True) for case in cases]


def of_cpu() -> list[Any]:
    """The modules with a contestant of `bench cpu`."""
    return [module(name) for name in CPU_PEERS]


def has_own_processor(device: Device) -> bool:
    """Whether kernels run outside of this process's processor; peers' kernels need that."""
    return device.kind == "cuda"
