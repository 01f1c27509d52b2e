"""The types of launches' results, and the pickling of launchers and results.

A result is a named tuple whose type belongs to one launcher and is an attribute of that launcher,
`saxpy.Result`. Type and launcher are therefore pickled alike, by the launcher's name. Picklers that
take classes without a name by value, such as cloudpickle's, find the arguments of the launcher in
the type. The pickler decides, as for any class: classes of `__main__` and of functions go by value.
"""

from __future__ import annotations

import copyreg
import importlib
import operator
from collections import namedtuple
from functools import cache
from pickle import PicklingError
from typing import TYPE_CHECKING, Any

from numbasync.facts.source import carry_source

__all__ = ["LaunchResult", "ResultType", "register_reducers", "type_of"]


class LaunchResult(tuple[Any, ...]):
    """The result of a launch: its arguments in signature order, also by name. The base class of the
    named tuple that each kernel has.

    Examples:
        >>> result = await saxpy(na.zeros(3), 2.0, na.ones(3))
        >>> isinstance(result, na.LaunchResult), result._fields
        (True, ('z', 'a', 'x'))
        >>> z, a, x = result
        >>> z is result.z, a
        (True, 2.0)
    """

    __slots__ = ()

    if TYPE_CHECKING:  # no static type can state the fields: those of the kernel

        def __getattr__(self, name: str) -> Any: ...


class ResultType(type):
    """The class of the result types."""

    _made_of: Any  # a tuple


def result_type(
    function: Any, names: list[str], outputs: tuple[int, ...], made_of: tuple[Any, ...]
) -> ResultType:
    """The type of a launcher's results.

    Args:
        function: the kernel's Python function.
        names: of the kernel's parameters.
        outputs: the positions of the parameters that the kernel may write.
        made_of: the arguments of `Launcher`.
    """
    # `rename` replaces names that a named tuple cannot have, such as `_x`.
    named = namedtuple(function.__name__, names, rename=True)  # type: ignore[misc]  # noqa: PYI024
    bases = named, LaunchResult
    return type_of(function, "Result", bases, made_of, __slots__=(), _output_positions=outputs)


def type_of(
    function: Any, name: str, bases: tuple[type, ...], made_of: tuple[Any, ...], **attributes: Any
) -> ResultType:
    """A type that is the attribute `name` of the module-level object that stands for `function`,
    and that is used to pickle this object.
    """
    identity = {
        "__module__": function.__module__,
        "__qualname__": f"{function.__qualname__}.{name}",
    }
    return ResultType(function.__name__, bases, {**attributes, **identity, "_made_of": made_of})


def _by_name(kind: ResultType) -> tuple[Any, ...]:
    module, name = kind.__module__, kind.__qualname__
    try:
        resolved = _named(module, name)
    except (ImportError, AttributeError):
        resolved = None
    if resolved is not kind:
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
def register_reducers() -> None:
    """Make pickled kernels carry their source, and refer to Numba's own functions, such as
    `cuda.grid`, by name. Numba would pickle their code, and the analysis of a kernel's code would
    not recognise the copy.
    """
    from numbasync.kernel_names import Dispatcher, cuda

    def reduce_intrinsic(value: Any) -> Any:
        name = value._name
        if getattr(cuda, name, None) is value:
            return _of_cuda, (name,)
        return value.__reduce__()

    def reduce_dispatcher(dispatcher: Any) -> Any:
        carry_source(dispatcher.py_func)
        return dispatcher.__reduce__()

    copyreg.pickle(type(cuda.grid), reduce_intrinsic)
    copyreg.pickle(Dispatcher, reduce_dispatcher)


def _of_cuda(name: str) -> Any:
    from numbasync.kernel_names import cuda

    return getattr(cuda, name)
