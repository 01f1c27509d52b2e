"""Random programs over tensors of two devices give what NumPy gives, whichever is current."""

from __future__ import annotations

import pytest
from hypothesis import Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

import numbasync as na
from numbasync import native
from numbasync.errors import DeviceMismatchError
from numbasync.launch.call import Launch
from numbasync.ops.constructors import Value
from numbasync.tensors.copy_ops import Convert, Memcpy, ToHost
from numbasync.tensors.create import Fill
from tests.stress.programs import compiled
from tests.stress.programs_of_devices import ProgramsOfDevices
from tests.stress.test_programs import CHECKS, PROGRAMS


def run(device: na.Device, examples: int, *phases: Phase, begin: int | None = None) -> None:
    near = na.devices(device.kind)
    others = [d for d in (*near, *na.devices("cpu")) if d is not device]
    for each in (device, others[0]):
        with na.use_device(each):
            compiled()
    devices = (device, others[0])
    programs = type("Programs", (ProgramsOfDevices,), {"devices": devices})
    run_state_machine_as_test(
        programs if begin is None else seed(begin)(programs),
        settings=settings(
            max_examples=examples, stateful_step_count=20, database=None,
            suppress_health_check=CHECKS, phases=phases or tuple(Phase), report_multiple_bugs=False,
        ),
    )  # fmt: skip


@pytest.mark.parametrize("core", [False] if native.core is None else [False, True])
def test_programs_of_two_devices_give_what_numpy_gives(device: na.Device, core: bool) -> None:
    native.switch(core)
    try:
        run(device, PROGRAMS // 8)
    finally:
        native.switch(True)


@pytest.mark.may_leave("a program that fails leaves what was in flight")
@pytest.mark.parametrize("cls", [Launch, ToHost, Fill, Memcpy, Convert, Value])
def test_operations_that_go_to_current_devices_are_found(
    monkeypatch: pytest.MonkeyPatch, cls: type
) -> None:
    (device, *_) = na.devices("cpu")
    monkeypatch.setattr(cls, "home", property(lambda self: None))
    native.switch(False)
    try:
        with (
            na.use_device(device),
            pytest.raises((AssertionError, DeviceMismatchError, BaseExceptionGroup)),
        ):
            run(device, 300, Phase.generate, begin=0)
    finally:
        native.switch(True)
