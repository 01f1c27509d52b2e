"""Preconditions of a launcher: conditions on shapes and scalars, checked before a launch."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from numbasync.arguments import shown
from numbasync.errors import LauncherError, LaunchError

_ALLOWED = (
    ast.Expression, ast.Compare, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub,
    ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.Pow, ast.Div, ast.BitAnd,
    ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn, ast.Is, ast.IsNot,
    ast.Constant, ast.Name, ast.Load, ast.Attribute, ast.Subscript, ast.Tuple,
)  # fmt: skip
_ATTRIBUTES = frozenset({"shape", "size", "ndim", "dtype", "nbytes", "is_contiguous"})


class Precondition:
    """One condition, such as `"x.shape[0] % 64 == 0"` or `"a.shape[1] == b.shape[0]"`.

    Attributes:
        used: the names of the parameters that it depends on.
    """

    def __init__(self, text: str, kernel: str, names: Sequence[str]) -> None:
        self.text = text
        self._kernel = kernel
        try:
            tree = ast.parse(text, mode="eval")
        except SyntaxError as error:
            raise LauncherError(
                f"kernel {kernel}: the precondition {text!r} is no expression: {error.msg}."
            ) from None
        used = []
        for node in ast.walk(tree):
            if not isinstance(node, _ALLOWED):
                raise LauncherError(
                    f"kernel {kernel}: the precondition {text!r} uses {type(node).__name__}; it "
                    "may compare and compute with parameters, their shapes, and numbers."
                )
            if isinstance(node, ast.Attribute) and node.attr not in _ATTRIBUTES:
                raise LauncherError(
                    f"kernel {kernel}: the precondition {text!r} uses .{node.attr}; of a tensor it "
                    f"may use {', '.join(sorted(_ATTRIBUTES))}."
                )
            if isinstance(node, ast.Name):
                if node.id not in names:
                    raise LauncherError(
                        f"kernel {kernel}: the precondition {text!r} names {node.id}, which is no "
                        f"parameter; there are {', '.join(names)}."
                    )
                used.append(node.id)
        self.used = tuple(dict.fromkeys(used))
        self._code = compile(tree, f"<precondition of {kernel}>", "eval")

    def check(self, values: Mapping[str, Any]) -> None:
        """Raise LaunchError if the condition does not hold for these arguments."""
        env = {name: values[name] for name in self.used}
        try:
            holds = eval(self._code, {"__builtins__": {}}, env)  # noqa: S307 - only _ALLOWED nodes
        except Exception as error:
            raise LaunchError(
                f"kernel {self._kernel}: the precondition {self.text!r} cannot be evaluated with "
                f"{_show(env)}: {error}."
            ) from error
        if not holds:
            raise LaunchError(
                f"kernel {self._kernel}: the precondition {self.text!r} does not hold: "
                f"{_show(env)}."
            )


def conditions(texts: Iterable[str], kernel: str, names: Sequence[str]) -> tuple[Precondition, ...]:
    """The `preconditions=` of a launcher whose parameters have these names.

    Raises:
        LauncherError: `texts` is one text, or one of them is no condition on the parameters.
    """
    if isinstance(texts, str):
        raise LauncherError(
            f"kernel {kernel}: preconditions= is a list of conditions, not one text; write "
            f"preconditions=[{shown(texts)}]."
        )
    return tuple(Precondition(text, kernel, names) for text in texts)


def _show(env: Mapping[str, Any]) -> str:
    parts = []
    for name, value in env.items():
        shape = getattr(value, "shape", None)
        dtype = f" of {value.dtype}" if shape is not None else ""
        parts.append(
            f"{name} = {shown(value)}" if shape is None else f"{name}.shape = {shape}{dtype}"
        )
    return ", ".join(parts)
