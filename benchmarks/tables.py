"""One table of a suite: numbasync's cases and the peers', measured together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from benchmarks import peer_registry, report
from benchmarks.measure import Case, Figure, measure
from benchmarks.targets import Target
from numbasync.device.device import Device

ROUNDS = (
    "The cases take turns; medians and quartiles of {rounds} rounds after one that does not count; "
    "garbage collection off."
)


async def table(
    device: Device, rounds: int, suite: str, what: str, own: Sequence[Case], *, calls: int,
    method: str, base: str, targets: Sequence[Target] = (),
    unit: str = "host microseconds a call", sizes: Sequence[int] = (),
    derive: Callable[[Sequence[Figure]], Sequence[Figure]] | None = None, **words: object,
) -> report.Record:  # fmt: skip
    """Measure the cases of `suite`.

    Args:
        what: the table's title.
        own: numbasync's cases.
        calls: of a repetition.
        method: sentences with places for `what`, `calls`, `loop` and `words`; `ROUNDS` follows.
        base: the name of the case that ratios refer to.
        sizes: of the work, for the peers.
        derive: further figures, computed from those that were measured.
    """
    peers = peer_registry.of(suite, device, *sizes)
    measured = await measure(_side_by_side([*own, *peers.cases]), calls=calls, rounds=rounds)
    measured.missing += peers.missing
    if derive is not None:
        measured.figures += derive(measured.figures)
    text = f"{method} {ROUNDS}".format(
        **{"what": what.capitalize(), "calls": calls, "rounds": rounds, "loop": loop_name()} | words
    )
    return report.table(what, text, measured, base, targets, unit)


def _side_by_side(cases: Sequence[Case]) -> list[Case]:
    """The cases, those of the same work ("numbasync: add", "PyTorch: add") one behind the other: a
    device's clock depends on what it did last.
    """
    work = [case.name.partition(": ")[2] for case in cases]
    first = {name: work.index(name) for name in work}
    return sorted(cases, key=lambda case: first[case.name.partition(": ")[2]])


def loop_name() -> str:
    """The package of the event loop that runs."""
    return type(asyncio.get_running_loop()).__module__.split(".")[0]
