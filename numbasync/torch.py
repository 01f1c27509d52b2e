"""PyTorch beside kernels: its current stream behind their work, and kernels as its operators.

PyTorch is imported where a function here is first called, and not before. PyTorch's tensors are
arguments of every kernel, without any of this: a launch comes behind what PyTorch has enqueued.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

from numbasync.arguments import shown, with_type
from numbasync.backend.array_readers import reader_of
from numbasync.device import foreign_streams
from numbasync.device import stream as streams
from numbasync.device.device import Device, chosen_device, default_device, devices
from numbasync.device.stream import Stream
from numbasync.errors import LauncherError
from numbasync.launch.callers_launch import CallersLaunch
from numbasync.launch.launcher import Launcher
from numbasync.launch.parameters import Parameter, Role
from numbasync.launch.plan import DEFAULT
from numbasync.tensors.import_array import as_tensor

__all__ = ["custom_op", "stream"]


def _pytorch() -> Any:
    try:
        return import_module("torch")
    except ImportError as error:
        raise ImportError(
            f"na.torch needs PyTorch, which cannot be imported: {error}\npip install torch"
        ) from error


# --- streams ---------------------------------------------------------------------------------


@contextmanager
def stream(device: Device | None = None) -> Iterator[Stream]:
    """A block behind which PyTorch sees the results: at its end, PyTorch's current stream is put
    behind all work that numbasync has enqueued on the device, by events. The host does not wait.

    ```python
    with na.torch.stream():
        na.spawn(add(z, x, y))    # on a stream of the policy, behind PyTorch's work on x and y
    print(z.sum())                # behind the launch
    ```

    Gives PyTorch's current stream as a `Stream`, for `op.async_on(s)`: work there is in PyTorch's
    order anyway. On a CPU device, where PyTorch has no streams, the block ends when the device's
    work is done.

    Args:
        device: the GPU; default: the default device.

    Raises:
        StateError: PyTorch captures its stream for a graph; see `@na.launcher(stream="caller")`.
        CallerError: `device` is no device.

    Examples:
        >>> z = await na.zeros(3)
        >>> with na.torch.stream():
        ...     future = na.spawn(saxpy(z, 2.0, na.ones(3)))
        >>> await z.to_host()  # the block has put PyTorch's stream behind the launch
        array([2., 2., 2.], dtype=float32)
    """
    device = default_device() if device is None else chosen_device(device, "na.torch.stream")
    if device not in devices("cuda"):
        try:
            yield device.new_stream()
        finally:
            device.synchronize()
        return
    theirs = _current_stream(device)
    try:
        yield theirs
    finally:
        streams.before_signal()  # operations that wait in the thread's submission queue
        for ours in device.streams:
            if ours is not theirs and ours.in_flight_count:
                theirs.wait_for(ours)


def _current_stream(device: Device) -> Stream:
    reader = reader_of(_pytorch().Tensor)
    if reader is None:  # of before DLPack 1.3
        return Stream.of(_pytorch().cuda.current_stream(device.ordinal), device)
    number, owner = reader.library.current(device.ordinal)
    assert number is not None  # PyTorch has a current stream
    return foreign_streams.stream_of_number(device, number, owner)


# --- operators -------------------------------------------------------------------------------


class _Call(NamedTuple):
    """How an operator calls its kernel.

    Attributes:
        kernel: the launcher.
        arguments: the operator's, by name, in order; True: a tensor.
        like: for each output that the operator makes, the argument whose shape and dtype it has.
        is_mutating: the operator writes to outputs that are among its arguments.
    """

    kernel: Launcher[Any]
    arguments: dict[str, bool]
    like: dict[str, str]
    is_mutating: bool

    def schema(self) -> str:
        outputs = {p.name for p in self.kernel.parameters if p.is_output}
        texts = []
        for i, (name, is_tensor) in enumerate(self.arguments.items()):
            written = f"(a{i}!)" if self.is_mutating and name in outputs else ""
            texts.append(f"Tensor{written} {name}" if is_tensor else f"Scalar {name}")
        count = len(self.like)
        returned = "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"
        return f"({', '.join(texts)}) -> {returned}"

    def made(self, torch: Any, values: dict[str, Any]) -> dict[str, Any]:
        """New outputs, in the shape, dtype and place of what they are like."""
        return {
            name: torch.empty_like(values[given], memory_format=torch.contiguous_format)
            for name, given in self.like.items()
        }

    def run(self, torch: Any, values: dict[str, Any]) -> Any:
        made = self.made(torch, values)
        values = {k: v.detach() if self.arguments[k] else v for k, v in values.items()} | made
        given = tuple(values[p.name] for p in self.kernel.parameters)
        if any(v.numel() for v in made.values()) or not made:
            _launch(torch, self.kernel, given)
        return self.returned(made)

    def returned(self, made: dict[str, Any]) -> Any:
        outputs = tuple(made.values())
        return outputs[0] if len(outputs) == 1 else outputs or None


def _launch(torch: Any, kernel: Launcher[Any], values: tuple[Any, ...]) -> None:
    """Launch on PyTorch's current stream; of host tensors on the CPU device, to its end."""
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    if all(t.is_cuda for t in tensors):
        CallersLaunch(kernel, values, DEFAULT).async_on()
        return
    cpu = devices("cpu")[0]
    own = tuple(as_tensor(v, cpu) if isinstance(v, torch.Tensor) else v for v in values)
    kernel(*own).sync_on(cpu.policy.next_stream())


