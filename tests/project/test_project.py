"""The project itself: documents that are true, modules that stay small, imports that stay light."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import benchmarks
import numbasync as na
import numbasync_kernels
from benchmarks import page
from tests import conftest, sessions, subpackages
from tests.common import mostly_full
from tests.project import docstrings

ROOT = Path(__file__).parent.parent.parent
# Wherever they are installed.
PACKAGE, *OTHERS = (
    Path(str(package.__file__)).parent for package in (na, numbasync_kernels, benchmarks)
)
SOURCES = sorted(path for folder in (PACKAGE, *OTHERS) for path in folder.glob("**/*.py"))


def test_a_module_is_one_concept_and_says_which() -> None:
    """800 lines, without the examples of its docstrings, which are part of the reference."""
    for path in SOURCES:
        text = path.read_text()
        lines = len(text.splitlines())
        assert lines <= 800 or lines - docstrings.example_lines(path) <= 800, path
        assert text.startswith('"""'), path


def test_every_public_name_is_documented() -> None:
    names = [n for n in dir(na) if not n.startswith("_")]
    assert len(names) > 50 and "CommandBatch" in names
    for name in names:
        if inspect.isclass(getattr(na, name)) or inspect.isfunction(getattr(na, name)):
            assert inspect.getdoc(getattr(na, name)), name
    for owner in (
        na.DeviceOp,
        na.Tensor,
        na.Stream,
        na.Event,
        na.Device,
        na.Launcher,
        na.Partition,
    ):
        for name, member in vars(owner).items():
            if inspect.isfunction(member) and not name.startswith("_"):
                trivial = name in ("query", "steps", "wake", "spin_seconds")
                assert trivial or inspect.getdoc(member), f"{owner.__name__}.{name}"


def test_only_backends_ask_which_one_is_used() -> None:
    # Where kinds are for people: choosing, listing, naming.
    allowed = {"device/device.py", "tools/doctor.py", "tools/cli.py", "testing/plugin/__init__.py"}
    asks = re.compile(r"kind\s*(==|!=|in)\s|isinstance\([^)]*(Cuda|Cpu)[A-Z]")
    for path in PACKAGE.glob("**/*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith("backend/") and name not in allowed:
            for line in path.read_text().splitlines():
                found = asks.search(line)
                assert found is None or "dtype" in line or "kind in TYPED" in line, (path, line)


def test_importing_numbasync_is_light() -> None:
    heavy = (
        "numba",
        "cuda",
        "greenlet",
        "uvloop",
        "rich",
        "PIL",
        "scipy",
        "pytest",
        "dask",
        "distributed",
        "numbasync.batch",
    )
    program = (
        "import sys, numbasync; "
        f"print([m for m in {heavy!r} if m in sys.modules])"
    )  # fmt: skip
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT
    )
    assert result.stdout.strip() == "[]", result.stderr


def test_importing_numbasync_and_declaring_kernels_touches_no_driver() -> None:
    heavy = ("numba.cuda.simulator", "cuda.bindings.driver", "cuda.core")
    backends = ("numbasync.backend.cuda", "numbasync.backend.cpu")
    program = (
        "import sys\n"
        "import numbasync as na\n"
        f"print([m for m in {heavy!r} if m in sys.modules])\n"
        "print([line for line in open('/proc/self/maps') if 'libcuda.so' in line])\n"
        "from numba import cuda\n"  # which imports all of these itself
        "@na.launcher\n"
        "@cuda.jit\n"
        "def kernel(z: na.KernelOutput): z[0] = 1\n"
        "na.zeros(3).then(kernel).to_host().suppress_warning()\n"
        f"print([m for m in {backends!r} if m in sys.modules])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment()
    )
    assert result.stdout.split() == ["[]"] * 3, result.stderr


