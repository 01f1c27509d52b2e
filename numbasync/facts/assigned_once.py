"""Numba's IR with each variable assigned once, and with phis where several assignments meet.

Numba's own walk goes through all statements of a function three times for each variable that is
assigned more than once; here it goes through the blocks in which that one is named. Names, phis and
their order are the same.
"""

from __future__ import annotations

from typing import Any

__all__ = ["assign_once"]


def assign_once(blocks: dict[int, Any], ssa: Any) -> dict[int, Any]:
    """The blocks of a function, by their labels, rewritten.

    Args:
        ssa: the module that does it for one variable: `ssa` of Numba, or of numba-cuda, for blocks
            of theirs.
    """
    if not blocks:
        return {}
    flow = ssa.compute_cfg_from_blocks(blocks)
    frontiers = ssa._iterated_domfronts(flow)
    first = next(iter(blocks))  # its scope has all names
    named = {name: labels | {first} for name, labels in _assigned_twice(blocks, flow, ssa).items()}
    variables = ssa._CacheListVars()
    made = dict(blocks)
    for name, labels in named.items():
        fresh, definitions = ssa._fresh_vars({b: made[b] for b in made if b in labels}, name)
        labels |= ssa._compute_phi_locations(frontiers, definitions)
        made.update(fresh)
        part = {b: made[b] for b in made if b in labels}
        made.update(ssa._fix_ssa_vars(part, name, definitions, flow, frontiers, variables))
    return made


def _assigned_twice(blocks: dict[int, Any], flow: Any, ssa: Any) -> dict[str, set[int]]:
    """The variables that are assigned more than once, or used where no assignment has surely been,
    in the order of Numba's `_find_defs_violators`; and the labels of the blocks that name each.
    """
    assign = getattr(ssa.ir, "assign_types", ssa.ir.Assign)
    assigned: dict[str, list[int]] = {}
    used: dict[str, set[int]] = {}
    for label, block in blocks.items():
        for statement in block.body:
            target = statement.target.name if isinstance(statement, assign) else None
            if target is not None:
                assigned.setdefault(target, []).append(label)
            for variable in statement.list_vars():
                if variable.name != target:
                    used.setdefault(variable.name, set()).add(label)
    dominators = flow.dominators()
    found = [name for name, labels in assigned.items() if len(labels) > 1]
    found += [
        name
        for name, labels in used.items()
        if len(assigned.get(name, ())) < 2
        and any(dominators[label].isdisjoint(assigned.get(name, ())) for label in labels)
    ]
    return {name: {*assigned.get(name, ()), *used.get(name, ())} for name in found}
