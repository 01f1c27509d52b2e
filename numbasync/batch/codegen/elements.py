"""The common part of kernels whose results many threads share: the lines of an element, and of a
result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from numbasync.batch.codegen import reductions
from numbasync.batch.codegen.writer import Emitter

# A writer for the lines of neighbouring elements, given the first element's index, the suffixes of
# their names, and `"once"` (loads that all elements of a result share), `"load"`, or the first
# element's position in its row.
Each = Callable[[str, Sequence[str], str], list[str]]


def ends_of(
    emitter: Emitter, own: dict[int, reductions.Reduction], at: str, count: str
) -> list[str]:
    """The lines of the results, and of the values computed from them, for one thread.

    Args:
        at: the number of the result.
        count: the number of elements that are reduced to it.
    """
    lines: list[str] = []
    names = emitter.constants()
    for n, r in own.items():
        names[n] = emitter.name()
        lines.append(f"{names[n]} = {reductions.result(emitter, r, count)}")
    for n in emitter.outputs:
        if depends(emitter, own, n):
            scope = dict(names)
            emitter.at_results([n], emitter.nodes[n].shape, at, scope, lines)
            lines.append(emitter.store(n, at, scope[n]))
    return lines or ["pass"]


def depends(emitter: Emitter, own: dict[int, reductions.Reduction], root: int) -> bool:
    """Whether a root is one of the reductions, or is computed from them."""
    inside = set(emitter.order([root], ()))
    return any(n in own for n in inside)


def elements_of(emitter: Emitter, own: dict[int, reductions.Reduction], result: str) -> Each:
    """A writer for the lines of neighbouring elements.

    Args:
        result: the number of the result that the elements are reduced to.
    """
    nodes, shape = emitter.nodes, emitter.space.shape
    targets = [nodes[n].inputs[0] for n in own]
    wide = [n for n in emitter.outputs if not depends(emitter, own, n)]
    needed = [
        n for n in emitter.order([*targets, *wide], emitter.constants()) if n in emitter.reads
    ]
    shared: dict[int, str] = emitter.constants()
    once: list[str] = []
    for n in needed:
        is_one = emitter.steps(n, shape) == ()
        if is_one or emitter.space.aligned(nodes[n].shape):
            shared[n] = emitter.name()
            once.append(f"{shared[n]} = {emitter.load(n, '0' if is_one else result)}")
    loaded: dict[str, dict[int, str]] = {}

    def load(at: str, suffixes: Sequence[str]) -> list[str]:
        names = [dict(shared) for _ in suffixes]
        loaded.update(zip(suffixes, names, strict=True))
        new = {n: [emitter.name() for _ in suffixes] for n in needed if n not in shared}
        for n, element_names in new.items():
            for scope, name in zip(names, element_names, strict=True):
                scope[n] = name
        return emitter.elements(new, at)

    def each(at: str, suffixes: Sequence[str], what: str) -> list[str]:
        if what == "once":
            return once
        if what == "load":
            return load(at, suffixes)
        lines: list[str] = []
        for s in suffixes:
            emitter.compute([*targets, *wide], loaded[s], lines)
        lines += [emitter.store_neighbours(n, at, [loaded[s][n] for s in suffixes]) for n in wide]
        for e, s in enumerate(suffixes):
            position = f"({what} + {e})" if e else what
            for r in own.values():
                lines += reductions.take(emitter, r, loaded[s][nodes[r.node].inputs[0]], position)
        return lines

    return each
