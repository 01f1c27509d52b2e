"""`numbasync bench graph`: replaying a graph, beside the driver's own call and single launches."""

from __future__ import annotations

import numbasync as na
from benchmarks import report
from benchmarks.measure import Case, awaited, per_part, timed
from benchmarks.replayed import DEPTH, NODES, ReplayedGraph
from benchmarks.tables import table
from benchmarks.targets import Target
from benchmarks.work import CHAIN
from numbasync.device.device import Device

CALLS = 100  # launches of a repetition; a multiple of `DEPTH`

SUBMIT = "numbasync: graph of {}, launch().async_on"
BASE = "cuda.bindings: graph of {}, cuGraphLaunch"
SYNC = "numbasync: launch().sync_on"
SYNC_BASE = "cuda.bindings: cuGraphLaunch + synchronize"
METHOD = (
    "Graphs of saxpy(z[1024], f32, x[1024]), 128 threads a block, each launch after the one "
    "before; building the operation is included. Each round is {calls} launches on one stream, at "
    "most {depth} of them in its queue, which is drained outside of the timed part, except where "
    "waiting is measured; awaited on {loop}."
)
NODE_METHOD = (
    "A graph of {nodes} launches of saxpy(z[1024], f32, x[1024]), each after the one before, "
    "replayed and waited for; the time of that divided by {nodes}. {replays} replays a round, on "
    "{loop}."
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
    stream = device.new_stream()
    return [
        await table(
            device, rounds, "graph", "graph launch, host",
            [case for nodes in NODES for case in await _launches(stream, nodes)],
            calls=CALLS, method=METHOD, base=BASE.format(CHAIN), targets=TARGETS, depth=DEPTH,
        ),
        await table(
            device, rounds, "node", f"{CHAIN}-node chain, launch to synchronise, per node",
            await _nodes(stream), calls=CALLS // 5 * CHAIN, method=NODE_METHOD, base=SYNC_BASE,
            targets=NODE_TARGETS, unit="microseconds a node", nodes=CHAIN, replays=CALLS // 5,
        ),
    ]  # fmt: skip


async def _launches(stream: na.Stream, nodes: int) -> list[Case]:
    graph = await ReplayedGraph.on(stream, nodes)
    submit = timed(graph.submit, stream.synchronize, every=DEPTH)
    return [
        Case(SUBMIT.format(nodes), submit, graph.check),
        Case(
            f"numbasync: graph of {nodes}, launch().sync_on",
            timed(graph.sync, stream.synchronize), graph.check,
        ),
        Case(f"numbasync: graph of {nodes}, await launch()", awaited(graph.wait), graph.check),
    ]  # fmt: skip


async def _nodes(stream: na.Stream) -> list[Case]:
    graph = await ReplayedGraph.on(stream, CHAIN)
    sync, wait = timed(graph.sync, stream.synchronize), awaited(graph.wait)
    return [
        Case(SYNC, per_part(sync, CHAIN), graph.check),
        Case("numbasync: await launch()", per_part(wait, CHAIN), graph.check),
    ]
