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
    twice = dict.fromkeys(ssa._find_defs_violators(blocks, flow))
    named: dict[str, set[int]] = {name: {next(iter(blocks))} for name in twice}  # for its scope
    for label, block in blocks.items():
        for statement in block.body:
            for variable in statement.list_vars():
                if variable.name in named:
                    named[variable.name].add(label)
    variables = ssa._CacheListVars()
    made = dict(blocks)
    for name, labels in named.items():
        fresh, definitions = ssa._fresh_vars({b: made[b] for b in made if b in labels}, name)
        labels |= ssa._compute_phi_locations(frontiers, definitions)
        made.update(fresh)
        part = {b: made[b] for b in made if b in labels}
        made.update(ssa._fix_ssa_vars(part, name, definitions, flow, frontiers, variables))
    return made
