"""Every example is a whole program, and runs to its end without a word on stderr."""

from __future__ import annotations

from pathlib import Path

import pytest

import numbasync as na
from tests import sessions
from tests.common import full

EXAMPLES = sorted((Path(__file__).parent.parent.parent / "examples").glob("*.py"))
LONG = (  # they compile many kernels, or start a cluster as 13_cluster does
    "06_sentence_embeddings", "07_command_batch", "09_fast_kernels", "10_tensor_cores",
    "15_image_folder", "17_algorithms", "18_threads_together",
)  # fmt: skip


@pytest.mark.parametrize(
    "example", [full(p) if p.stem in LONG else p for p in EXAMPLES], ids=lambda p: p.stem
)
def test_example(example: Path, device: na.Device, python: str, python_env: dict[str, str]) -> None:
    env = {**python_env, "NUMBASYNC_DEVICE": device.kind}
    result = sessions.run_program(python, [str(example)], env, seconds=600)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout


# Heartbeats every millisecond: some are on their way when the workers end.
HURRIED = """
import runpy, sys
from distributed import scheduler
scheduler.heartbeat_interval = lambda workers: 0.001
runpy.run_path(sys.argv[1], run_name="__main__" if __name__ == "__main__" else "worker")
"""


@pytest.mark.full
@pytest.mark.parametrize("example", ["13_cluster", "15_image_folder"])
def test_a_cluster_ends_without_a_word(
    example: str, python: str, python_env: dict[str, str], tmp_path: Path
) -> None:
    program = tmp_path / "hurried.py"
    program.write_text(HURRIED)
    path = next(p for p in EXAMPLES if p.stem == example)
    env = {**python_env, "NUMBASYNC_DEVICE": "cpu"}
    for _ in range(3):
        result = sessions.run_program(python, [str(program), str(path)], env, seconds=600)
        assert (result.returncode, result.stderr) == (0, "")


def test_there_are_examples() -> None:
    assert [int(p.name[:2]) for p in EXAMPLES] == [*range(1, 16), 17, 18]  # 16 is a folder
