"""Launches on the current stream of the library whose arrays they use:
`@na.launcher(stream="caller")`.

Such a launch is like a call of the library itself: in order with its calls before and behind, and
part of a graph that it captures. On that stream, the library gives memory to nobody else before the
launch has run, so nothing has to be kept here, nor to be known of the end: no submission is made,
unless memory of ours is used, which was lent to the library.
"""

from __future__ import annotations

from typing import Any

from numbasync.arguments import shown
from numbasync.backend.borrowed import Borrowed
from numbasync.device import access, foreign_streams
from numbasync.device.address_map import forget_overlaps
from numbasync.device.device import Device
from numbasync.device.storage import BorrowedOwner
from numbasync.device.stream import AnyStream, Stream
from numbasync.errors import LauncherError, StateError
from numbasync.launch.call import Launch
from numbasync.launch.result import LaunchResult
from numbasync.native import compiled, known
from numbasync.ops import run, submission_queue
from numbasync.ops.reentrancy import exclusive


class Place:
    """The current stream of the library of all arrays of a launch, when it was asked.

    Attributes:
        device: the arrays' device.
        number: the stream's handle.
        owner: the library's object of the stream, if the library does not keep it itself.
    """

    def __init__(self, device: Device, number: int, owner: object) -> None:
        self.device, self.number, self.owner = device, number, owner

    @property
    def is_captured(self) -> bool:
        """Whether the library captures the stream for a graph."""
        captured: bool = self.device.backend.is_captured(self.number)
        return captured

    @property
    def stream(self) -> Stream:
        """The stream, for work whose end is waited for."""
        return foreign_streams.stream_of_number(self.device, self.number, self.owner)


@known
class CallersLaunch(Launch):
    """A call of a kernel that is launched on the current stream of its arrays' library."""

    __slots__ = ()

    @property
    def stream(self) -> Stream | None:
        """The library's current stream; None, the policy's choice, if the arrays are not all of one
        library that has one, or the call has operations as arguments that name none.
        """
        named: Stream | None = vars(self).get("stream")
        place = None if named is not None else self._place()
        return named if place is None else place.stream

    @stream.setter
    def stream(self, stream: Stream | None) -> None:
        vars(self)["stream"] = stream

    def again(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Launch:
        return CallersLaunch(self._launcher, self._launcher.arrange(args, kwargs), self._config)

    def _place(self) -> Place | None:
        tensors = self._tensors if self._form is not None else None
        if tensors is None and self._bound is not None:
            tensors = tuple(tensor for _, tensor in self._bound.tensors)
        if not tensors:
            return None
        first = tensors[0].source
        if not isinstance(first, Borrowed):
            return None
        for tensor in tensors:
            source = tensor.source
            if (
                not isinstance(source, Borrowed)
                or source.reader is not first.reader
                or (source.ordinal != first.ordinal)
            ):
                return None
        number, owner = first.reader.library.current(first.ordinal)
        device = tensors[0].device
        return None if number is None or device is None else Place(device, number, owner)

    @compiled
    def async_on(self, stream: AnyStream | None = None) -> LaunchResult:
        """Launch on the library's current stream, or on a stream that is named, and return the
        arguments; device data is valid in stream order only.

        Raises:
            StateError: the library captures its stream, and the kernel is not compiled for these
                arguments; or work of other streams would have to be waited for.
        """
        place = self._place() if stream is None else None
        if place is not None and self._unused:
            if self._launched_at(place):
                return self.result()
            if place.is_captured:
                self.suppress_warning()
                raise StateError(
                    f"kernel {self._launcher.name} cannot become part of the graph that another "
                    "library captures: it has not been launched with such arguments before, or "
                    "work on other streams uses them.\n"
                    "Call it once before the capture, with arrays of these shapes and dtypes."
                )
        return run.async_on(self, stream)

    def _launched_at(self, place: Place) -> bool:
        """Launch there, if nothing has to be compiled or waited for; whether that was done."""
        backend, number = place.device.backend, place.number
        plan = self.plan_on(backend)
        form = self._form
        if plan is None or plan.empty or form is None:
            return False
        exclusive.check()
        submission_queue.drain()
        with place.device.submit_lock:
            for tensor, is_output in zip(self._tensors, form.outputs, strict=True):
                storage, source = tensor.own_storage, tensor.source
                if storage is not None and storage.links is not None:
                    forget_overlaps(storage)  # of a part that was an argument before, perhaps
                if (
                    storage is not None
                    and storage.fast_path_device is backend
                    and isinstance(source, Borrowed)
                    and source.mark is None
                    and source.stream in (0, number)
                    and (isinstance(storage.pool, BorrowedOwner) or place.is_captured)
                    and not access.is_written_elsewhere(storage, None)
                    and not (is_output and access.is_read_elsewhere(storage, None))
                ):
                    continue
                return False
            args = form.arguments(self._values, self._tensors)
            self.consume()
            launched: bool = backend.launch_at(number, plan.work, args)
            self._unused = not launched
        return launched


def launch_class_of(stream: object, kernel: str) -> type[Launch]:
    """The class of a kernel's launches, by the launcher's option `stream`.

    Raises:
        LauncherError: there is no such option.
    """
    if stream is None:
        return Launch
    if stream != "caller":
        raise LauncherError(
            f'kernel {kernel}: stream={shown(stream)}: write stream="caller", for the current '
            "stream of the library of the arguments. A stream itself goes with each call: "
            f"{kernel}(...).async_on(stream)."
        )
    return CallersLaunch
