"""The types of launches' results, and how launchers and results are pickled.

A result is a named tuple whose type belongs to one launcher: it can be reached as its attribute,
`saxpy.Result`. So type and launcher are pickled alike, by the launcher's name. Picklers that
take classes without a name by value, such as cloudpickle's, find what the launcher is made of in
the type. They decide, as for any class: those of `__main__` and of functions go by value.
"""

from __future__ import annotations

import copyreg
import importlib
import operator
from collections import namedtuple
from functools import cache
from pickle import PicklingError
from typing import TYPE_CHECKING, Any


class LaunchResult(tuple[Any, ...]):
    """What a launch gives: its arguments in signature order, also by name. Each kernel has a named
    tuple of its own, of which this is the base.
    """

    __slots__ = ()

    if TYPE_CHECKING:  # no type can say which fields there are: those of the kernel

        def __getattr__(self, name: str) -> Any: ...


class ResultType(type):
    """The class of these types."""

    _made_of: Any  # a tuple


def result_type(
    function: Any, names: list[str], outputs: tuple[int, ...], made_of: tuple[Any, ...]
) -> ResultType:
    """The type of a launcher's results.

    Args:
        function: the kernel's Python function.
        names: of its parameters.
        outputs: the positions of those that it may write.
        made_of: the arguments of `Launcher`.
    """
    # `rename` replaces names that a named tuple cannot have, such as `_x`.
    named = namedtuple(function.__name__, names, rename=True)  # type: ignore[misc]  # noqa: PYI024
    bases = named, LaunchResult
    return type_of(function, "Result", bases, made_of, __slots__=(), _output_positions=outputs)


def type_of(
    function: Any, name: str, bases: tuple[type, ...], made_of: tuple[Any, ...], **attributes: Any
) -> ResultType:
    """A type that is reached as the attribute `name` of what stands for `function` in its module,
    and with which that is pickled.
    """
    where = {"__module__": function.__module__, "__qualname__": f"{function.__qualname__}.{name}"}
    return ResultType(function.__name__, bases, {**attributes, **where, "_made_of": made_of})


def _by_name(kind: ResultType) -> tuple[Any, ...]:
    module, name = kind.__module__, kind.__qualname__
    try:
        found = _named(module, name)
    except (ImportError, AttributeError):
        found = None
    if found is not kind:
        raise PicklingError(
            f"kernel {name.rpartition('.')[0]} of module {module} cannot be pickled by its "
            "name, which does not lead to it.\n"
            "Define it at the top level of a module, under the name of its function; or pickle "
            "with cloudpickle, as joblib does, which sends the function itself."
        )
    return _named, (module, name)


def _named(module: str, name: str) -> Any:
    return operator.attrgetter(name)(importlib.import_module(module))


copyreg.pickle(ResultType, _by_name)


@cache
def pickle_intrinsics_by_name() -> None:
    """Make pickled kernels name Numba's own functions, such as `cuda.grid`. Numba would send their
    code, and what reads a kernel's code would not know the copy.
    """
    from numba import cuda

    def reduce(value: Any) -> Any:
        name = value._name
        if getattr(cuda, name, None) is value:
            return _of_cuda, (name,)
        return value.__reduce__()

    copyreg.pickle(type(cuda.grid), reduce)


def _of_cuda(name: str) -> Any:
    from numba import cuda

    return getattr(cuda, name)
