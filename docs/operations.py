"""For the reference: what griffe reads in the sources, as programs see it."""

from typing import Any

import griffe

from numbasync.public import NAMES

SPECIAL = ("__init__", "__call__", "__getitem__")  # methods that are shown, too


class Operations(griffe.Extension):
    """Leaves the first parameter of functions out that are decorated with `operation`: operations
    of `numbasync.tensor_cores` are shown as kernels call them. They are declared with `typing`,
    Numba's context, as the first parameter.
    """

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        if any(str(d.value) == "operation" for d in func.decorators):
            del func.parameters["typing"]


class PublicMembers(griffe.Extension):
    """Gives each public class the members that `dir` shows, also those of its base classes, and no
    others: see `numbasync.public`.
    """

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        if pkg.name != "numbasync":
            return
        # All are found before one is changed, since classes inherit from each other.
        found = {}
        for name, listed in NAMES.items():
            kind = pkg[name].final_target
            members = kind.all_members
            found[name] = kind, {n: members[n] for n in members if n in listed}
        for kind, members in found.values():
            others = [n for n in kind.members if n not in members and n not in SPECIAL]
            for name in others:
                del kind.members[name]
            kind.bases = []  # which are how it is made
            for line, (name, member) in enumerate(members.items()):
                if member.inherited:  # behind the class's own, which are in the order of the source
                    kind.members[name] = griffe.Alias(
                        name, member.final_target, parent=kind, lineno=1_000_000 + line
                    )
