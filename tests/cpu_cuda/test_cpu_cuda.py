"""Programs for `numba.cuda` run on the CPU device by a switch, unchanged."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest
from numba import cuda, guvectorize, vectorize
from numba.core.errors import TypingError, UnsupportedBytecodeError

import numbasync as na
from numbasync import cpu_cuda
from numbasync.errors import OperationError, OutOfBoundsError, UnsupportedKernelError
from tests import sessions
from tests.project.test_project import environment

ROOT = Path(__file__).parent.parent.parent
F32 = np.float32


@pytest.fixture(autouse=True)
def _on() -> Iterator[None]:
    with na.cuda_on_cpu():
        yield


@cuda.jit
def add(out, x, y):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i]


@cuda.jit
def shift(out, x):
    i = cuda.grid(1)
    out[i] = x[i + 1]


def test_arrays_of_host_and_device() -> None:
    x, out = np.arange(100.0), np.zeros(100)
    add[4, 32](out, x, x)
    np.testing.assert_array_equal(out, 2 * x)
    on_device = cuda.to_device(x)
    result = cuda.device_array_like(on_device)
    stream = cuda.stream()
    add[4, 32, stream](result, on_device, out)
    stream.synchronize()
    np.testing.assert_array_equal(result.copy_to_host(), 3 * x)
    np.testing.assert_array_equal(on_device.copy_to_host(), x)  # a copy of its own
    add.forall(20)(result[:20], on_device[20:40], on_device[::5])
    np.testing.assert_array_equal(result[:20].copy_to_host(), x[20:40] + x[::5])


def test_arrays_that_no_kernel_can_use_are_copied() -> None:
    fixed, out = np.arange(4.0), np.zeros(4)
    fixed.flags.writeable = False
    add[1, 4](out, fixed, fixed)
    np.testing.assert_array_equal(out, 2 * fixed)
    misaligned = np.zeros(33, np.uint8)[1:].view(np.float64)
    add[1, 4](misaligned, fixed, fixed)
    np.testing.assert_array_equal(misaligned, 2 * fixed)


def test_hints_of_the_direction_of_a_copy() -> None:
    @cuda.jit
    def count(a, b):
        a[0] += 1
        b[0] += a[0]

    a, b = np.zeros(1), np.zeros(1)
    count[1, 1](cuda.In(a), cuda.InOut(b))
    assert (a[0], b[0]) == (0, 1)


def test_declared_signatures_take_what_numba_takes() -> None:
    @cuda.jit("void(float32[:], int8)")
    def scale(a, factor):
        i = cuda.grid(1)
        if i < a.size:
            a[i] *= factor

    a = np.ones(4, F32)
    scale[1, 32](a, 257)  # its low 8 bits
    scale[1, 32](a, np.int64(-253))
    np.testing.assert_array_equal(a, F32(3))


def test_reductions_and_universal_functions() -> None:
    @cuda.reduce
    def total(a, b):
        return a + b

    @vectorize(["float64(float64, float64)"], target="cuda")
    def hypotenuse(a, b):
        return math.sqrt(a * a + b * b)

    @guvectorize(["void(float64[:], float64[:])"], "(n)->(n)", target="cuda")
    def sums(a, out):
        held = 0.0
        for i in range(a.size):
            held += a[i]
            out[i] = held

    x = np.arange(300.0)
    assert total(x) == x.sum()
    found = hypotenuse(np.full(3, 3.0), 4.0)
    assert isinstance(found, np.ndarray) and found.tolist() == [5, 5, 5]
    np.testing.assert_array_equal(sums(np.ones((2, 3))), [[1, 2, 3]] * 2)


def test_random_numbers_are_numbas() -> None:
    from numba.cuda.random import create_xoroshiro128p_states, xoroshiro128p_uniform_float32

    @cuda.jit
    def draw(states, out):
        i = cuda.grid(1)
        out[i] = xoroshiro128p_uniform_float32(states, i)

    out = np.zeros(64, F32)
    draw[2, 32](create_xoroshiro128p_states(64, seed=1), out)
    assert 0 <= out.min() < out.max() < 1 and len(set(out.tolist())) > 60


def test_what_programs_ask_of_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert cuda.is_available() and len(cuda.gpus) == 1 and cuda.detect()
    assert "CPU device" in capsys.readouterr().out
    device: Any = cuda.get_current_device()
    assert device.WARP_SIZE == 32 and device.MAX_THREADS_PER_BLOCK == 1024
    assert device.MULTIPROCESSOR_COUNT > 0 and device.MAX_GRID_DIM_Y == 65535
    assert device.TOTAL_CONSTANT_MEMORY == 65536 and device.L2_CACHE_SIZE > 0
    assert device.GLOBAL_L1_CACHE_SUPPORTED == 0 and cuda.gpus.lst[0] is device
    with pytest.raises(AttributeError, match="NO_SUCH"):
        device.NO_SUCH  # noqa: B018
    free, total = cuda.current_context().get_memory_info()
    assert 0 < free <= total
    first, second = cuda.event(), cuda.event()
    first.record()
    second.record()
    assert cuda.event_elapsed_time(first, second) >= 0


def test_no_function_of_the_host_asks_a_driver() -> None:
    from numba.cuda import api

    x, first, later = np.ones(2), cuda.event(), cuda.event()
    first.record()
    later.record()
    given: dict[str, tuple[Any, ...]] = {
        "_auto_device": (cuda.to_device(x),), "_contiguous_strides_like_array": (x,),
        "_order_like_array": (x,),
        "as_cuda_array": (x,), "device_array": (3,), "device_array_like": (x,),
        "event_elapsed_time": (first, later), "external_stream": (5,), "is_cuda_array": (x,),
        "from_cuda_array_interface": (cuda.to_device(x).__cuda_array_interface__,),
        "managed_array": (3,), "mapped": (x, x), "mapped_array": (3,), "mapped_array_like": (x,),
        "pinned": (x, x), "pinned_array": (3,), "pinned_array_like": (x,), "select_device": (0,),
        "to_device": (x,),
    }  # fmt: skip
    others = ("open_ipc_array", "prepare_shape_strides_dtype", "require_context")
    functions = {
        name: function
        for name, function in vars(api).items()
        if isinstance(function, FunctionType) and name not in others
    }
    assert given.keys() < functions.keys()
    for name, function in functions.items():
        result = function(*given.get(name, ()))
        if hasattr(result, "__enter__"):
            with result:
                pass
    context: Any = cuda.current_context()
    assert context.id == 0 and context == cuda.current_context()
    with pytest.raises(UnsupportedKernelError, match="get_ipc_handle of a context"):
        context.get_ipc_handle(0)
    with pytest.raises(UnsupportedKernelError, match="open_ipc_array"):
        api.open_ipc_array(0, 2, float)


WRONG: tuple[Any, ...] = (1.5, "x", [1, 2], object(), np.array(["a", None], object))
TAKERS: dict[str, Any] = {
    "as_cuda_array": lambda value: cuda.as_cuda_array(value),
    "event_elapsed_time": lambda value: cuda.event_elapsed_time(value, cuda.event()),
    "external_stream": lambda value: cuda.external_stream(value),
    "from_cuda_array_interface": lambda value: cuda.from_cuda_array_interface(value),
    "a launch": lambda value: add[1, 1, value],
}


@pytest.mark.parametrize("taker", TAKERS)
def test_what_is_replaced_says_what_it_takes(taker: str) -> None:
    for value in WRONG:
        with pytest.raises(OperationError, match="array|stream|event"):
            TAKERS[taker](value)


def test_a_device_that_is_not_there_is_named() -> None:
    for function in (cuda.select_device, cuda.current_context, lambda n: cuda.gpus[n]):
        with pytest.raises(IndexError, match="device 3: there is one, of number 0"):
            function(3)


def test_mistakes_are_named_where_the_program_launches() -> None:
    with pytest.raises(OutOfBoundsError, match=r"thread \(7, 0, 0\).*index 8 is out of") as error:
        shift[1, 8](np.zeros(8), np.zeros(8))
    assert "test_cpu_cuda.py" in str(error.value)

    @cuda.jit
    def wrong(a):
        a[0] = a.no_such

    with pytest.raises(TypingError, match="no_such"):
        wrong[1, 1](np.zeros(1))

    @cuda.jit
    def refuse(a):
        if a[0] == 0:
            raise ZeroDivisionError("nothing to divide by")

    with pytest.raises(ZeroDivisionError, match=r"thread \(0, 0, 0\).*nothing to divide by"):
        refuse[1, 1](np.zeros(1))
    with pytest.raises(UnsupportedKernelError, match="inspect_asm"):
        add.inspect_asm()
    with pytest.raises(UnsupportedKernelError, match="inspect_types"):
        add.inspect_types()

    @cuda.jit
    def unpacks(a):
        first, *_rest = a
        a[0] = first

    with pytest.raises(UnsupportedBytecodeError, match="UNPACK_EX"):
        unpacks[1, 1](np.zeros(2))


class Wrapped:
    """An array of a library that only has `__cuda_array_interface__`."""

    def __init__(self, array: Any) -> None:
        self.array = array

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return dict(self.array.__cuda_array_interface__)


def test_arrays_of_other_libraries_by_their_interface() -> None:
    array = cuda.to_device(np.arange(6.0).reshape(2, 3))
    again: Any = cuda.from_cuda_array_interface(array.__cuda_array_interface__)
    again[0, 0] = 9
    assert array[0, 0] == 9  # the same memory
    columns: Any = cuda.as_cuda_array(Wrapped(array[:, ::2]))
    assert columns.shape == (2, 2) and columns.strides == (24, 16)
    assert cuda.is_cuda_array(array) and cuda.is_cuda_array(Wrapped(array))
    assert not cuda.is_cuda_array(np.zeros(2))
    row = cuda.to_device(np.arange(3.0))
    add[1, 8](Wrapped(row), Wrapped(row), row)
    np.testing.assert_array_equal(row.copy_to_host(), [0, 2, 4])
    of_a_gpu: dict[str, Any] = {"shape": (2,), "typestr": "<f8", "data": (1 << 40, False)}
    with pytest.raises(OperationError, match=r"memory of a GPU.*Copy it to the host"):
        cuda.from_cuda_array_interface({**of_a_gpu, "version": 3})


def test_what_was_there_before_is_there_again() -> None:
    cpu_cuda.switch(False)
    before = {name: getattr(cuda, name) for name in ("to_device", "gpus", "stream", "jit")}
    kernel = vars(type(add)).copy()
    with na.cuda_on_cpu():
        assert cpu_cuda.is_on() and cuda.gpus is not before["gpus"]
        with na.cuda_on_cpu():
            pass
        assert cpu_cuda.is_on()
    assert not cpu_cuda.is_on()
    assert {name: getattr(cuda, name) for name in before} == before
    assert vars(type(add)).copy() == kernel


PROGRAM = """
import sys
import numpy as np
from numba.cuda import grid, jit, to_device
@jit
def double(a):
    a[grid(1)] *= 2
