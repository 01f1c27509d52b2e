"""Whatever is wrong with an argument, the error says so: nothing of the inside comes through."""

from __future__ import annotations

import itertools

import pytest

import numbasync as na
from tests import wrong_arguments, wrong_group_arguments
from tests.wrong_arguments import Call, OwnError, fault_of

pytestmark = pytest.mark.filterwarnings("ignore")  # operations that nothing runs; NumPy's
FEW = 3  # wrong values for an argument; `test_all_wrong_arguments` has more
COSTLY = ("do_bench", "do_bench_paired", "check_kernel", "find_race", "tune")
# Some wrong values are right for them, and each is a kernel to compile.
COMPILING = "numbasync.algorithms."


def quick(call: Call) -> bool:
    """Whether calls take little time; `test_all_wrong_arguments` makes those of the others, too."""
    costs = call.name.rpartition(".")[2] in COSTLY or call.name.startswith(COMPILING)
    return not costs


def test_functions_refuse_wrong_arguments(device: na.Device) -> None:
    calls = filter(quick, wrong_arguments.functions())
    made, found = wrong_arguments.faults(calls, FEW, device)
    assert made > 750 and not found, "\n".join(found)


def test_methods_refuse_wrong_arguments(device: na.Device) -> None:
    calls = filter(quick, wrong_arguments.methods(device))
    made, found = wrong_arguments.faults(calls, FEW, device)
    assert made > 375 and not found, "\n".join(found)


def test_functions_of_a_group_refuse_wrong_arguments(device: na.Device) -> None:
    made, found = wrong_arguments.faults(wrong_group_arguments.calls(), 57, device)
    assert made > 1200 and not found, "\n".join(found)


def test_names_are_found_by_themselves(device: na.Device) -> None:
    names = {call.name for call in itertools.chain(
        wrong_arguments.functions(), wrong_arguments.methods(device)
    )}  # fmt: skip
    assert names >= {
        "numbasync.zeros", "numbasync.Event", "numbasync.StreamPoolRoundRobin", "Tensor.partition",
        "numbasync.testing.check_kernel", "numbasync.collective.all_reduce", "CommandBatch.clamp",
        "numbasync_kernels.nn.gemm", "numbasync_kernels.image.sobel", "Launcher.__call__",
    }  # fmt: skip


@pytest.mark.parametrize(
    "error", [AttributeError("x"), IndexError("x"), OverflowError("x"), RecursionError("x"),
              na.errors.InternalError("x"), na.errors.ShapeError(""), ValueError("x")],
)  # fmt: skip
def test_errors_of_the_inside_are_faults(error: Exception) -> None:
    assert fault_of(error) is not None


def test_errors_of_a_caller_are_none() -> None:
    assert fault_of(na.errors.ShapeError("x")) is None and fault_of(OwnError()) is None
    with pytest.raises(TypeError) as caught:
        na.zeros()  # type: ignore[call-arg]  # Python's own
    assert fault_of(caught.value) is None
