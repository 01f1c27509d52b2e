"""Kernels of elementwise groups: each thread has some elements, a block's width apart.

All loads of a thread come before its first store, so that they are in flight together: what
brought a sum of arrays to the speed of a copy. The last block looks at each element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from numbasync.batch.emit import Emitter, KernelText, Tuning, indented
from numbasync.batch.fuse import Group
from numbasync.batch.graph import Nodes
from numbasync.batch.space import Step
from numbasync.layout import Shape


def write(nodes: Nodes, group: Group, written: Iterable[int], tuning: Tuning) -> KernelText:
    """The kernel of a group without reductions."""
    made = Emitter(nodes, group, written, tuning)
    threads, elements = tuning.threads, tuning.elements
    size = group.space.size
    n = made.parameter("n", "number", size)
    inner, call = _function(made)
    once, each = _loads(made, group.space.shape)
    outputs = list(made.outputs)

    def stores(at: str, suffix: str) -> list[str]:
        if len(outputs) == 1:
            return [made.store(outputs[0], at, call(suffix))]
        names = [f"r{k}{suffix}" for k in range(len(outputs))]
        return [
            f"{', '.join(names)} = {call(suffix)}",
            *(made.store(o, at, name) for o, name in zip(outputs, names, strict=True)),
        ]

    first = f"i = cuda.blockIdx.x * {threads * elements} + cuda.threadIdx.x"
    body = [first, *once]
    if elements > 1:
        last = f"i + {(elements - 1) * threads}"
        body.append(f"if {last} < {n}:")
        whole: list[str] = []
        places = ["i"] + [f"i{k}" for k in range(1, elements)]
        whole += [f"{places[k]} = i + {k * threads}" for k in range(1, elements)]
        for k, at in enumerate(places):
            whole += each(at, f"_{k}")
        for k, at in enumerate(places):
            whole += stores(at, f"_{k}")
        body += indented(whole)
        body += ["else:", f"    for k in range(i, {n}, {threads}):"]
        body += indented(indented([*each("k", ""), *stores("k", "")]))
    else:
        body.append(f"if i < {n}:")
        body += indented([*each("i", ""), *stores("i", "")])
    return made.finish(body, -(-size // (threads * elements)), threads, [inner])


def _function(made: Emitter) -> tuple[str, Callable[[str], str]]:
    """The device function that computes one element: its text, and what calls it."""
    names = {n: f"a{k}" for k, n in enumerate(made.reads)} | made.constants()
    parameters = list(names.values())
    lines: list[str] = []
    targets = list(made.outputs)
    made.compute(targets, names, lines)
    results = ", ".join(names[n] for n in targets)
    text = "\n".join([f"def element({', '.join(parameters)}):", *indented(lines),
                      f"    return {results}", ""])  # fmt: skip
    loaded = len(made.reads)

    def call(suffix: str) -> str:
        shown = [f"{p}{suffix}" if k < loaded and p in _varying(made) else p
                 for k, p in enumerate(parameters)]  # fmt: skip
        return f"element({', '.join(shown)})"

    return text, call


def _varying(made: Emitter) -> set[str]:
    """Names of the loads that differ between elements."""
    shape = made.space.shape
    return {f"a{k}" for k, n in enumerate(made.reads) if made.steps(n, shape) != ()}


def _loads(made: Emitter, shape: Shape) -> tuple[list[str], Callable[[str, str], list[str]]]:
    """Loads of what all elements have in common, and what writes those of one element."""
    once: list[str] = []
    plain: list[tuple[str, int]] = []
    placed: dict[tuple[Step, ...], tuple[list[str], list[tuple[str, int]]]] = {}
    for k, n in enumerate(made.reads):
        found = made.steps(n, shape)
        if found is None:
            plain.append((f"a{k}", n))
        elif not found:
            once.append(f"a{k} = {made.load(n, '0')}")
        elif found in placed:
            placed[found][1].append((f"a{k}", n))
        else:
            placed[found] = made.numbers(found), [(f"a{k}", n)]

    def each(at: str, suffix: str) -> list[str]:
        lines = [f"{name}{suffix} = {made.load(n, at)}" for name, n in plain]
        for p, (found, (numbers, loads)) in enumerate(placed.items()):
            lines.append(f"p{p}{suffix} = {made.index(found, numbers, at)}")
            lines += [f"{name}{suffix} = {made.load(n, f'p{p}{suffix}')}" for name, n in loads]
        return lines

    return once, each
