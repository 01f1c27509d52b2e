"""Random ^C: a timer's signal, at any moment of blocking and awaiting calls.

    python -m tests.stress.interrupts [count] [device kind] [seed]

After each signal nothing may be owned, in flight, limited or lost, and the next operation on the
stream is right. `count` signals are sent; a call is repeated until one has come. Signals that come
in a finaliser, or in the callback of a weak reference, are printed by Python, and not raised:
another one is sent. A call that returns after any other one has lost it.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import signal
import sys
import traceback
import warnings
from collections import Counter
from pathlib import Path
from traceback import walk_stack
from types import FrameType
from typing import Any

import numbasync as na
from tests.interrupted_calls import Interrupted
from tests.interrupting import OF_CONDITIONS, is_ours

SOON, LATE, AGAIN = 10e-6, 400e-6, 5.0  # seconds
ASYNCIO, OURS = str(Path(asyncio.__file__).parent), str(Path(__file__).parents[2])


def is_of_the_library(frame: FrameType | None) -> bool:
    """Whether asyncio, or what it has called of the standard library, is running; or a thread's
    start, a future or an executor takes a lock of its own, in Python.
    """
    if frame is not None and frame.f_code in OF_CONDITIONS:
        return frame.f_back is None or not is_ours(frame.f_back.f_code)
    for above, _ in walk_stack(frame):
        if above.f_code.co_qualname.startswith(("_Signals.", "is_of_the_library")):
            continue  # a signal that came in the handler
        if above.f_code.co_filename.startswith((ASYNCIO, OURS)):
            return above.f_code.co_filename.startswith(ASYNCIO)
    return False


class _Signals:
    """The handler of the signal, which counts those that end a call.

    None is raised in asyncio, or in what it has called: a loop that is stopped between taking a
    callback and calling it never calls it. `asyncio.run` therefore has a handler of ^C that cancels
    its task. And none where the standard library takes the lock of a condition, which would be left
    taken: a thread that starts, or has the result of a future, would wait for it for ever.
    """

    def __init__(self) -> None:
        self.raised = 0
        self.is_open = False
        self.where = ""  # of the latest one
        self.others: list[str] = []  # what else Python printed, and did not raise

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        if is_of_the_library(frame):
            signal.setitimer(signal.ITIMER_REAL, SOON, AGAIN)
            return
        self.raised += 1
        self.where = "".join(traceback.format_stack(frame, 12))
        raise KeyboardInterrupt

    def swallowed(self, unraisable: Any) -> None:
        """In place of `sys.unraisablehook`: it came in a finaliser, or in a callback of a weak
        reference. Another one is sent, unless the call has ended meanwhile.
        """
        if unraisable.exc_type is not KeyboardInterrupt:
            self.others.append(f"{unraisable.exc_value!r} in {unraisable.object!r}")
            return
        self.raised -= 1
        if self.is_open:  # not so soon that it comes here, where it would be printed, too
            signal.setitimer(signal.ITIMER_REAL, LATE, AGAIN)


def interrupt(device: na.Device, count: int, seed: int = 0, all: bool = True) -> Counter[str]:
    """Interrupt calls, all or those of one device, `count` times; what was wrong, by call."""
    draw = random.Random(seed)
    interrupted, found = Interrupted(device, all), Counter[str]()
    names = list(interrupted.calls)
    for name in names:  # compiled, and what is made once
        interrupted.calls[name](device.new_stream())
    signals = _Signals()
    gc.freeze()  # collections then look at what the calls leave
    before = signal.signal(signal.SIGALRM, signals.interrupt)
    hook, sys.unraisablehook = sys.unraisablehook, signals.swallowed
    logger = logging.getLogger("asyncio")  # says that a closed loop had tasks
    logger.disabled = True
    try:
        for i in range(count):
            name, stream = names[i % len(names)], device.new_stream()
            bytes_before, signals.raised = interrupted.bytes_now(), 0
            signals.is_open = True
            try:
                try:
                    # A second signal ends a call that hangs, or follows one that was not raised.
                    signal.setitimer(signal.ITIMER_REAL, draw.uniform(SOON, LATE), AGAIN)
                    while not signals.raised:
                        interrupted.calls[name](stream)
                    found[f"{name}: lost, at\n{signals.where}"] += 1
                finally:
                    signals.is_open = False
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                if signals.raised > 1:
                    found[f"{name}: hung until a second signal, at\n{signals.where}"] += 1
            wrong = [*interrupted.after(stream, bytes_before), *signals.others]
            found.update(f"{name}: {text}" for text in wrong)
            signals.others.clear()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.unfreeze()
        gc.collect()  # loops that ^C has ended half-way, with their files
        sys.unraisablehook, logger.disabled = hook, False
    return found


def main() -> None:
    count, kind, seed = (*sys.argv[1:], *("20000", "cpu", "0")[len(sys.argv) - 1 :])
    warnings.simplefilter("ignore", RuntimeWarning)  # of operations that did not run
    with na.use_device(na.devices(kind)[0]) as device:
        found = interrupt(device, int(count), int(seed))
    print(f"{count} interrupts, {sum(found.values())} wrong: {dict(found)}", flush=True)
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
