"""Programs for `numba.cuda` with several devices, as many as NUMBASYNC_CPU_DEVICES says."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numba import cuda

import numbasync as na
from numbasync.cpu_cuda import host


@pytest.fixture(autouse=True)
def _on(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(host.COUNT, str(len(na.devices("cpu"))))
    host.gpus.cache_clear()
    with na.cuda_on_cpu():
        yield
        cuda.close()
    host.gpus.cache_clear()


def number() -> Any:
    return cuda.get_current_device().id


@cuda.jit
def double(a):
    a[cuda.grid(1)] *= 2


def test_each_thread_has_a_device() -> None:
    count = len(na.devices("cpu"))
    assert count >= 2 and len(cuda.gpus) == len(cuda.list_devices()) == count
    assert [gpu.id for gpu in cuda.gpus] == list(range(count))
    assert len({gpu.uuid for gpu in cuda.gpus}) == count
    assert number() == 0
    with cuda.gpus[1]:
        assert number() == 1 and cuda.gpus.current is cuda.gpus[1]
        with cuda.gpus[0]:
            assert number() == 0
        assert number() == 1
        elsewhere: list[int] = []
        thread = threading.Thread(target=lambda: elsewhere.append(number()))
        thread.start()
        thread.join()
        assert elsewhere == [0], "another thread has chosen nothing"
    assert number() == 0
    assert cuda.select_device(1) is cuda.gpus[1] and number() == 1
    cuda.select_device(0)
    assert number() == 0
    with pytest.raises(IndexError, match=f"device {count}: there are {count}"):
        cuda.select_device(count)


def test_arrays_belong_to_the_device_they_begin_on() -> None:
    made = []
    for gpu in cuda.gpus:
        with gpu:
            a = cuda.to_device(np.arange(4))
            double[1, 4](a)
            made.append(a)
    assert [a.gpu_data.context.device.id for a in made] == [gpu.id for gpu in cuda.gpus]
    for a in made:
        np.testing.assert_array_equal(a.copy_to_host(), np.arange(4) * 2)
    context = cuda.current_context()
    assert context.can_access_peer(1) and not context.can_access_peer(0)
    context.enable_peer_access(1)
    context.push()
    assert cuda.current_context() is context
    context.pop()
