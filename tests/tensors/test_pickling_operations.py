"""Operations that are pickled, and unpickled here or in another process."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

import numbasync as na
from numbasync.errors import AlreadySubmittedError
from numbasync.ops.op import Shared
from numbasync.testing import counters
from tests import sessions
from tests.common import host, saxpy


def again(thing: Any, protocol: int = pickle.HIGHEST_PROTOCOL) -> Any:
    return pickle.loads(pickle.dumps(thing, protocol))


def twice(t: na.Tensor) -> Any:
    return saxpy(t, 1.0, t.dup()).output()


def five() -> na.DeviceOp[int]:
    return na.value(5)


OPERATIONS: dict[str, Callable[[], na.DeviceOp[Any]]] = {
    "zeros": lambda: na.zeros(8),
    "zeros of records": lambda: na.zeros(2, [("a", "i4")]),
    "full": lambda: na.full((2, 3), 7, np.int8),
    "arange": lambda: na.arange(1, 9, 2),
    "linspace": lambda: na.linspace(0, 1, 5),
    "eye": lambda: na.eye(2, 3),
    "rand": lambda: na.rand(8),
    "randn": lambda: na.randn((2, 3), 1.0, 2.0),
    "from_host": lambda: na.from_host(np.arange(6).reshape(2, 3)[:, ::2]),
    "value": lambda: na.value((1, 2)).last(),
    "pitched": lambda: na.ones((2, 3)).then(na.dup),
    "defer": lambda: na.defer(five).map(abs),
    "to_host": lambda: na.arange(3).sync().to_host(),
    "dup": lambda: na.arange(3).sync().dup(),
    "convert": lambda: na.convert(na.arange(3).sync(), np.int32),
    "fill": lambda: na.fill(na.arange(3).sync(), 7),
    "memcpy": lambda: na.memcpy(na.zeros(3).sync(), na.ones(3).sync()),
    "launch": lambda: saxpy(na.ones(8).sync(), 2.0, na.arange(8).sync()).output(),
    "launch of operations": lambda: (
        saxpy(na.ones(8).partition(4), 2.0, na.arange(8)).output().unpartition().to_host()
    ),
    "explicit grid": lambda: saxpy[3, 4](na.ones(8), 2, np.arange(8, dtype="f4")).output(),
    "forall": lambda: saxpy.forall(8)(na.ones(8), 2, np.arange(8, dtype="f4")).output(),
    "compile": lambda: saxpy.compile(na.meta(1), 1.0, na.meta(1)),
    "chain": lambda: na.arange(4).then(twice).then(twice).inspect(repr).reshape(2, 2).dup(),
    "zip": lambda: na.zip(na.ones(2), na.zeros(3), na.value(4)).first(),
    "shared": lambda: na.arange(4).shared(),
    "unzip": lambda: na.zip(na.ones(2), na.zeros(3)).unzip()[1],
    "astype": lambda: na.arange(3).astype(np.int32),
    "item": lambda: na.ones(1).item(),
    "concatenate": lambda: na.concatenate([na.ones(2).sync(), na.zeros(3).dup(), np.arange(2)]),
    "stack": lambda: na.stack((na.ones(2), na.zeros(2)), axis=1),
    "random_states": lambda: na.random_states(3, 7, 2),
}  # fmt: skip


@pytest.mark.parametrize("make", OPERATIONS.values(), ids=OPERATIONS)
def test_an_operation_is_what_it_is_made_of(
    device: na.Device, make: Callable[[], na.DeviceOp[Any]]
) -> None:
    for pickled in (again, copy.deepcopy):
        op = make()
        before = counters()
        found = pickled(op)
        done = counters() - before
        assert (done.launches, done.compiles) == (0, 0)
        assert str(found) == str(op) and type(found) is type(op)
        value, mine = found.sync(), op.sync()  # the original may run all the same
        if isinstance(mine, na.Tensor):
            value, mine = host(value), host(mine)
        np.testing.assert_array_equal(value, mine)
        if not isinstance(op, Shared):
            with pytest.raises(AlreadySubmittedError):
                found.sync()


def test_a_launch_is_unpickled_without_callers(
    device: na.Device, python: str, python_env: dict[str, str]
) -> None:
    """At the top level of a script, where nobody calls who unpickles."""
    op = saxpy(na.ones(2), 2.0, np.arange(2, dtype="f4")).output().to_host()
    script = f"import pickle\nprint(pickle.loads({pickle.dumps(op)!r}).sync())"
    env = {**python_env, "NUMBASYNC_DEVICE": device.kind}
    done = sessions.run_program(python, ["-c", script], env, seconds=600)
    assert (done.stdout, done.stderr) == ("[1. 3.]\n", "")
    op.suppress_warning()


def test_a_shared_operation_runs_once_where_it_comes() -> None:
    halves = na.zip(na.ones(2), na.zeros(3)).unzip()
    one, two = again(halves)
    before = counters()
    assert (one.sync().shape, two.sync().shape) == ((2,), (3,))
    assert (counters() - before).allocations == 2
    [h.sync() for h in halves]
    shared = na.zeros(3).shared()
    whole = shared.then(na.dup)  # others may hold it, too, as long as it has not run
    alone, with_it = again((shared, whole))
    assert with_it.sync().shape == alone.sync().shape == (3,)
    whole.sync()


def test_the_numbers_of_this_process_stay_here(device: na.Device) -> None:
    """Fingerprints stand for shapes, and for others in every process."""
    t = na.zeros(8).sync()
    part, op = t.partition(4), cast("Any", na.zeros(8))
    assert part.fingerprint >= 0 and op._kind.fingerprint >= 0
    copied = again(op)
    found, kind = again(part), copied._kind
    copied.suppress_warning()
    assert found._fingerprint == kind._fingerprint == -1 and kind.nbytes == t.nbytes
    assert found.fingerprint == part.fingerprint  # here they stand for the same


def test_what_has_run_is_refused(device: na.Device) -> None:
    ran, part, shared = na.zeros(3), na.ones(3), na.ones(3).shared()
    ran.sync()
    whole = part.then(na.dup)
    shared.sync()
    for op in (ran, part, shared):
        with pytest.raises(AlreadySubmittedError, match=r"pickled(.|\n)*Pickle its result"):
            pickle.dumps(op)
    again(whole).sync()
    with pytest.raises(TypeError, match=r"op\.shared\(\)"):
        copy.copy(whole)
    whole.sync()


def test_what_was_sent_elsewhere_needs_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = pickle.dumps(na.zeros(3).then(na.dup))
    with pytest.warns(RuntimeWarning, match="never awaited"):
        pickle.loads(data)
