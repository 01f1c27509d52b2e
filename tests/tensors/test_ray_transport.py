"""Tensors that go from one of Ray's actors to another by the tensor transport."""

from __future__ import annotations

import contextlib
import glob
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numbasync as na
from numbasync.collective import new_key
from numbasync.errors import CollectiveError, RankLostError, StateError
from tests.common import host
from tests.tensors.test_ray_actors import cluster, ray

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own


class Worker:
    def __init__(self) -> None:
        self.kept: na.Tensor | None = None

    def make(self, n: int) -> Any:
        self.kept = na.full(n, 3.0).sync()
        return {"a": self.kept, "parts": [na.ones((2, 2), np.int32).sync()], "n": n}

    def without_memory(self) -> Any:
        return [na.meta((2,)).sync()]

    def register(self) -> None:
        na.ray.register_transport()

    def totals(self, result: Any) -> Any:
        tensors = [result["a"], *result["parts"]]
        assert all(isinstance(t, na.Tensor) for t in tensors)
        return [host(t).sum() for t in tensors], tensors[0] is self.kept

    def leave(self) -> None:
        """Close the communicators of this actor, as its end would."""
        from ray.experimental.rdt.util import (  # pyright: ignore[reportMissingImports]
            get_tensor_transport_manager,
        )

        for comm in get_tensor_transport_manager("NUMBASYNC")._open.values():
            comm.close()


class Restarted(Worker):
    def __init__(self) -> None:
        super().__init__()
        na.ray.register_transport()


@pytest.fixture(scope="module")
def actors() -> Any:
    with cluster():
        na.ray.register_transport()
        na.ray.register_transport()
        Worker.make = ray.method(tensor_transport="numbasync")(Worker.make)  # type: ignore[method-assign]
        Worker.without_memory = ray.method(tensor_transport="numbasync")(Worker.without_memory)  # type: ignore[method-assign]
        kind = ray.remote(enable_tensor_transport=True)(Worker)
        yield [kind.remote() for _ in range(2)]


def folders() -> set[str]:
    return set(glob.glob(f"{tempfile.gettempdir()}/numbasync-*"))


def get(ref: Any) -> Any:
    return ray.get(ref, timeout=300)


@pytest.mark.parametrize("n", [0, 5, 3_000_000])
def test_a_result_goes_to_another_actor(cpu: na.Device, actors: list[Any], n: int) -> None:
    result = actors[0].make.remote(n)
    before = folders()
    for _ in range(3):
        assert get(actors[1].totals.remote(result)) == ([3.0 * n, 4], False)
    assert len(folders() - before) <= 1, "one pair of actors connects once"
    assert get(actors[0].totals.remote(result)) == ([3.0 * n, 4], True), "it stays where it is"
    back = actors[1].make.remote(n)
    assert get(actors[0].totals.remote(back)) == ([3.0 * n, 4], False)
    here = ray.get(result, _use_object_store=True, timeout=300)
    assert (host(here["a"]) == 3).all() and here["n"] == n


def test_a_transfer_that_fails_and_the_next_one(cpu: na.Device, actors: list[Any]) -> None:
    assert get(actors[1].totals.remote(actors[0].make.remote(2))) == ([6, 4], False)
    get(actors[1].leave.remote())
    with pytest.raises(Exception, match="closed>: connect again"):
        get(actors[1].totals.remote(actors[0].make.remote(2)))
    for _ in range(2):
        assert get(actors[1].totals.remote(actors[0].make.remote(2))) == ([6, 4], False)
    get(actors[0].leave.remote())  # the owner of the results sees it by the removed folder
    assert get(actors[1].totals.remote(actors[0].make.remote(2))) == ([6, 4], False)


def test_an_actor_may_register_the_transport_again(cpu: na.Device, actors: list[Any]) -> None:
    get(actors[0].register.remote())


def test_a_restarted_sender_and_receiver(cpu: na.Device, actors: list[Any]) -> None:
    """The first transfers behind it may fail, at once; then the two connect anew."""
    kind = ray.remote(enable_tensor_transport=True, max_restarts=2, max_task_retries=2)(Restarted)
    third = kind.remote()
    for sender, receiver in ((third, actors[0]), (actors[0], third)):
        got = [get(receiver.totals.remote(sender.make.remote(5)))]
        ray.kill(third, no_restart=False)
        for _ in range(5):
            with contextlib.suppress(RankLostError, StateError, CollectiveError):
                got.append(ray.get(receiver.totals.remote(sender.make.remote(5)), timeout=300))
        assert len(got) >= 3 and all(one == ([15, 4], False) for one in got)


def test_an_actor_that_is_killed_and_its_successor(cpu: na.Device, actors: list[Any]) -> None:
    kind = ray.remote(enable_tensor_transport=True)(Worker)
    for _ in range(2):
        third = kind.remote()
        result = actors[0].make.remote(5)
        assert get(third.totals.remote(result)) == ([15, 4], False)
        ray.kill(third)
        assert get(actors[1].totals.remote(result)) == ([15, 4], False)


def test_a_used_key_connects_no_more(cpu: na.Device) -> None:
    """Transfers that Ray has begun with it would meet a communicator that an abort closes."""
    from numbasync.ray.transport import Pair, Transport

    transport, pair = Transport(), Pair(new_key(2))
    transport.abort_transport("a result", pair)
    assert not Path(pair.key.folder).exists(), "the owner of the results makes another one"
    with pytest.raises(StateError, match="an earlier transfer by GroupKey.* has failed"):
        transport.send_multiple_tensors([], None, pair)


def test_tensors_without_memory_are_refused(cpu: na.Device, actors: list[Any]) -> None:
    with pytest.raises(Exception, match="return its shape and dtype"):
        ray.get(actors[0].without_memory.remote(), _use_object_store=True, timeout=300)