def code_blocks(path: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", path.read_text(), re.M | re.S)


# Programs of their own, each in a process; the others are run one after the other by one process.
# Whose kernels take seconds to compile on the CPU device.
MANY_KERNELS = ("docs/how-to/algorithms.md", "docs/how-to/sort.md")
ALONE = ("README.md", "docs/get-started.md", "docs/batches.md", *MANY_KERNELS)
# Tests, parts of the examples that measure them, and mistakes: `test_error_page.py` makes those.
NO_PROGRAMS = (
    "docs/testing.md", "docs/kernels-guide.md", "docs/tensor-cores.md", "docs/errors.md",
)  # fmt: skip
RUN_ALL = """
import importlib.util, sys
for place in sys.argv[1:]:
    print("program", place)
    spec = importlib.util.spec_from_file_location(place.rpartition("/")[2][:-3], place)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
"""


def pages_with_programs() -> dict[str, str]:
    """The program of each page. A page is one program, whose blocks build on each other."""
    pages = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
    programs = {
        page.relative_to(ROOT).as_posix(): "\n\n".join(code_blocks(page))
        for page in pages
        if page.relative_to(ROOT).as_posix() not in NO_PROGRAMS
    }
    return {name: program for name, program in programs.items() if program}


@pytest.mark.parametrize(
    "name", mostly_full([*ALONE, "the others"], *ALONE[: -len(MANY_KERNELS)], "the others")
)
def test_the_programs_in_the_documents_run(name: str, tmp_path: Path) -> None:
    programs = pages_with_programs()
    names = [name] if name in ALONE else [one for one in programs if one not in ALONE]
    assert len(names) == 1 or len(names) > 30
    places = []
    for one in names:  # in files, so that messages have a kernel's lines
        place = tmp_path / f"page_{len(places)}_{Path(one).stem.replace('-', '_')}.py"
        place.write_text(programs[one])
        places.append(str(place))
    chosen = {"PYTHONWARNINGS": "error", "NUMBASYNC_DEVICE": na.default_device().kind}
    env = {**environment(), **chosen}
    arguments = places if name in ALONE else ["-c", RUN_ALL, *places]
    result = sessions.run_program(sys.executable, arguments, env, seconds=600)
    assert (result.returncode, result.stderr) == (0, ""), result.stdout


@pytest.mark.parametrize(("name", "passed"), [("docs/testing.md", 15), ("docs/how-to/ci.md", 2)])
def test_the_documents_tests_pass_as_they_say(name: str, passed: int, tmp_path: Path) -> None:
    page = ROOT / name
    program = tmp_path / "test_documents.py"
    program.write_text("\n\n".join(code_blocks(page)))
    # How fast Hypothesis draws depends on what else runs beside this.
    (tmp_path / "conftest.py").write_text(
        "from hypothesis import HealthCheck, settings\n"
        "settings.register_profile('beside others', deadline=None, "
        "suppress_health_check=[HealthCheck.too_slow])\n"
        "settings.load_profile('beside others')\n"
    )
    options = ["-s", "-q", "-p", "numbasync.testing.plugin", "--device", "cpu", str(program)]
    result = sessions.run(sys.executable, options, environment(), tmp_path, seconds=600)
    assert f"{passed} passed" in result.stdout, result.stdout
    printed = _without_places(result.stdout)
    for text in re.findall(r"^```text\n(.*?)^```", page.read_text(), re.M | re.S):
        if text.startswith("kernel "):  # others are of sessions of their own
            assert _without_places(text) in printed, text


def _without_places(text: str) -> str:
    """Without folders and numbers of lines."""
    return re.sub(r"[\w/-]*(test_documents\.py)((?::|\", line )\d+)?", r"\1", text)


def environment() -> dict[str, str]:
    import os

    paths = [str(ROOT), str(ROOT / "kernels"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def test_blocks_that_are_not_run_say_so() -> None:
    blocks = [
        block
        for path in (ROOT / "README.md", *ROOT.glob("docs/**/*.md"))
        for block in re.findall(r"^ *```py\n(.*?)^ *```", path.read_text(), re.M | re.S)
    ]
    assert len(blocks) == 18 and all(b.startswith("# Not run by the tests: needs ") for b in blocks)


def test_nothing_asks_an_index_for_the_package() -> None:
    documents = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.py")]
    asks = re.compile(r"pip install[^`\n]*['\" ]numbasync")
    printed = re.compile(r"^```text\n.*?^```", re.M | re.S)  # of a wheel, too
    asking = [p.name for p in documents if asks.search(printed.sub("", p.read_text()))]
    assert asking == [], "there is no package of that name on an index: '.[EXTRA]' from a checkout"


def test_what_examples_draw_is_ignored() -> None:
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    example = (ROOT / "examples/12_data_parallel.py").read_text()
    assert [*ROOT.glob("*.png")] == []
    (folder,) = set(re.findall(r'"([\w-]+/)[\w-]+\.png"', example))
    assert folder in ignored


def test_the_readmes_program_is_short_and_the_sites() -> None:
    (block,) = code_blocks(ROOT / "README.md")
    assert len([line for line in block.splitlines() if line.strip()]) <= 27
    assert code_blocks(ROOT / "docs/index.md") == [block]


def test_ci_runs_the_commands_of_the_readme() -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    assert len(blocks) == 2
    assert all(len(b.strip().splitlines()) == 1 for b in blocks)
    assert "numbasync demo" in blocks[0]
    assert "pytest" in blocks[1]


def test_each_measurement_is_shown() -> None:
    folder = ROOT / "docs/performance"
    texts = {path: path.read_text() for path in ROOT.glob("docs/**/*.md")}
    shown = {path: set(page.names(text)) for path, text in texts.items()}
    files = {path.stem for path in folder.glob("*.json")}
    assert set().union(*shown.values()) == files, "a table for each file, and a file for each table"
    assert not any("| stretch | met |" in text for text in texts.values()), "for who measures"


def test_a_page_of_measurements_is_of_one_machine() -> None:
    for path in ROOT.glob("docs/performance/*.md"):
        runs = [path.with_name(f"{name}.json") for name in page.names(path.read_text())]
        machines = [json.loads(run.read_text())["machine"] for run in runs]
        assert len({(machine["device"], machine["host"]) for machine in machines}) == 1 or (
            not machines and path.stem == "method"
        ), path


@pytest.mark.parametrize(
    ("name", "program"),
    [("kernels-guide", "09_fast_kernels"), ("tensor-cores", "10_tensor_cores")],
)
def test_a_pages_kernels_are_its_measuring_examples(name: str, program: str) -> None:
    example = (ROOT / f"examples/{program}.py").read_text()
    blocks = code_blocks(ROOT / f"docs/{name}.md")
    assert len(blocks) > 5
    for block in blocks:
        assert block in example, block


@pytest.mark.parametrize("path", subpackages.PAGES, ids=lambda path: path.name)
def test_what_documents_count_and_measure_is_filled_in(path: Path) -> None:
    assert subpackages.filled(path) == path.read_text(encoding="utf-8"), (
        "run: python -m tests.subpackages"
    )


def test_documents_have_numbers_to_fill_in() -> None:
    assert len(subpackages.BLOCK.findall((ROOT / "docs/architecture.md").read_text())) == 1
    readme, architecture = (
        (ROOT / name).read_text() for name in ("README.md", "docs/architecture.md")
    )
    performance = "".join(
        path.read_text()
        for path in (ROOT / "docs/performance.md", *ROOT.glob("docs/performance/*.md"))
    )
    assert len(subpackages.NUMBER.findall(architecture)) == 2
    assert len(page.FIGURE.findall(readme)) >= 4 and len(page.FIGURE.findall(performance)) >= 80


def test_only_listed_imports_run_in_a_circle() -> None:
    found = subpackages.imports()
    # What the methods of an operation give, which points up; see the contract in pyproject.toml.
    given = {
        "ops.value_methods": {"tensors.copies", "tensors.partition", "tensors.tensor"},
        "ops.op": {"graphs.graph"},
    }
    graph = {name: modules - given.get(name, set()) for name, modules in found.items()}
    assert sorted(map(sorted, subpackages.circles(graph))) == sorted(
        map(sorted, subpackages.MUTUAL)
    )


def test_links_of_the_documents_lead_somewhere() -> None:
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]:
        prose = re.sub(r"```.*?```|`[^`]*`", "", path.read_text(), flags=re.S)
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", prose):
            if not target.startswith("http"):
                assert (path.parent / target).exists(), (path.name, target)


def test_the_tiers_are_of_files_that_exist() -> None:
    files = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()}
    assert set(conftest.SLOW) <= files and set(conftest.SLOW_FOLDERS) <= folders
