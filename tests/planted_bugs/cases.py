"""A kernel, what it is given, and what it is to give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from numbasync.testing import check_kernel


@dataclass(frozen=True)
class Case:
    """A test of a kernel, as one line of a list.

    Attributes:
        options: of `check_kernel`.
    """

    kernel: Any
    args: Sequence[Any]
    reference: Callable[..., Any]
    options: dict[str, Any] = field(default_factory=dict)

    def __init__(self, kernel: Any, args: Any, reference: Any, **options: Any) -> None:
        for name, value in (
            ("kernel", kernel), ("args", args), ("reference", reference), ("options", options),
        ):  # fmt: skip
            object.__setattr__(self, name, value)

    @property
    def name(self) -> str:
        return str(self.kernel.py_func.__name__)

    def check(self) -> None:
        check_kernel(self.kernel, self.args, self.reference, **self.options)
