"""The build hook of a checkout, which has `hatch_build.py`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

HOOK = Path(__file__).parents[2] / "hatch_build.py"


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module; its own need, hatchling, is only there while a package is built."""
    pytest.importorskip("Cython", reason="needs Cython")
    interface = "hatchling.builders.hooks.plugin.interface"
    monkeypatch.setitem(sys.modules, interface, SimpleNamespace(BuildHookInterface=object))  # type: ignore[arg-type]
    spec = importlib.util.spec_from_file_location("hatch_build", HOOK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_equal_sources_are_compiled_once(
    hook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, build, builds = tmp_path / "_core.pyx", tmp_path / "build", []
    (tmp_path / "core").mkdir()
    part = tmp_path / "core" / "part.pxi"

    def compiled(source: Path, work: Path) -> Path:
        builds.append(source)
        module = work / "_core.so"
        module.write_text(source.read_text() + part.read_text())
        return module

    tables = ["x"]
    monkeypatch.setattr(hook, "compiled", compiled)
    monkeypatch.setattr(hook, "_table", lambda source: tables[-1])
    source.write_text("a")
    part.write_text("b")
    texts = [hook.compile_once(source, build).read_text() for _ in range(2)]
    part.write_text("c")
    texts.append(hook.compile_once(source, build).read_text())
    monkeypatch.setenv("CFLAGS", "-O1")
    texts.append(hook.compile_once(source, build).read_text())
    tables.append("y")  # a class has other slots
    texts.append(hook.compile_once(source, build).read_text())
    assert texts == ["ab", "ab", "ac", "ac", "ac"]
    assert len(builds) == 4
    assert all(path.name.startswith("core-") for path in build.iterdir())  # nothing half-made


# What the core reads of rooms other than `device`, `ops` and `launch`; the head of `_core.pyx` says
# why. A class is taken away here with the core's last word of it; none is added.
OTHER_ROOMS = {
    "backend": (59, """
        BlockMemory Borrowed Counters CpuArray CpuQueue CpuStream CudaArray CudaMemory CudaPool
        CudaStream Engine ExecutableGraph PinnedPool Reader ShortLaunch Stepper Work _Size
    """),
    "collective": (8, "CollectivePlan Group LocalOp"),
    "graphs": (14, "AttachedGraph CudaGraph GraphLaunch LastLaunch"),
    "tensors": (41, """
        ArrayKind ArraySpec DeviceArray FromHost Full MappedTensor Partition SharedTensor Tensor
        TensorMap ToHost
    """),
}  # fmt: skip


def test_rooms_of_which_the_core_reads() -> None:
    import core_table

    found = core_table.rooms(Path(core_table.__file__).with_name("numbasync"))
    assert found.keys() - OTHER_ROOMS.keys() == {"device", "launch", "ops"}
    for room, (most, names) in OTHER_ROOMS.items():
        assert set(found[room]) == set(names.split())
        assert sum(found[room].values()) <= most


def test_the_table_of_slots_of_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the slots that the core's sources name, also of bases and of dataclasses."""
    import core_table

    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "part.pxi").write_text("get(a, A__x), get(a, A_y), get(b, B_n), isa(a, A)")
    (tmp_path / "parts.py").write_text(
        "MOST = 2**4\n"
        "class Base:\n    __slots__ = ('_x',)\n"
        "@known\nclass A(Base):\n    __slots__ = ('y', 'z')\n"
        "@known\n@dataclass(slots=True)\nclass B:\n    n: int\n    m: int\n"
    )
    monkeypatch.setattr(core_table, "CONSTANTS", {"parts.py": ("MOST",)})
    text = core_table.table(tmp_path)
    enumerators = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    assert enumerators[:7] == ["A", "B", "CLASSES", "A__x", "A_y", "B_n", "PLACES"]
    assert "'A': ('_x', 'y')," in enumerators and "MOST = 16" in enumerators
    monkeypatch.setattr(core_table, "CONSTANTS", {"parts.py": ("LEAST",)})
    with pytest.raises(KeyError, match="LEAST is not in its module"):
        core_table.table(tmp_path)