def custom_op(
    kernel: Launcher[Any],
    name: str | None = None,
    *,
    like: Mapping[str, str] | None = None,
    mutates: bool = False,
    backward: Launcher[Any] | None = None,
) -> Any:
    """A kernel as an operator of `torch.library`: PyTorch calls it with its tensors, also in
    compiled code (`torch.compile`) and in graphs that it captures.

    The operator takes what the kernel reads, by name or in order, and returns what the kernel
    writes, in new tensors: `add = na.torch.custom_op(add_kernel)`, then `z = add(x, y)`. It runs on
    PyTorch's current stream; with tensors in host memory on the CPU device, until its end.

    Args:
        kernel: of `@na.launcher`, with whole arrays as parameters, and numbers.
        name: in PyTorch, `"library::operator"`; default: `"numbasync::"` and the kernel's name.
        like: for outputs, the input of which each has shape and dtype; default: the first one.
        mutates: the operator takes the outputs, too, and writes to them; it returns nothing, and
            has no gradient.
        backward: the kernel that computes gradients. Its outputs are named `grad_` and an input;
            it reads what is named as an input or output of `kernel`, and `grad_` and an output.
            Inputs of which it writes no gradient have none.

    Raises:
        LauncherError: the kernel has tiles, or writes nothing; or a name fits no parameter.
        ImportError: PyTorch is not installed.

    Examples:
        >>> import torch
        >>> @na.launcher
        ... @cuda.jit
        ... def scaled(z: na.KernelOutput, x: na.KernelInput, a: float):
        ...     i = cuda.grid(1)
        ...     if i < z.shape[0]:
        ...         z[i] = a * x[i]
        >>> scale = na.torch.custom_op(scaled, "mine::scale")
        >>> scale(torch.ones(3), 2.0)
        tensor([2., 2., 2.])
    """
    torch = _pytorch()
    for given in (kernel, backward):
        if not isinstance(given, Launcher) and not (given is None and given is backward):
            raise LauncherError(
                f"na.torch.custom_op takes a kernel of @na.launcher, not {with_type(given)}."
            )
    call = _call_of(kernel, like, mutates)
    if backward is not None and mutates:
        raise LauncherError(
            f"kernel {kernel.name}: an operator that writes to its arguments has no gradient; "
            "leave mutates out, and it makes its outputs."
        )
    qualified = name or f"numbasync::{kernel.name}"
    operator = _operator(torch, qualified, call)
    if backward is not None:
        _differentiate(torch, qualified, operator, call, backward)
    return operator


def _operator(torch: Any, name: str, call: _Call) -> Any:
    names = tuple(call.arguments)
    written = [p.name for p in call.kernel.parameters if p.is_output] if call.is_mutating else ()

    def run(*values: Any) -> Any:
        return call.run(torch, dict(zip(names, values, strict=True)))

    def meta(*values: Any) -> Any:
        return call.returned(call.made(torch, dict(zip(names, values, strict=True))))

    operator = torch.library.custom_op(name, run, mutates_args=written, schema=call.schema())
    operator.register_fake(meta)
    return operator


