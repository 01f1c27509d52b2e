"""Kernels of elementwise groups: each thread has some elements, in groups of adjacent neighbours.

All loads of a thread come before its first store, so that the loads are in flight together: this
brought a sum of arrays to the speed of a copy. The last block checks each element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from numbasync.batch.codegen.writer import WIDTH, Emitter, KernelText, indented
from numbasync.batch.fusion.groups import Group
from numbasync.batch.fusion.tuning import Tuning
from numbasync.batch.record.nodes import Nodes


def write(nodes: Nodes, group: Group, written: Iterable[int], tuning: Tuning) -> KernelText:
    """The kernel of a group without reductions."""
    emitter = Emitter(nodes, group, written, tuning)
    threads, elements = tuning.threads, tuning.in_flight(emitter.itemsize())
    tile = threads * elements
    width = 1 if elements % WIDTH else WIDTH
    size = group.space.size
    n = emitter.parameter("n", "number", size)
    inner, call = _function(emitter)
    varying = _varying(emitter)
    shared_loads = [
        f"a{k} = {emitter.load(n, '0')}" for k, n in enumerate(emitter.reads) if n not in varying
    ]

    def loads(at: str, suffixes: list[str]) -> list[str]:
        return emitter.elements({n: [f"{a}{s}" for s in suffixes] for n, a in varying.items()}, at)

    outputs = list(emitter.outputs)

    def stores(at: str, suffixes: list[str]) -> list[str]:
        if len(outputs) == 1:
            return [emitter.store_neighbours(outputs[0], at, [call(s) for s in suffixes])]
        lines = [f"{', '.join(f'r{k}{s}' for k in range(len(outputs)))} = {call(s)}"
                 for s in suffixes]  # fmt: skip
        return lines + [
            emitter.store_neighbours(o, at, [f"r{k}{s}" for s in suffixes])
            for k, o in enumerate(outputs)
        ]

    starts = range(0, elements if tuning.unroll else 0, width)
    suffixes = {s: [f"_{s + e}" for e in range(width)] for s in starts}
    full_tile = [f"i{s} = first + cuda.threadIdx.x{f' * {width}' if width > 1 else ''}"
             f"{f' + {s * threads}' if s else ''}" for s in starts]  # fmt: skip
    for s in starts:
        full_tile += loads(f"i{s}", suffixes[s])
    for s in starts:
        full_tile += stores(f"i{s}", suffixes[s])
    condition = f"first + {tile} <= {n}"
    if width > 1 and tuning.unroll:
        condition += f" and {emitter.aligned(group.space.shape)}"
    single = [
        f"for k in range(first + cuda.threadIdx.x, min(first + {tile}, {n}), {threads}):",
        *indented([*loads("k", [""]), *stores("k", [""])]),
    ]
    body = [f"first = cuda.blockIdx.x * {tile}", *shared_loads]
    if tuning.unroll:
        body += [f"if {condition}:", *indented(full_tile), "else:", *indented(single)]
    else:
        body += single
    return emitter.finish(body, -(-size // tile), threads, [inner])


def _function(emitter: Emitter) -> tuple[str, Callable[[str], str]]:
    """The device function that computes one element: its source, and a writer for its calls."""
    names = {n: f"a{k}" for k, n in enumerate(emitter.reads)} | emitter.constants()
    parameters = list(names.values())
    lines: list[str] = []
    targets = list(emitter.outputs)
    emitter.compute(targets, names, lines)
    results = ", ".join(names[n] for n in targets)
    text = "\n".join([f"def element({', '.join(parameters)}):", *indented(lines),
                      f"    return {results}", ""])  # fmt: skip
    varying = set(_varying(emitter).values())

    def call(suffix: str) -> str:
        return f"element({', '.join(f'{p}{suffix}' if p in varying else p for p in parameters)})"

    return text, call


def _varying(emitter: Emitter) -> dict[int, str]:
    """The values read that differ between elements, and their names."""
    shape = emitter.space.shape
    return {n: f"a{k}" for k, n in enumerate(emitter.reads) if emitter.steps(n, shape) != ()}
