"""Other libraries in the same run: who takes part in which suite, and why somebody does not.

Each has a module of its own, imported when it is asked for, with a function for each suite that
gives its cases. What fails to import, or to make ready, is reported with its reason.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field, replace

from numbasync.device.device import Device
from numbasync.tools.bench import report
from numbasync.tools.bench.measure import Case, Missing, measure, said
from numbasync.tools.bench.targets import Target

# Library, its module here, and the suites that it takes part in.
PEERS = (
    ("driver", "floor", ("launch",)),
    ("cuda.bindings", "raw", ("launch", "await", "flight", "alloc", "batch_small")),
    ("cuda.bindings", "raw_graph", ("graph", "node", "chain", "step")),
    ("Python host callback", "host_callback", ("await", "flight")),
    ("cuda.core", "core_peer", ("launch",)),
    ("Numba", "numba_peer", ("launch", "await", "flight", "alloc", "trip", "chain", "batch_host")),
    ("CuPy", "cupy_peer", ("alloc", "copy", "trip", "batch_chain")),
    ("CuPy RawKernel", "cupy_peer", ("launch", "await", "flight")),
    ("PyTorch", "torch_peer", ("launch", "alloc", "copy", "trip")),
    ("PyTorch", "torch_batches", ("batch_chain", "batch_reduce", "batch_tall")),
    ("Triton", "triton_peer", ("launch",)),
)


@dataclass(slots=True)
class Peers:
    """Cases of other libraries, and who has none."""

    cases: list[Case] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)


def of(suite: str, device: Device, *sizes: int) -> Peers:
    """The cases of one suite by everybody who can use `device`.

    Args:
        sizes: what they are about, where a suite has a table for each.
    """
    found = Peers()
    for name, module, suites in PEERS:
        if suite not in suites:
            continue
        if not has_own_processor(device):
            found.missing.append(Missing(name, "needs a GPU"))
            continue
        try:
            make = getattr(
                importlib.import_module(f"numbasync.tools.bench.peers.{module}"), f"of_{suite}"
            )
            found.cases += excusable(make(device.ordinal, *sizes))
        except Exception as error:
            found.missing.append(Missing(name, said(error)))
    return found


def excusable(cases: list[Case]) -> list[Case]:
    """The cases as those of others, which may fail without ending the run."""
    return [replace(case, peer=True) for case in cases]


def has_own_processor(device: Device) -> bool:
    """Whether kernels run elsewhere than in this process; the peers' kernels only do that."""
    return device.kind == "cuda"


async def table(
    method: str, device: Device, rounds: int, what: str, suite: str, ours: list[Case], calls: int,
    base: str, targets: tuple[Target, ...],
) -> report.Record:  # fmt: skip
    """Our cases and theirs, measured together.

    Args:
        method: how, in words, with places for `what`, `calls` and `rounds`.
    """
    others = of(suite, device)
    found = await measure([*ours, *others.cases], calls=calls, rounds=rounds)
    found.missing += others.missing
    said_how = method.format(what=what.capitalize(), calls=calls, rounds=rounds)
    return report.table(what, said_how, found, base, targets)
