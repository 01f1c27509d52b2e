"""Parts of a function's parameters: what a variable holds of them, in tuples and iterators, too."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

MOST_KEYS = 4  # of a path; `t = (t, x)` in a loop has no end


class Form(Enum):
    """The part of a parameter that a variable, or an item of it, is."""

    WHOLE = "the parameter, or a slice of it"
    ELEMENT = "what an index or a field gives: a number, or a row"
    MEMBER = "perhaps this parameter, perhaps another: one of an unknown tuple's members"


class Key(NamedTuple):
    """An item of a tuple, or of what is iterated over.

    Attributes:
        place: its position; None if it may be any.
        name: its name; empty if it may be any.
    """

    place: int | None = None
    name: str = ""


class Root(NamedTuple):
    """A part that a variable may hold.

    Attributes:
        parameter: the position of the parameter.
        path: the keys by which the variable's items lead to the part; empty if it is the part.
    """

    parameter: int
    form: Form
    path: tuple[Key, ...] = ()


def inner(outer: Form, form: Form) -> Form:
    """The form of a part `form` of an object that itself has form `outer`."""
    if Form.MEMBER in (outer, form):
        return Form.MEMBER
    return Form.ELEMENT if Form.ELEMENT in (outer, form) else Form.WHOLE


def items(roots: Iterable[Root], key: Key = Key()) -> set[Root]:  # noqa: B008 - immutable
    """What an item of a variable may hold, if the variable may hold `roots`."""
    found: set[Root] = set()
    for root in roots:
        if not root.path:
            found.add(root._replace(form=inner(root.form, Form.ELEMENT)))
        elif _may_be_same(root.path[0], key):
            found.add(root._replace(path=root.path[1:]))
    return found


def _may_be_same(a: Key, b: Key) -> bool:
    same_place = None in (a.place, b.place) or a.place == b.place
    return same_place and ("" in (a.name, b.name) or a.name == b.name)


def put(roots: Iterable[Root], *keys: Key) -> set[Root]:
    """What a tuple holds whose item `keys[0]`, or the item `keys[1]` of this ..., holds `roots`."""
    return {
        Root(root.parameter, Form.MEMBER)
        if root.form is Form.MEMBER or len(root.path) + len(keys) > MOST_KEYS
        else root._replace(path=keys + root.path)
        for root in roots
    }


def in_any_place(roots: Iterable[Root]) -> set[Root]:
    """The roots of a tuple, whose items are then in other places."""
    return put(items(roots), Key())


def of_function(passed: Root, returned: Root) -> Root:
    """What a function's result holds of an argument.

    Args:
        passed: what the argument holds.
        returned: what the result holds of the function's parameter.
    """
    part = Root(passed.parameter, inner(passed.form, returned.form))
    if passed.path and returned.form is Form.WHOLE:
        part = passed
    elif passed.path:  # an item of it, or of that
        is_element = passed.form is Form.ELEMENT and returned.form is Form.ELEMENT
        part = part._replace(form=Form.ELEMENT if is_element else Form.MEMBER)
    (result,) = put([part], *returned.path)
    return result