def _call_of(kernel: Launcher[Any], like: Mapping[str, str] | None, mutates: bool) -> _Call:
    parameters = kernel.parameters
    for p in parameters:
        if p.role is Role.TILE:
            raise LauncherError(
                f"kernel {kernel.name}: {p.name} is a na.Tile, which no tensor of PyTorch is; "
                "declare it na.KernelOutput, and index it by cuda.grid."
            )
    outputs = [p.name for p in parameters if p.is_output]
    if not outputs:
        raise LauncherError(f"kernel {kernel.name} writes nothing, so its operator gives nothing.")
    taken = {p.name: _is_tensor(p) for p in parameters if mutates or not p.is_output}
    tensors = [name for name, is_tensor in taken.items() if is_tensor]
    wanted = dict(like or {})
    unknown = [n for n in wanted if n not in outputs] + [
        n for n in wanted.values() if n not in tensors
    ]
    if unknown or (mutates and wanted):
        what = "mutates=True takes no like=" if mutates else f"{shown(unknown[0])} is unknown"
        raise LauncherError(
            f"kernel {kernel.name}: {what}; like= names an output ({', '.join(outputs)}) and the "
            f"input that it is like ({', '.join(tensors)})."
        )
    if not mutates and not tensors:
        raise LauncherError(
            f"kernel {kernel.name} reads no array, so nothing says the shape of its outputs: "
            "pass them, na.torch.custom_op(kernel, mutates=True)."
        )
    made = {} if mutates else {name: wanted.get(name, tensors[0]) for name in outputs}
    return _Call(kernel, taken, made, mutates)


def _is_tensor(p: Parameter) -> bool:
    return p.role in (Role.INPUT, Role.OUTPUT) or (p.role is Role.ANY and not p.is_number)


# --- gradients -------------------------------------------------------------------------------

_GRADIENT = "grad_"


def _differentiate(
    torch: Any, name: str, operator: Any, call: _Call, backward: Launcher[Any]
) -> None:
    """Register the gradient of an operator. The backward kernel is an operator, too, so that
    PyTorch's compiler sees through neither; it also takes what only gives its outputs their shape.
    """
    outputs = list(call.like)
    known = {**call.arguments, **dict.fromkeys(outputs, True)}
    known |= {_GRADIENT + output: True for output in outputs}
    made, read = {}, {}
    for p in backward.parameters:
        about = p.name.removeprefix(_GRADIENT)
        if p.is_output and p.name != about and call.arguments.get(about):
            made[p.name] = about
        elif not p.is_output and p.name in known:
            read[p.name] = known[p.name]
        else:
            raise LauncherError(
                f"kernel {backward.name}: {p.name} is no parameter of the gradient of "
                f"{call.kernel.name}. It writes {_names(call, _GRADIENT)}, and reads "
                f"{', '.join(known)}."
            )
    # Of an output, its own is the shape: an argument that the kernel need not read.
    arguments = read | dict.fromkeys(made.values(), True)
    gradient = _Call(backward, arguments, made, False)
    run = _operator(torch, f"{name}_backward", gradient)
    names = tuple(call.arguments)

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        results = output if isinstance(output, tuple) else (output,)
        values = dict(zip(names, inputs, strict=True)) | dict(zip(outputs, results, strict=True))
        ctx.numbers = {k: v for k, v in values.items() if k in arguments and not known[k]}
        ctx.kept = [k for k in values if k in arguments and known[k]]
        ctx.save_for_backward(*(values[k] for k in ctx.kept))

    def differentiate(ctx: Any, *gradients: Any) -> Any:
        values = ctx.numbers | dict(zip(ctx.kept, ctx.saved_tensors, strict=True))
        for output, g in zip(outputs, gradients, strict=True):
            if _GRADIENT + output in arguments:
                values[_GRADIENT + output] = g.contiguous()
        found = run(*(values[name] for name in arguments))
        results = found if isinstance(found, tuple) else (found,)
        by_input = dict(zip(made.values(), results, strict=True))
        return tuple(by_input.get(name) for name in names)

    operator.register_autograd(differentiate, setup_context=keep)


def _names(call: _Call, prefix: str) -> str:
    return ", ".join(prefix + name for name, is_tensor in call.arguments.items() if is_tensor)
