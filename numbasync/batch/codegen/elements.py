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


def ends_of(made: Emitter, own: dict[int, reductions.Reduction], at: str, count: str) -> list[str]:
    """The lines of the results, and of the values computed from them, for one thread.

    Args:
        at: the number of the result.
        count: the number of elements that are reduced to it.
    """
    lines: list[str] = []
    names = made.constants()
    for n, r in own.items():
        names[n] = made.name()
        lines.append(f"{names[n]} = {reductions.result(made, r, count)}")
    for n in made.outputs:
        if depends(made, own, n):
            scope = dict(names)
            made.at_results([n], made.nodes[n].shape, at, scope, lines)
            lines.append(made.store(n, at, scope[n]))
    return lines or ["pass"]


def depends(made: Emitter, own: dict[int, reductions.Reduction], root: int) -> bool:
    """Whether a root is one of the reductions, or is computed from them."""
    inside = set(made.order([root], ()))
    return any(n in own for n in inside)


def elements_of(made: Emitter, own: dict[int, reductions.Reduction], result: str) -> Each:
    """A writer for the lines of neighbouring elements.

    Args:
        result: the number of the result that the elements are reduced to.
    """
    nodes, shape = made.nodes, made.space.shape
    targets = [nodes[n].inputs[0] for n in own]
    wide = [n for n in made.outputs if not depends(made, own, n)]
    needed = [n for n in made.order([*targets, *wide], made.constants()) if n in made.reads]
    shared: dict[int, str] = made.constants()
    once: list[str] = []
    for n in needed:
        is_one = made.steps(n, shape) == ()
        if is_one or made.space.aligned(nodes[n].shape):
            shared[n] = made.name()
            once.append(f"{shared[n]} = {made.load(n, '0' if is_one else result)}")
    loaded: dict[str, dict[int, str]] = {}

    def load(at: str, suffixes: Sequence[str]) -> list[str]:
        names = [dict(shared) for _ in suffixes]
        loaded.update(zip(suffixes, names, strict=True))
        new = {n: [made.name() for _ in suffixes] for n in needed if n not in shared}
        for n, element_names in new.items():
            for scope, name in zip(names, element_names, strict=True):
                scope[n] = name
        return made.elements(new, at)

    def each(at: str, suffixes: Sequence[str], what: str) -> list[str]:
        if what == "once":
            return once
        if what == "load":
            return load(at, suffixes)
        lines: list[str] = []
        for s in suffixes:
            made.compute([*targets, *wide], loaded[s], lines)
        lines += [made.store_neighbours(n, at, [loaded[s][n] for s in suffixes]) for n in wide]
        for e, s in enumerate(suffixes):
            position = f"({what} + {e})" if e else what
            for r in own.values():
                lines += reductions.take(made, r, loaded[s][nodes[r.node].inputs[0]], position)
        return lines

    return each
