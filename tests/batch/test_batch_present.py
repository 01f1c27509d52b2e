"""What of a batch is there: asked for in a forked child."""

from __future__ import annotations

import os
import threading

import pytest

from numbasync.batch.run import state


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_waits_for_no_parents_thread() -> None:
    holds, ends = threading.Event(), threading.Event()

    def hold() -> None:
        with state._tensors_lock:
            holds.set()
            ends.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    holds.wait()
    child = os.fork()
    if not child:
        os._exit(not state._tensors_lock.acquire(timeout=300))
    _, status = os.waitpid(child, 0)
    ends.set()
    thread.join()
    assert status == 0
