"""Floating-point operations in PTX: how many one thread executes on its way through a kernel.

The figure is of the path that has the most operations, where the body of a loop counts once: the
number of repetitions is not in the code.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

# A definition with a body; declarations end with a semicolon instead.
_FUNCTION = re.compile(
    r"^[^\n/]*\.(entry|func)\b\s*(?:\([^)]*\)\s*)?([\w$.%]+)[^{;]*?\n\{\n(.*?)^\}", re.M | re.S
)
_NO_CODE = re.compile(r"//[^\n]*|^\s*\.loc\b[^\n]*", re.M)  # comments, and positions in the source
_STATEMENT = re.compile(r";|:\s*\n")
_LABEL = re.compile(r"\$[\w$]+")
_CALL = re.compile(r"(?:@!?%?\w+\s+)?call(?:\.uni)?\s+(?:\([^)]*\)\s*,\s*)?([\w$.%]+)")
_LEAVES = re.compile(r"(ret|exit|trap|bra|brx\.idx)\b")  # without a predicate: never falls through
_ARITHMETIC = re.compile(
    r"(?:@!?%?\w+\s+)?(fma|mad|add|sub|mul|div|rcp|sqrt|rsqrt|sin|cos|tanh|ex2|lg2)"
    r"(?:\.\w+)*?\.(b?f16|f32|f64)(x2)?\b"
)
_TYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}

Flops = Counter[str]


@dataclass(slots=True)
class _Block:
    """A stretch of code without branches."""

    flops: Flops = field(default_factory=Counter)
    calls: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)  # to which it may branch
    falls_through: bool = True


def count_flops(ptx: str) -> tuple[dict[str, int], bool]:
    """The operations of the kernel in a PTX text, by type; an fma counts two, any other one.

    Returns:
        The operations, and whether they are a lower bound: the kernel repeats code, or calls
            functions that are not in the text.
    """
    text = _NO_CODE.sub("", ptx)
    functions = {m[2]: (m[1], m[3]) for m in _FUNCTION.finditer(text)}
    known: dict[str, tuple[Flops, bool]] = {}

    def of_function(name: str) -> tuple[Flops, bool]:
        if name not in functions:
            return Counter(), True
        if name not in known:
            known[name] = Counter(), True  # for a function that calls itself
            blocks, successors = _graph(functions[name][1])
            repeats = False
            for block in blocks:
                for callee in block.calls:
                    flops, again = of_function(callee)
                    block.flops += flops
                    repeats |= again
            flops, again = _longest([b.flops for b in blocks], successors)
            known[name] = flops, repeats or again
        return known[name]

    entries = [name for name, (form, _) in functions.items() if form == "entry"]
    if not entries:
        return {}, True
    flops, repeats = of_function(entries[0])
    return dict(flops), repeats


def _graph(body: str) -> tuple[list[_Block], list[list[int]]]:
    """The blocks of a function's body, and for each block the blocks that may follow it."""
    blocks, places = [_Block()], dict[str, int]()
    for statement, is_label in _statements(body):
        if is_label:
            blocks.append(_Block())
            places[statement] = len(blocks) - 1
            continue
        block = blocks[-1]
        if match := _ARITHMETIC.match(statement):
            operation, form, pair = match.groups()
            count = (2 if operation in ("fma", "mad") else 1) * (2 if pair else 1)
            block.flops[_TYPES[form]] += count
        elif match := _CALL.match(statement):
            block.calls.append(match[1])
        block.labels += _LABEL.findall(statement)
        block.falls_through = _LEAVES.match(statement) is None
        if not block.falls_through or block.labels:
            blocks.append(_Block())
    successors = [
        [places[label] for label in b.labels if label in places]
        + ([i + 1] if b.falls_through and i + 1 < len(blocks) else [])
        for i, b in enumerate(blocks)
    ]
    return blocks, successors


def _statements(body: str) -> Iterator[tuple[str, bool]]:
    """The statements of a body, and whether each is a label."""
    start = 0
    for end in _STATEMENT.finditer(body):
        statement = body[start : end.start()].strip().lstrip("{}").strip()
        start = end.end()
        yield statement, end[0] != ";"


def _longest(flops: list[Flops], successors: list[list[int]]) -> tuple[Flops, bool]:
    """The operations on the longest path from the first block, each cycle taken once; and whether
    there is a cycle.
    """
    order = _in_postorder(successors)
    predecessors: dict[int, list[int]] = {node: [] for node in order}
    for node in order:
        for follower in successors[node]:
            predecessors[follower].append(node)
    # Cycles by Kosaraju's algorithm, which finds them in topological order: S. R. Kosaraju, 1978.
    component: dict[int, int] = {}
    best: dict[int, Flops] = {}
    has_cycle = False
    for root in reversed(order):
        if root in component:
            continue
        members, waiting = [], [root]
        while waiting:
            node = waiting.pop()
            if node not in component:
                component[node] = root
                members.append(node)
                waiting += [p for p in predecessors[node] if p not in component]
        has_cycle |= len(members) > 1 or root in successors[root]
        before = [
            best[component[p]] for m in members for p in predecessors[m] if component[p] != root
        ]
        own = sum((flops[m] for m in members), Flops())
        best[root] = own + max(before, key=Counter.total, default=Flops())
    return max(best.values(), key=Counter.total), has_cycle


def _in_postorder(successors: list[list[int]]) -> list[int]:
    """The blocks that can be reached, each behind those that only it leads to."""
    seen, order, path = {0}, list[int](), [(0, iter(successors[0]))]
    while path:
        node, followers = path[-1]
        following = next((f for f in followers if f not in seen), None)
        if following is None:
            order.append(node)
            path.pop()
        else:
            seen.add(following)
            path.append((following, iter(successors[following])))
    return order
