"""Targets: bounds on the figures of a run.

Most are bounds on the ratio of two medians of one table, so of one process and one run; the others
are bounds on one median, in its unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

TITLES = ("target", "measured", "at most", "stretch", "met")


@dataclass(frozen=True, slots=True)
class Target:
    """A bound.

    Attributes:
        what: the words for what is compared.
        ours: the name of the figure that is bounded.
        base: the name of the figure that `ours` is divided by; None: `ours` itself is bounded.
        bound: the largest value that meets the target.
        stretch: the largest value that meets the more ambitious one.
    """

    what: str
    ours: str
    base: str | None
    bound: float
    stretch: float


def judge(
    targets: Sequence[Target], figures: Sequence[dict[str, Any]], missing: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Every target with its value, or with the reason why it has none."""
    by_name = {figure["name"]: figure for figure in figures}
    return [_judged(target, by_name, missing) for target in targets]


def _judged(
    target: Target, figures: dict[str, dict[str, Any]], missing: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    entry = {
        "what": target.what, "ours": target.ours, "base": target.base, "bound": target.bound,
        "stretch": target.stretch, "measured": None, "unit": "", "met": None,
        "stretch_met": None, "why": "",
    }  # fmt: skip
    for name in (target.ours, target.base):
        if name is not None and name not in figures:
            return {**entry, "why": _why(name, missing)}
    value, unit = figures[target.ours]["median"], figures[target.ours].get("unit", "us")
    if target.base is not None:
        value, unit = value / figures[target.base]["median"], ""
    return {
        **entry,
        "measured": value,
        "unit": unit,
        "met": value <= target.bound,
        "stretch_met": value <= target.stretch,
    }


def _why(name: str, missing: Sequence[dict[str, Any]]) -> str:
    reasons = {m["name"]: m["why"] for m in missing}
    return str(reasons.get(name) or reasons.get(name.split(":")[0]) or f"no {name} in this run")


def rows(judged: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """A row of text for each target, in the order of `TITLES`."""
    return [_row(j) for j in judged]


def _row(j: dict[str, Any]) -> tuple[str, ...]:
    unit = f" {j['unit']}" if j["unit"] else ""
    bounds = (f"{j['bound']:g}{unit}", f"{j['stretch']:g}{unit}")
    if j["measured"] is None:
        return (j["what"], "", *bounds, f"not measured: {j['why']}")
    met = "stretch" if j["stretch_met"] else "yes" if j["met"] else "NO"
    return (j["what"], f"{j['measured']:,.3g}{unit}", *bounds, met)
