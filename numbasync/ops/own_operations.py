"""What may be wrong with an operation that a program writes: its steps, and where it runs.

The operations of this package keep to the rules, and are not checked: a class of another module is,
when it is declared, and its steps while they run.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator
from typing import Any

from numbasync.arguments import shown
from numbasync.backend.protocols import Prerequisite
from numbasync.errors import OperationError
from numbasync.ops.home import check_home

_PACKAGE = __name__.partition(".")[0]
_PART = "Write, for the value of a part:\n\n    value = yield from enqueue(ctx, op)"


def check_class(cls: type) -> None:
    """Check a subclass of `DeviceOp`, and have its steps checked when they run.

    Raises:
        OperationError: `home` is no place where an operation can run.
    """
    if cls.__module__.partition(".")[0] == _PACKAGE:
        return
    own = vars(cls)
    home = own.get("home")
    if inspect.isfunction(home):
        raise OperationError(f"{cls.__name__}.home is a method: write @property above it.")
    if not hasattr(home, "__get__"):  # a property, which is asked when the operation runs
        check_home(home, cls.__name__)
    if inspect.isfunction(own.get("steps")):
        setattr(cls, "steps", _checked(own["steps"]))  # noqa: B010 - not known to be one's own


def _checked(written: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    @functools.wraps(written)
    def steps(self: Any, ctx: Any) -> Any:
        given = written(self, ctx)
        if not isinstance(given, Generator):
            raise _no_steps(type(self).__name__, given)
        return _relay(type(self).__name__, given)

    return steps


def _relay(name: str, given: Generator[Any, Any, Any]) -> Generator[Prerequisite, None, Any]:
    """The steps, each of which is a prerequisite; one that is none is an error at its `yield`."""
    thrown: BaseException | None = None
    try:
        while True:
            need = next(given) if thrown is None else given.throw(thrown)
            thrown = None
            if not hasattr(need, "run"):
                thrown = _no_prerequisite(name, need)
                continue
            try:
                yield need
            except GeneratorExit:
                raise
            except BaseException as error:
                thrown = error
    except StopIteration as end:
        return end.value
    finally:
        given.close()
        thrown = None  # its traceback holds this frame


def _is_op(value: object) -> bool:
    return hasattr(value, "steps") and not isinstance(value, type)


def _no_steps(name: str, given: Any) -> OperationError:
    if inspect.iscoroutine(given):
        given.close()
        return OperationError(f"{name}.steps is a coroutine: write def, not async def.\n{_PART}")
    if _is_op(given):
        given.suppress_warning()  # the error says that it has not run
    return OperationError(
        f"{name}.steps gave {shown(given)}, and is no generator.\n{_PART}\n\n"
        "or, where there is none, `yield from ()` before the return."
    )


def _no_prerequisite(name: str, need: Any) -> OperationError:
    what = "which has no method run()"
    if _is_op(need):
        what = "an operation"
        need.suppress_warning()  # the error says that it has not run
    return OperationError(
        f"{name}.steps yielded {shown(need)}, {what}; only prerequisites are yielded.\n{_PART}"
    )


def no_steps_of(op: object) -> OperationError:
    """The error of an operation whose class has no steps."""
    return OperationError(
        f"{type(op).__name__} has no steps: write a generator, def steps(self, ctx), that returns "
        f"its value.\n{_PART}\n    return value"
    )
