"""Where control goes: predecessors, what reaches what, post-dominators, what is live."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from numbasync.backend.cpu.regions.instructions import Instruction

Graph = Mapping[str, Collection[str]]

END = "end"  # where every way ends: a node that no block has


def predecessors(graph: Graph) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {node: [] for node in graph}
    for node, following in graph.items():
        for other in following:
            found[other].append(node)
    return found


def reached_from(graph: Graph, starts: Iterable[str], stop: str | None = None) -> set[str]:
    """The nodes that are reached from `starts`, these included; ways end at `stop`, left out."""
    seen: set[str] = set()
    waiting = [s for s in starts if s != stop]
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting += [n for n in graph[node] if n != stop and n not in seen]
    return seen


def that_return(blocks: Mapping[str, list[Instruction]], graph: Graph) -> set[str]:
    """The blocks from which a thread can come to a return, rather than stop with an error."""
    returns = [b for b in graph if blocks[b][-1].opcode == "ret"]
    return reached_from(predecessors(graph), returns)


def reverse_postorder(graph: Graph, entry: str) -> list[str]:
    order: list[str] = []
    seen = {entry}
    stack = [(entry, iter(graph[entry]))]
    while stack:
        node, following = stack[-1]
        for other in following:
            if other not in seen:
                seen.add(other)
                stack.append((other, iter(graph[other])))
                break
        else:
            order.append(node)
            stack.pop()
    order.reverse()
    return order


def in_cycles(graph: Graph, entry: str) -> set[str]:
    """The nodes from which ways lead back to them."""
    before = predecessors(graph)
    found: set[str] = set()
    seen: set[str] = set()
    for node in reverse_postorder(graph, entry):
        around: list[str] = []  # what reaches the node, and is reached from it
        waiting = [node]
        while waiting:
            other = waiting.pop()
            if other not in seen:
                seen.add(other)
                around.append(other)
                waiting += before[other]
        if len(around) > 1 or node in graph[node]:
            found.update(around)
    return found


def dominators(graph: Graph, entry: str) -> dict[str, str]:
    """The immediate dominator of each node that is reached; the entry's is itself."""
    order = reverse_postorder(graph, entry)
    number = {node: i for i, node in enumerate(order)}
    before = predecessors({n: [s for s in graph[n] if s in number] for n in order})
    found = {entry: entry}
    changed = True
    while changed:
        changed = False
        for node in order[1:]:
            new: str | None = None
            for p in before[node]:
                if p not in found:
                    continue
                if new is None:
                    new = p
                    continue
                a, b = p, new
                while a != b:
                    while number[a] > number[b]:
                        a = found[a]
                    while number[b] > number[a]:
                        b = found[b]
                new = a
            assert new is not None  # a block that is reached has one before it
            if found.get(node) != new:
                found[node] = new
                changed = True
    return found


def dominates(tree: Mapping[str, str], above: str, node: str) -> bool:
    while node != above:
        if tree[node] == node:
            return False
        node = tree[node]
    return True


def post_dominators(graph: Graph) -> dict[str, str]:
    """The immediate post-dominator of each node; END for those behind which ways part for good.

    A node from which no way ends (an endless loop) has END, too.
    """
    backwards: dict[str, list[str]] = {**predecessors(graph), END: []}
    backwards[END] = [node for node, following in graph.items() if not following]
    found = dominators(backwards, END)
    endless = [node for node in graph if node not in found]
    if endless:  # ways from there end nowhere: nothing behind them is sure to be reached
        backwards[END] += endless
        found = dominators(backwards, END)
    return found


class Liveness:
    """Which values are still needed at the beginning of each block.

    Args:
        blocks: instructions by block.
        graph: successors of each block, of barriers those behind them.
        free: names that are known everywhere, such as parameters.
        wanted: names that each block needs besides what its instructions use.
    """

    def __init__(
        self,
        blocks: Mapping[str, list[Instruction]],
        graph: Graph,
        free: Collection[str],
        wanted: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        self._blocks, self._graph = blocks, graph
        used: dict[str, set[str]] = {}
        made: dict[str, set[str]] = {}
        out_of: dict[str, set[str]] = {b: set() for b in blocks}  # what phis take along an edge
        for block, code in blocks.items():
            use = set((wanted or {}).get(block, ()))
            have: set[str] = set()
            for instruction in code:
                if instruction.opcode == "phi":
                    for value, label in instruction.incoming:
                        if value[0] == "%" and value not in free:
                            out_of[label].add(value)
                else:
                    use.update(u for u in instruction.uses if u not in have and u not in free)
                if instruction.result:
                    have.add(instruction.result)
            used[block], made[block] = use, have
        self.at_begin: dict[str, set[str]] = {b: set() for b in blocks}
        order = list(reversed(list(blocks)))
        changed = True
        while changed:
            changed = False
            for block in order:
                live = out_of[block].union(*(self.at_begin[s] for s in graph[block]))
                live -= made[block]
                live |= used[block]
                if live != self.at_begin[block]:
                    self.at_begin[block] = live
                    changed = True

    def along(self, block: str, following: str) -> set[str]:
        """What is needed behind the edge, with what the phis behind it take."""
        taken = {
            value
            for i in self._blocks[following]
            if i.opcode == "phi"
            for value, label in i.incoming
            if label == block and value[0] == "%"
        }
        return self.at_begin[following] | taken


class NaturalLoop:
    """A loop: its header, the blocks that go back to it, and all blocks of it."""

    def __init__(self, header: str, latches: list[str], blocks: set[str]) -> None:
        self.header, self.latches, self.blocks = header, latches, blocks


def natural_loops(graph: Graph, entry: str) -> list[NaturalLoop]:
    """All loops with one header that dominates them."""
    tree = dominators(graph, entry)
    before = predecessors({b: graph[b] for b in tree})
    place = {b: n for n, b in enumerate(tree)}  # in reverse postorder
    loops = []
    for header in tree:
        back = [b for b in before[header] if place[b] >= place[header]]
        latches = [b for b in back if dominates(tree, header, b)]
        if latches:
            blocks = {header}
            waiting = list(latches)
            while waiting:
                block = waiting.pop()
                if block not in blocks:
                    blocks.add(block)
                    waiting += before[block]
            loops.append(NaturalLoop(header, latches, blocks))
    return loops
