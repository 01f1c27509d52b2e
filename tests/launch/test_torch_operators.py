"""Kernels as PyTorch's operators, and its streams behind our work."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from numba import cuda

import numbasync as na
from numbasync.errors import LauncherError

# `opcheck` looks at the gradients of copies, too.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")

IMPORTS = """
import sys
import numbasync as na
na.torch.custom_op, na.torch.stream
assert "torch" not in sys.modules
sys.modules["torch"] = None  # as where it is not installed
try:
    na.torch.custom_op(None)
except ImportError as error:
    print(error)
"""


@na.launcher
@cuda.jit
def scaled(z: na.KernelOutput, x: na.KernelInput, y: na.KernelInput, a):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = a * x[i] * y[i]


@na.launcher
@cuda.jit
def scaled_gradient(
    grad_x: na.KernelOutput, grad_y: na.KernelOutput, grad_z: na.KernelInput, x: na.KernelInput,
    y: na.KernelInput, a,
):  # fmt: skip
    i = cuda.grid(1)
    if i < grad_x.shape[0]:
        grad_x[i] = a * y[i] * grad_z[i]
        grad_y[i] = a * x[i] * grad_z[i]


@na.launcher
@cuda.jit
def squared_gradient(grad_x: na.KernelOutput, grad_z: na.KernelInput, x: na.KernelInput):
    i = cuda.grid(1)
    if i < grad_x.shape[0]:
        grad_x[i] = 2 * x[i] * grad_z[i]


@na.launcher
@cuda.jit
def squared(z: na.KernelOutput, x: na.KernelInput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] = x[i] * x[i]


@na.launcher
@cuda.jit
def halves(low: na.KernelOutput, high: na.KernelOutput, x: na.KernelInput, y: na.KernelInput):
    i = cuda.grid(1)
    if i < low.shape[0]:
        low[i] = x[i] / 2
    if i < high.shape[0]:
        high[i] = y[i] / 2


@na.launcher
@cuda.jit
def added(z: na.KernelOutput, x: na.KernelInput):
    i = cuda.grid(1)
    if i < z.shape[0]:
        z[i] += x[i]


@na.launcher
@cuda.jit
def tiled(z: na.Tile, x: na.KernelInput):
    z[0] = x[0]


@na.launcher
@cuda.jit
def filled(z: na.KernelOutput, a):
    z[0] = a


def test_pytorch_is_imported_when_it_is_used(python_env: dict[str, str]) -> None:
    command = [sys.executable, "-c", IMPORTS]
    done = subprocess.run(command, env=python_env, capture_output=True, text=True, check=False)
    assert "pip install torch" in done.stdout, done.stderr


@pytest.fixture
def torch(device: na.Device) -> Any:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if device.kind == "cuda":
        if not torch.cuda.is_available():
            pytest.skip("PyTorch has no CUDA")
        torch.cuda.set_device(device.ordinal)
    return torch


def numbers(torch: Any, device: na.Device, n: int = 100, **how: Any) -> Any:
    place = f"cuda:{device.ordinal}" if device.kind == "cuda" else "cpu"
    return torch.rand(n, dtype=torch.float64, device=place, **how)


def test_an_operator_makes_its_output(torch: Any, device: na.Device) -> None:
    op = na.torch.custom_op(scaled, "numbasync_tests::scaled")
    x, y = numbers(torch, device), numbers(torch, device)
    assert torch.equal(op(x, y, 2.0), 2 * x * y)
    assert torch.equal(op(x, y, a=3), 3 * x * y)
    assert op(x[:0], y[:0], 2.0).shape == (0,)
    assert torch.equal(op(x[::2], y[::2], 2.0), 2 * x[::2] * y[::2])
    weights = numbers(torch, device, requires_grad=True)
    assert torch.equal(op(weights, y, 1.0), weights.detach() * y)
    assert set(torch.library.opcheck(op, (x, y, 2.0)).values()) == {"SUCCESS"}


def test_its_gradient_is_that_of_the_backward_kernel(torch: Any, device: na.Device) -> None:
    op = na.torch.custom_op(scaled, "numbasync_tests::scaled_g", backward=scaled_gradient)
    x, y = (numbers(torch, device, 8, requires_grad=True) for _ in range(2))
    op(x, y, 2.0).sum().backward()
    assert torch.equal(x.grad, 2 * y.detach()) and torch.equal(y.grad, 2 * x.detach())
    assert set(torch.library.opcheck(op, (x, y, 2.0)).values()) == {"SUCCESS"}
    assert torch.autograd.gradcheck(lambda x, y: op(x, y, 2.0), (x, y))
    square = na.torch.custom_op(squared, "numbasync_tests::squared", backward=squared_gradient)
    assert torch.autograd.gradcheck(square, (x,))


def test_it_is_a_part_of_compiled_code(torch: Any, device: na.Device) -> None:
    op = na.torch.custom_op(scaled, "numbasync_tests::scaled_c", backward=scaled_gradient)
    x, y = (numbers(torch, device, 8, requires_grad=True) for _ in range(2))
    compiled = torch.compile(
        lambda x, y: op(x + 1, y, 2.0) + 1, backend="aot_eager", fullgraph=True
    )
    result = compiled(x, y)
    assert torch.allclose(result, 2 * (x + 1) * y + 1)
    result.sum().backward()
    assert torch.allclose(x.grad, 2 * y.detach())


def test_outputs_are_like_the_inputs_that_are_named(torch: Any, device: na.Device) -> None:
    op = na.torch.custom_op(halves, "numbasync_tests::halves", like={"high": "y"})
    x, y = numbers(torch, device, 8), numbers(torch, device, 5).float()
    low, high = op(x, y)
    assert torch.equal(low, x / 2) and torch.equal(high, y / 2)
    assert set(torch.library.opcheck(op, (x, y)).values()) == {"SUCCESS"}


def test_an_operator_may_write_to_its_arguments(torch: Any, device: na.Device) -> None:
    op = na.torch.custom_op(added, "numbasync_tests::added", mutates=True)
    z, x = numbers(torch, device), numbers(torch, device)
    expected = z + x
    assert op(z, x) is None
    assert torch.equal(z, expected)
    assert set(torch.library.opcheck(op, (z, x)).values()) == {"SUCCESS"}


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: na.torch.custom_op(scaled.kernel), "takes a kernel of @na.launcher"),
        (lambda: na.torch.custom_op(tiled), "na.Tile"),
        (lambda: na.torch.custom_op(filled), "mutates=True"),
        (lambda: na.torch.custom_op(scaled, like={"w": "x"}), "'w' is unknown"),
        (lambda: na.torch.custom_op(scaled, like={"z": "a"}), "'a' is unknown"),
        (lambda: na.torch.custom_op(added, mutates=True, like={"z": "x"}), "takes no like="),
        (lambda: na.torch.custom_op(added, mutates=True, backward=added), "has no gradient"),
        (lambda: na.torch.custom_op(scaled, backward=added), "z is no parameter of the gradient"),
        (lambda: na.torch.custom_op(scaled, backward=7), "takes a kernel"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_operator_is_refused(torch: Any, make: Any, match: str) -> None:
    with pytest.raises(LauncherError, match=match):
        make()


def test_behind_the_block_pytorch_sees_the_results(torch: Any, device: na.Device) -> None:
    x, y = numbers(torch, device), numbers(torch, device)
    tensors = [na.as_tensor(t, device) for t in (torch.zeros_like(x), x, y)]
    for i in range(20):
        with na.torch.stream(device) as theirs:
            assert theirs.device is device
            scaled(*tensors, float(i)).async_on(device.new_stream())
        z = torch.from_dlpack(tensors[0])
        assert torch.equal(z, i * x * y)
    with pytest.raises(na.errors.CallerError):
        na.torch.stream(3).__enter__()  # type: ignore[arg-type]
