"""`numbasync bench graph`: replaying a graph, beside the driver's own call and single launches."""

from __future__ import annotations

import numbasync as na
from numbasync.device.device import Device
from numbasync.tools.bench import chains, host_work, peer_registry, report
from numbasync.tools.bench.awaiting import loop_name
from numbasync.tools.bench.measure import Case, awaited, measure, per_part, timed
from numbasync.tools.bench.replayed import DEPTH, NODES, Replayed
from numbasync.tools.bench.targets import Target
from numbasync.tools.bench.work import CHAIN

CALLS = 100  # launches of a round; a multiple of `DEPTH`

SUBMIT = "numbasync: graph of {}, launch().async_on"
BASE = "cuda.bindings: graph of {}, cuGraphLaunch"
SYNC = "numbasync: launch().sync_on"
SYNC_BASE = "cuda.bindings: cuGraphLaunch + synchronize"
METHOD = (
    "Graphs of saxpy(z[1024], f32, x[1024]), 128 threads a block, each launch after the one "
    "before; building the operation is included. Each round is {calls} launches on one stream, at "
    "most {depth} of them in its queue, which is drained outside of the timed part, except where "
    "waiting is measured; awaited on {loop}. The cases take turns; medians and quartiles of "
    "{rounds} rounds after one that does not count; garbage collection off."
)
NODE_METHOD = (
    "A graph of {nodes} launches of saxpy(z[1024], f32, x[1024]), each after the one before, "
    "replayed and waited for; the time of that divided by {nodes}. {calls} replays a round, on "
    "{loop}. The cases take turns; medians and quartiles of {rounds} rounds after one that does "
    "not count; garbage collection off."
)
TARGETS = (
    Target(
        f"launch of a graph of {CHAIN} nodes / cuGraphLaunch",
        SUBMIT.format(CHAIN), BASE.format(CHAIN), 1.3, 1.0,
    ),
)  # fmt: skip
NODE_TARGETS = (
    Target(f"{CHAIN}-node chain, launch to synchronise / the driver's", SYNC, SYNC_BASE, 1.1, 1.0),
)


async def tables(device: Device, rounds: int) -> list[report.Record]:
    """What is reported."""
    stream = device.new_stream()
    return [
        await _launches(device, stream, rounds),
        await _nodes(device, stream, rounds),
        *await chains.tables(device, rounds),
        *await host_work.tables(device, rounds),
    ]


async def _launches(device: Device, stream: na.Stream, rounds: int) -> report.Record:
    others = peer_registry.of("graph", device)
    ours = [case for nodes in NODES for case in await _ours(stream, nodes)]
    found = await measure([*ours, *others.cases], calls=CALLS, rounds=rounds)
    found.missing += others.missing
    method = METHOD.format(calls=CALLS, depth=DEPTH, rounds=rounds, loop=loop_name())
    return report.table("graph launch, host", method, found, BASE.format(CHAIN), TARGETS)


async def _nodes(device: Device, stream: na.Stream, rounds: int) -> report.Record:
    others = peer_registry.of("node", device)
    chain = await Replayed.on(stream, CHAIN)
    cases = [
        Case(SYNC, per_part(timed(chain.sync, stream.synchronize), CHAIN), chain.right),
        Case("numbasync: await launch()", per_part(awaited(chain.wait), CHAIN), chain.right),
    ]
    calls = CALLS // 5 * CHAIN
    found = await measure([*cases, *others.cases], calls=calls, rounds=rounds)
    found.missing += others.missing
    method = NODE_METHOD.format(nodes=CHAIN, calls=calls // CHAIN, rounds=rounds, loop=loop_name())
    return report.table(
        f"{CHAIN}-node chain, launch to synchronise, per node", method, found, SYNC_BASE,
        NODE_TARGETS, "microseconds a node",
    )  # fmt: skip


async def _ours(stream: na.Stream, nodes: int) -> list[Case]:
    one = await Replayed.on(stream, nodes)
    submit = timed(one.submit, stream.synchronize, every=DEPTH)
    return [
        Case(SUBMIT.format(nodes), submit, one.right),
        Case(
            f"numbasync: graph of {nodes}, launch().sync_on",
            timed(one.sync, stream.synchronize), one.right,
        ),
        Case(f"numbasync: graph of {nodes}, await launch()", awaited(one.wait), one.right),
    ]  # fmt: skip
