"""Faults planted in the core's rules, each of which a test must catch.

    python -m tests.native.mutants [part of a name ...] [--jobs 2]

For each fault the core is changed, compiled and tested apart from the checkout, in 10 s. Without a
fault's own tests, given by its name's part, all of `tests/native` runs. `test_mutants.py` holds
that each text that a fault changes is there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "numbasync" / "_core.pyx"
LIMIT_S = 120  # of a test run, which a fault may hang
# Those that find most come first.
TESTS = [
    f"tests/native/{name}.py"
    for name in ("test_driver_calls", "test_random_programs", "test_core", "test_leaks",
                 "test_core_threads")
]  # fmt: skip


BUILD = """
import sys
from Cython.Build import cythonize
from setuptools import Distribution, Extension

work, *flags = sys.argv[1:]
extension = Extension(
    "numbasync._core", ["numbasync/_core.pyx"], extra_compile_args=flags,
    extra_link_args=[flag for flag in flags if flag.startswith("-fsanitize")],
)
modules = cythonize([extension], build_dir=work, quiet=True)
command = Distribution({"name": "numbasync", "ext_modules": modules}).get_command_obj("build_ext")
command.build_lib = command.build_temp = work
command.ensure_finalized()
command.run()
"""


class Mutant(NamedTuple):
    """A fault: a text of the source, which is there once, and what stands in its place."""

    name: str
    text: str
    fault: str

    def source(self, original: str) -> str:
        if original.count(self.text) != 1:
            raise ValueError(
                f"{self.name}: {original.count(self.text)} places in _core.pyx have\n{self.text}"
            )
        return original.replace(self.text, self.fault)


def _m(name: str, text: str, fault: str) -> Mutant:
    return Mutant(name, text, fault)


MUTANTS = (
    # --- what a launch must wait for, and what it records ---
    _m("lease: a writer on another stream is overlooked",
       "if is_busy_elsewhere(get(storage, at_writer), stream):", "if False:"),
    _m("lease: readers on other streams are overlooked",
       "if self.output[i] and PyDict_Size(get(storage, at_readers)):", "if False:"),
    _m("lease: the latest reader alone is asked",
       "for reader in list(get(storage, at_readers).values()):",
       "for reader in list(get(storage, at_readers).values())[-1:]:"),
    _m("lease: work elsewhere counts as done",
       "    submission.stream.advance()\n    return not submission.done",
       "    submission.stream.advance()\n    return False"),
    _m("lease: finished work elsewhere is not noticed",
       "    submission.stream.advance()\n    return not submission.done", "    return True"),
    _m("lease: work of any stream counts as this one's",
       "if holds(submission, at_done, True) or holds(submission, at_stream, stream):",
       "if True:"),
    _m("lease: a read is not recorded", "readers[stream] = submission", "pass"),
    _m("lease: readers are never forgotten", "if PyDict_Size(readers) >= MANY_READERS:", "if False:"),
    _m("lease: a write is not recorded", "put(storage, at_writer, submission)", "pass"),
    _m("lease: a write leaves the readers recorded", "put(storage, at_readers, {})", "pass"),
    _m("lease: a launch that failed is recorded",
       "            self.note(storages, 0, submission, stream)\n        finally:\n            lock.give()",
       "        finally:\n            self.note(storages, 0, submission, stream)\n"
       "            lock.give()"),
    _m("lease: a chunk is recorded whole, although a launch failed",
       "for i in range(launched):\n            op = ops[first + i]",
       "for i in range(count):\n            op = ops[first + i]"),
    _m("lease: an input that is also written is let through",
       "if self.written and not self.may_alias:", "if False:"),
    _m("lease: aliasing is checked by storages alone",
       "storages[i] == storages[j]\n                        or get(<object>storages[i], at_identity)"
       " == get(<object>storages[j], at_identity)",
       "storages[i] == storages[j]"),
    _m("lease: two outputs may be one tensor", "(outputs[i] or outputs[j])",
       "(outputs[i] != outputs[j])"),
    _m("lease: memory of another device, or of a graph, is used",
       "if storage is None or not holds(storage, at_fast_path_device, backend):",
       "if storage is None:"),
    _m("lease: the lock of the device is not held",
       "        cdef int status\n        lock.take()\n        try:",
       "        cdef int status\n        lock = Lock()\n        lock.take()\n        try:"),
    _m("lease: objects in use are not kept", "put(submission, at_keep_alive, storages)", "pass"),
    _m("lease: objects in use by later children are not kept", "keep_alive.append(storage)", "pass"),
    _m("lease: lazy tensors are taken for plain ones",
       "if storage == <PyObject*>None or not holds(tensor, at_source, None):",
       "if storage == <PyObject*>None:"),
    # --- which plan a call has ---
    _m("plan: of other shapes",
       "            PyTuple_GET_ITEM(latest, 1) == <PyObject*>parts\n            and ", "            "),
    _m("plan: of another device", "PyTuple_GET_ITEM(latest, 0) == <PyObject*>device", "True"),
    _m("plan: of another grid", "PyTuple_GET_ITEM(latest, 2) == <PyObject*>extents", "True"),
    _m("plan: the latest fingerprints, whatever the arguments",
       "if is_known and PyTuple_GET_ITEM(latest, i) != <PyObject*>part:", "if False:"),
    _m("plan: a literal's value is not asked", "part = (part, value)", "pass"),
    _m("plan: a number of more than 64 bits",
       "if code != NUMBER and not -9223372036854775808 <= value < 9223372036854775808:",
       "if False:"),
    _m("plan: a launch without blocks is launched",
       "if plan is None or not holds(plan, at_is_without_blocks, False):", "if plan is None:"),
    _m("plan: the types of the latest call, whatever the arguments",
       "if core is None or not (<FastCall>core).fits(values):", "if core is None:"),
    # --- which calls are begun at once ---
    _m("begin: an operation runs twice",
       "    if isa(op, Launch) and holds(op, at_unused, True):\n        put(op, at_unused, False)\n"
       "        return enqueued",
       "    if isa(op, Launch):\n        put(op, at_unused, False)\n        return enqueued"),
    _m("begin: inside of another operation", "if not on or na_busy:", "if not on:"),
    _m("begin: before what waits in the queue", "    return line is None or not len(line)",
       "    return True"),
    _m("begin: on a stream that the operation does not ask for",
       "    return own is None or own is stream", "    return True"),
    _m("begin: without room under a limit", "or not holds(device, at_is_limited, False)", ""),
    _m("begin: on a stream with a fault", "not holds(stream, at_broken, None) or not holds(device, at_lost, None)",
       "not holds(device, at_lost, None)"),
    _m("begin: on a lost device", "not holds(stream, at_broken, None) or not holds(device, at_lost, None)",
       "not holds(stream, at_broken, None)"),
    _m("begin: what failed is not noted",
       '        python["note_failed_enqueue"](error, submission, stream)\n        raise', "        raise"),
    _m("begin: a call with a stream goes to any",
       "return holds(get(launch, at_config), at_config_stream, None) and not get(launch, at_lazy)",
       "return not get(launch, at_lazy)"),
    _m("begin: work of async_on is not the stream's own", "put(submission, at_detached, True)", "pass"),
    _m("begin: a context with a limit is used", "isa(ctx, Context) and ctx.admission is None",
       "isa(ctx, Context)"),
    _m("begin: a used context seems unused", "        ctx._used = True", "        pass"),
    _m("begin: a chain's launch may run again",
       "        if isa(value, Launch) and is_plain(value) and holds(value, at_unused, True):\n"
       "            put(value, at_unused, False)",
       "        if isa(value, Launch) and is_plain(value):\n            put(value, at_unused, False)"),
    # --- numbers ---
    _m("number: two submissions share one", "number = <int64_t>get(stream, at_sequence) + 1",
       "number = max(1, <int64_t>get(stream, at_sequence))"),
    _m("number: a submission is not in flight", "    in_flight.append(submission)\n    count",
       "    count"),
    _m("number: the device forgets a stream at work", "    if count == 1:", "    if False:"),
    _m("number: work that may fail is trivial", "holds(submission, at_queue, None) and holds(",
       "True or holds("),
    _m("number: work with dependencies is trivial", "submission, at_dependencies, None) and",
       "submission, at_queue, None) and"),
    _m("number: work with a host side is trivial", "and holds(submission, at_after, None))", ")"),
    _m("number: bytes are not counted",
       "get(stream, at_stream_nbytes) + get(submission, at_nbytes)", "get(stream, at_stream_nbytes)"),
    _m("number: an empty submission gets one",
       "if holds(submission, at_is_empty, True) or not (<Lock>get(stream, at_lock)).is_free():",
       "if not (<Lock>get(stream, at_lock)).is_free():"),
    _m("number: the stream's lock is not asked",
       "if holds(submission, at_is_empty, True) or not (<Lock>get(stream, at_lock)).is_free():",
       "if holds(submission, at_is_empty, True):"),
    _m("signal: none without awaiters", "count % LOOK_EVERY == 0 or ", ""),
    _m("signal: later than the counter has bits",
       " or number - <int64_t>get(stream, at_last_signal) >= MAX_UNSIGNALLED", ""),
    _m("signal: one that fails, fails the launch", "    except lost:", "    except ():"),
    # --- settling: what is retired, and when ---
    _m("settle: one number late", "if <int64_t>first.sequence <= passed:",
       "if <int64_t>first.sequence < passed:"),
    _m("settle: what has not passed", "if <int64_t>submission.sequence > passed:",
       "if <int64_t>submission.sequence > passed + 1:"),
    _m("settle: not the last that has passed", "if <int64_t>submission.sequence > passed:",
       "if <int64_t>submission.sequence >= passed:"),
    _m("settle: the driver's word is not taken", "    if passed < confirmed:", "    if False:"),
    _m("settle: abandoned work is forgotten",
       " or PyObject_Size(get(stream, at_abandoned)):", ":"),
    _m("settle: a fault is overlooked",
       "if not holds(stream, at_broken, None) or PyObject_Size(", "if PyObject_Size("),
    _m("settle: errors of dependencies are overlooked",
       "    if not holds(stream, at_has_dependencies, False):", "    if False:"),
    _m("settle: dependencies are forgotten too early",
       '        python["Progress._retire"](stream, passed)\n        return 0\n    lock =',
       "        put(stream, at_has_dependencies, False)\n"
       '        python["Progress._retire"](stream, passed)\n        return 0\n    lock ='),
    _m("settle: objects are kept for ever",
       "                put(submission, at_keep_alive, [])\n", ""),
    _m("settle: work is never done",
       "                put(submission, at_done, True)\n", ""),
    _m("settle: every submission is trivial",
       "if is_sound and isa(submission, Submission) and holds(\n"
       "                submission, at_is_trivial, True\n            ):", "if True:"),
    _m("settle: gone before its host side has run",
       "                dropped.append(submission.retire(get(stream, at_broken)))\n",
       "                in_flight.popleft()\n"
       "                dropped.append(submission.retire(get(stream, at_broken)))\n"
       "                in_flight.appendleft(submission)\n"),
    _m("settle: the error of async_on is lost", "stream._unreported = error", "pass"),
    _m("settle: the latest error is reported, not the first",
       "submission.detached and stream._unreported is None", "submission.detached"),
    _m("settle: bytes are never given back",
       "get(stream, at_stream_nbytes) - submission.nbytes", "get(stream, at_stream_nbytes)"),
    _m("settle: an idle stream stays busy", "            stream._forget_if_idle()\n", ""),
    _m("settle: dropped inside of the lock",
       "dropped.append(get(submission, at_keep_alive))", "pass"),
    _m("settle: the stream's lock is not held",
       "    lock = get(stream, at_lock)\n    lock.take()\n    try:\n        in_flight, is_sound",
       "    lock = Lock()\n    lock.take()\n    try:\n        in_flight, is_sound"),
    _m("settle: the counter has no more than 32 bits",
       "self.passed += <uint32_t>((<volatile uint32_t*>self.word)[0] - <uint32_t>self.passed)",
       "self.passed = (<volatile uint32_t*>self.word)[0]"),
    # --- results ---
    _m("result: unverified numbers are accepted", "return 0 < number <= <int64_t>get(stream, at_verified) and is_open(stream)",
       "return is_open(stream)"),
    _m("result: of a stream with a fault", "return 0 < number <= <int64_t>get(stream, at_verified) and is_open(stream)",
       "return 0 < number <= <int64_t>get(stream, at_verified)"),
    _m("result: not verified after an await",
       '    if not is_verified(stream, number):\n        python["Progress.verify"](stream, number)\n    return value_of(op)',
       "    return value_of(op)"),
    _m("result: the error of an await is lost",
       "        yield from stream.wait_for_signal(number)\n"
       "    if not holds(submission, at_error, None):\n        submission.raise_error()",
       "        yield from stream.wait_for_signal(number)"),
    _m("result: the error of sync_on is lost",
       "        raise\n    if not holds(submission, at_error, None):\n        submission.raise_error()",
       "        raise"),
    _m("result: gather takes what is not done",
       "not isa(submission, Submission) or not holds(submission, at_done, True) or (",
       "not isa(submission, Submission) or ("),
    _m("result: gather loses an error", "            not holds(submission, at_error, None)\n            or <int64_t>",
       "            <int64_t>"),
    _m("result: gather takes what is not verified",
       "            > <int64_t>get(get(submission, at_stream), at_verified)",
       "            > <int64_t>get(get(submission, at_stream), at_sequence)"),
    _m("wait: what the driver has passed is not noted", "        put(stream, at_confirmed, number)", "        pass"),
    _m("wait: streams that were waited for are not settled",
       "and is_open(stream) and holds(stream, at_follows, None):", "and is_open(stream):"),
    _m("wait: a fault of the driver is overlooked", "if calls.synchronize() == 0:",
       "if calls.synchronize() >= 0:"),
    _m("poll: a fault of the driver is overlooked",
       "        return stream._spin_poll()  # which asks again, and raises the fault", "        pass"),
    _m("poll: work that is not done counts as done", "    if result == NOT_READY:\n        misses",
       "    if False:\n        misses"),
    # --- the driver ---
    _m("driver: an error of a launch is overlooked",
       "if calls.launch(&launch, &record.buffer, 1) == 0:", "if calls.launch(&launch, &record.buffer, 1) < 0:"),
    _m("driver: an error of launches together is overlooked", "        if launched < count:\n", "        if False:\n"),
    _m("driver: a failed launch is counted", "        if result != 0:\n            i -= 1\n", ""),
    _m("driver: a thread does not enter the device to launch",
       "        cdef int i = 0, result = 0\n        if na_ordinal != self.ordinal:",
       "        cdef int i = 0, result = 0\n        if False:"),
    _m("driver: a thread does not enter the device to wait",
       "        cdef int result\n        if na_ordinal != self.ordinal:",
       "        cdef int result\n        if False:"),
    _m("driver: a replaced method is not called",
       'if any(vars(cls)[name] is not python[f"CudaStream.{name}"] for name in METHODS):', "if False:"),
    _m("driver: launches together share one buffer",
       "arguments[count], launches[count] = block + used, &record.launch",
       "arguments[count], launches[count] = record.buffer, &record.launch"),
    _m("driver: launches together overflow the buffer",
       "or used + <Py_ssize_t>record.launch.size > CHUNK_BYTES", ""),
    # --- references ---
    _m("reference: what a slot held is never freed", "        Py_XDECREF(old);", ""),
    _m("reference: a tensor has one too many", "                Py_INCREF(tensor)\n",
       "                Py_INCREF(tensor); Py_INCREF(tensor)\n"),
    _m("reference: a fingerprint has one too many", "            Py_INCREF(part)\n",
       "            Py_INCREF(part); Py_INCREF(part)\n"),
    _m("reference: buffers of records are never freed", "        PyMem_Free(self.buffer)", "        pass"),
    # --- packed arguments ---
    _m("pack: 32 bits of a larger number", 'elif code == c"i" and number == <int32_t>number:',
       'elif code == c"i":'),
    _m("pack: 8 bits of a larger number", 'elif code == c"B" and number == <uint8_t>number:',
       'elif code == c"B":'),
    _m("pack: a float for an integer",
       "            value = PyNumber_Index(value)  # no float is an integer\n", ""),
    _m("pack: a float too large for 32 bits", "        if single - single != 0 and real - real == 0:\n            return False\n", ""),
    _m("pack: constants are left out",
       "            if not self.pack(self.count + i, constant):", "            if False:"),
    _m("pack: an argument that does not fit is launched",
       "elif not record.pack(i, value):\n                    return 2",
       "else:\n                    record.pack(i, value)"),
)  # fmt: skip


def build(folder: Path, flags: Sequence[str] = ("-O0", "-w")) -> None:
    """Compile the core of a copy of the checkout in place."""
    work = folder / "build"
    command = [sys.executable, "-c", BUILD, str(work), *flags]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(result.stdout[-2000:] + result.stderr[-2000:])
    module = next((work / "numbasync").glob("_core.*.so"))
    shutil.copy(module, folder / "numbasync")


def copy_of_checkout(folder: Path) -> None:
    ignored = shutil.ignore_patterns("_core.*.so", "__pycache__")
    for name in ("numbasync", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in ("pyproject.toml", "kernels", "examples"):
        (folder / name).symlink_to(ROOT / name)


def caught_by(mutant: Mutant | None, tests: Sequence[str] = TESTS) -> str:
    """The first test that fails with the fault; "" if none does. None: without a fault."""
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        copy_of_checkout(folder)
        original = SOURCE.read_text()
        changed = original if mutant is None else mutant.source(original)
        (folder / "numbasync" / "_core.pyx").write_text(changed)
        build(folder)
        path = os.pathsep.join([str(folder), str(ROOT / "kernels")])
        env = {**os.environ, "PYTHONPATH": path, "NUMBASYNC_NATIVE": "1"}
        env["PYTHONDONTWRITEBYTECODE"] = "1"
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
        try:
            result = subprocess.run(
                command, cwd=folder, env=env, capture_output=True, text=True, check=False,
                timeout=LIMIT_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"no end after {LIMIT_S} s"
        if result.returncode == 0:
            return ""
        failed = [n for n in result.stdout.splitlines() if n.startswith(("FAILED", "ERROR"))]
        return failed[0].split(" - ")[0] if failed else f"exit status {result.returncode}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names of faults")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    chosen = [m for m in MUTANTS if not options.names or any(n in m.name for n in options.names)]
    survivors = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for mutant, by in zip(chosen, pool.map(caught_by, chosen), strict=True):
            print(f"{'SURVIVES' if not by else 'caught  '}  {mutant.name}  {by}", flush=True)
            survivors += not by
    print(f"{len(chosen)} faults, {survivors} survive")
    return survivors


if __name__ == "__main__":
    sys.exit(main())
