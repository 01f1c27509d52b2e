"""The threads that copy."""

from __future__ import annotations

import threading

from numbasync import helpers


def test_settling_waits_for_what_was_given() -> None:
    gate, done, settled = threading.Event(), threading.Event(), threading.Event()

    def call() -> None:
        assert gate.wait(30)
        done.set()

    def settle() -> None:
        helpers.settle(30)
        assert done.is_set()
        settled.set()

    helpers.give(call)
    waiting = threading.Thread(target=settle)
    waiting.start()
    assert not settled.wait(0.01)
    gate.set()
    waiting.join(30)
    assert settled.is_set()


def test_settling_gives_up_on_a_thread_that_is_held() -> None:
    gate = threading.Event()
    helpers.give(lambda: gate.wait(30))
    helpers.settle(0.001)  # returns, and the threads go on
    gate.set()
    helpers.settle(30)
    assert helpers.background(lambda: 1).result(30) == 1