a = to_device(np.arange(4))
double[1, 4](a)
print(a.copy_to_host(), sys.argv[1:], __name__)
"""

TESTS = """
import numpy as np
from numba import cuda
@cuda.jit
def reverse(out, x):
    held = cuda.shared.array(8, "float32")
    t = cuda.threadIdx.x
    held[t] = x[t]
    out[t] = held[7 - t] if t < 4 else 0
def test_reverse():
    out = np.zeros(8, np.float32)
    reverse[1, 8](out, np.arange(8, dtype=np.float32))
"""


def test_the_command_runs_a_program(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    said = "from numbasync.cpu_cuda.__main__ import main; import sys; sys.argv = ['', {}]; main()"
    given = f"{str(program)!r}, 'a'"
    result = sessions.run_program(
        sys.executable, ["-c", said.format(given)], environment(), seconds=600
    )
    assert result.stdout.split("\n")[0] == "[0 2 4 6] ['a'] __main__", result.stderr
    asked = {**environment(), "NUMBASYNC_CUDA_ON_CPU": "1"}
    program.write_text(f"import numbasync{PROGRAM}")
    result = sessions.run_program(sys.executable, [str(program)], asked, seconds=600)
    assert result.stdout.split("\n")[0] == "[0 2 4 6] [] __main__", result.stderr


def test_an_option_of_pytest_finds_races_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "test_program.py").write_text(TESTS)
    options = ["-q", "-p", "numbasync.testing.plugin", "--cuda-on-cpu"]
    plain = sessions.run(sys.executable, options, environment(), tmp_path, seconds=600)
    assert "1 passed" in plain.stdout, plain.stdout
    assert "CUDA kernels on the CPU device" in plain.stdout, plain.stdout
    assert re.search(r"^1 kernel, 1 launch, 1 compilation in \d", plain.stdout, re.M)
    assert re.search(r" s  reverse, test_program.py:4$", plain.stdout, re.M), plain.stdout
    races = [*options, "--kernel-races=2"]
    found = sessions.run(sys.executable, races, environment(), tmp_path, seconds=600)
    assert "2 failed" in found.stdout or "1 failed, 1 passed" in found.stdout, found.stdout
    assert "held" in found.stdout and "cuda.syncthreads()" in found.stdout
