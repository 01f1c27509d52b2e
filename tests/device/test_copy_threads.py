"""The threads that copy."""

from __future__ import annotations

import threading

from numbasync.device import copy_threads


def test_settling_waits_for_what_was_given() -> None:
    gate, done, settled = threading.Event(), threading.Event(), threading.Event()

    def call() -> None:
        assert gate.wait(300)
        done.set()

    def settle() -> None:
        copy_threads.settle(30)
        assert done.is_set()
        settled.set()

    copy_threads.submit(call)
    waiting = threading.Thread(target=settle)
    waiting.start()
    assert not settled.wait(0.01)
    gate.set()
    waiting.join(300)
    assert settled.is_set()


def test_settling_gives_up_on_a_thread_that_is_held() -> None:
    gate = threading.Event()
    copy_threads.submit(lambda: gate.wait(300))
    copy_threads.settle(0.001)  # returns, and the threads go on
    gate.set()
    copy_threads.settle(30)
    assert copy_threads.submit_with_result(lambda: 1).result(30) == 1
