"""The page of errors: what its programs really say.

`python -m tests.error_page` writes each program's message behind it; a test compares them.
"""

from __future__ import annotations

import gc
import json
import os
import re
import runpy
import sys
import tempfile
from pathlib import Path

from tests import sessions

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/errors.md"
MOST_LINES = 8  # of a message on the page; Numba's go on
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.M | re.S)
PLACE = re.compile(r'[^\s"(]*/example\.py')
MACHINE = re.compile(r"\nThere is no CUDA device: .*", re.S)  # why there is none here
UNAVAILABLE = re.compile(r"(?<=can be used: ).*?(?=\nWrite )", re.S)  # nor why one cannot be used
ADDRESS = re.compile(r"0x[0-9a-f]+")
GROUP = re.compile(r"\S*/numbasync-\w+/all")  # the folder of a group of processes
# Such a program has its own imports, and variables of the environment.
ALONE = re.compile(r"# A program of its own, run with (.*)\n")


def sections(page: str) -> dict[str, str]:
    """The page's text below each heading that is a class."""
    parts = re.split(r"^### (\w+)\n", page, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def programs(page: str) -> dict[str, str]:
    """For each class its program; the one that all begin with is `""`."""
    first = BLOCK.search(page)
    assert first is not None
    found = {"": first[1]}
    for name, text in sections(page).items():
        blocks = BLOCK.findall(text)
        if blocks:
            ((found[name], _),) = blocks
    return found


def messages(page: str) -> dict[str, tuple[list[str], str]]:
    """For each program the classes of what it raises, and its message as the page shows it."""
    env = {
        **os.environ, "NUMBASYNC_DEVICE": "cpu", "PYTHONWARNINGS": "ignore",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }  # fmt: skip
    given = programs(page)
    alone = {name: found[1] for name, text in given.items() if (found := ALONE.match(text))}
    raised = _raised({name: text for name, text in given.items() if name not in alone}, env)
    for name, variables in alone.items():
        own = dict(variable.split("=") for variable in variables.split())
        raised |= _raised({"": "", name: given[name]}, env | own)
    return {name: raised[name] for name in given if name}


def _raised(given: dict[str, str], env: dict[str, str]) -> dict[str, tuple[list[str], str]]:
    """For each program what it raises, all in one process with these variables."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "programs.json")
        file.write_text(json.dumps(given))
        command = ["-c", f"from tests.error_page import run; run({str(file)!r})"]
        result = sessions.run_program(sys.executable, command, env, seconds=600)
    assert result.returncode == 0, result.stderr
    return {name: (classes, _shown(text)) for name, (classes, text) in json.loads(result.stdout)}


def _shown(message: str) -> str:
    message = MACHINE.sub("", ADDRESS.sub("0x...", PLACE.sub("example.py", message)))
    message = GROUP.sub("...", UNAVAILABLE.sub("...", message))
    lines = message.rstrip().split("\n")
    if len(lines) > MOST_LINES:
        lines[MOST_LINES:] = ["..."]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def run(file: str) -> None:
    """Run the programs, each in names of its own; print what they raise."""
    given = Path(file)
    found = json.loads(given.read_text())
    raised = []
    for name, program in found.items():
        if not name:
            continue
        folder = given.parent / name
        folder.mkdir()
        preamble, example = folder / "preamble.py", folder / "example.py"
        preamble.write_text(found[""])
        example.write_text(program)
        names = runpy.run_path(str(preamble))
        try:
            exec(compile(program, str(example), "exec"), names)
        except Exception as error:
            raised.append((name, ([c.__name__ for c in type(error).__mro__], str(error))))
        else:
            raised.append((name, ([], "nothing is raised")))
        names.clear()
        gc.collect()
    print(json.dumps(raised))  # noqa: T201


def filled(page: str) -> str:
    """The page with each message behind its program."""
    for name, (_, message) in messages(page).items():
        text = sections(page)[name]
        block = BLOCK.search(text)
        assert block is not None
        new = text.replace(block[0], f"```python\n{block[1]}```\n\n```text\n{message}```\n")
        page = page.replace(f"### {name}\n{text}", f"### {name}\n{new}")
    return page


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
