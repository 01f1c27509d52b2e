"""Sums of whole numbers that a worker has for itself: atomic additions to a small array which the
kernel does nothing else with.

Each call of the run function adds up in memory of its own, without locks, and adds that to the
array when its blocks are done. Whole numbers have the same sum in any order. Nobody can see that
the sums come late: the kernel reads neither them nor anything by which it waits for others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from numbasync.backend.cpu.regions.cut import CutKernel, Level
from numbasync.backend.cpu.regions.flow import natural_loops, that_return
from numbasync.backend.cpu.regions.instructions import Instruction, is_plain

BYTES = 1 << 14  # that the sums may take: what a processor has next to it
FEWEST = 8  # additions for each element, for which it is worth to clear and to add its sum

_ADDED = re.compile(r"atomicrmw (add|sub) ptr (%[\w.]+), (i32|i64) (\S+) .*")
_FIELD = re.compile(r"(%v\..+)\.[0-4]")


@dataclass(frozen=True, slots=True)
class _Array:
    """An array among the parameters, by the numbers of its fields' parameters.

    Attributes:
        null: fields that are null in an array, and not in what else has an address there.
    """

    null: tuple[int, int]
    count: int
    item: int
    data: int


@dataclass(frozen=True, slots=True)
class OwnSums:
    """An array of sums.

    Attributes:
        kind: the type of its elements.
        addresses: values that are addresses of its elements.
        array: the array.
        others: all other arrays among the parameters.
    """

    kind: str
    addresses: frozenset[str]
    array: _Array
    others: tuple[_Array, ...]

    def begin_lines(self) -> list[str]:
        """Decide, in the run function, whether the sums are kept apart, as `own.is_apart`.

        `own.data` is the place to add to.
        """
        nbytes = int(self.kind[1:]) // 8
        one = self.array
        lines = [*_end_lines("own", one), "  %own.good.0 = icmp ne i64 %first, %end"]
        tests: list[str] = [
            *(f"icmp eq ptr %argument.{n}, null" for a in (one, *self.others) for n in a.null),
            f"icmp eq i64 %argument.{one.item}, {nbytes}",
            f"icmp ne i64 %argument.{one.count}, 0",
            f"icmp ule i64 %own.bytes, {BYTES}",
            "icmp uge i64 %own.threads, %own.needed",
        ]
        lines += [
            "  %own.blocks = sub i64 %end, %first",
            "  %own.threads = mul i64 %own.blocks, %threads",
            f"  %own.needed = mul i64 %own.bytes, {FEWEST // nbytes}",
        ]
        for k, other in enumerate(self.others):
            lines += [
                *_end_lines(f"own.{k}", other),
                f"  %own.{k}.before = icmp ule i64 %own.{k}.end, %own.first",
                f"  %own.{k}.behind = icmp uge i64 %own.{k}.first, %own.end",
                f"  %own.{k}.is_apart = or i1 %own.{k}.before, %own.{k}.behind",
            ]
            tests.append(f"icmp ne i1 %own.{k}.is_apart, 0")
        for k, test in enumerate(tests):
            lines.append(f"  %own.test.{k} = {test}")
            lines.append(f"  %own.good.{k + 1} = and i1 %own.good.{k}, %own.test.{k}")
        return [
            *lines,
            f"  %own.is_apart = and i1 %own.good.{len(tests)}, 1",
            "  %own.size = select i1 %own.is_apart, i64 %own.bytes, i64 0",
            "  call void @llvm.memset.p0.i64(ptr %m.own, i8 0, i64 %own.size, i1 0)",
            f"  %own.data = select i1 %own.is_apart, ptr %m.own, ptr %argument.{one.data}",
        ]

    def end_lines(self) -> list[str]:
        """Add the sums to the array."""
        shift = (int(self.kind[1:]) // 8).bit_length() - 1
        return [
            f"  %own.count = lshr i64 %own.size, {shift}",
            f"  call void @na.give(ptr %argument.{self.array.data}, ptr %m.own, i64 %own.count)",
        ]

    def call(self, text: str) -> str:
        """The call for an addition, by its text."""
        match = _ADDED.fullmatch(text)
        assert match is not None  # so it was chosen
        operation, address, kind, value = match.groups()
        return f"call void @na.{operation}(ptr {address}, {kind} {value}, i1 %na.is_apart)"

    def functions(self) -> list[str]:
        """The functions that are called."""
        kind = self.kind
        lines = []
        for operation in ("add", "sub"):
            head = f"@na.{operation}(ptr %p, {kind} %v, i1 %is_apart)"
            lines += [
                f"define internal void {head} alwaysinline {{",
                "  br i1 %is_apart, label %own, label %of_all",
                "own:",
                f"  %old = load {kind}, ptr %p",
                f"  %new = {operation} {kind} %old, %v",
                f"  store {kind} %new, ptr %p",
                "  ret void",
                "of_all:",
                f"  %unused = atomicrmw {operation} ptr %p, {kind} %v monotonic",
                "  ret void",
                "}",
            ]
        return [
            *lines,
            "define internal void @na.give(ptr %to, ptr %from, i64 %count) noinline {",
            "top:",
            "  br label %head",
            "head:",
            "  %k = phi i64 [ 0, %top ], [ %k1, %next ]",
            "  %more = icmp ult i64 %k, %count",
            "  br i1 %more, label %one, label %end",
            "one:",
            f"  %p = getelementptr inbounds {kind}, ptr %from, i64 %k",
            f"  %v = load {kind}, ptr %p",
            f"  %is_none = icmp eq {kind} %v, 0",
            "  br i1 %is_none, label %next, label %add",
            "add:",
            f"  %q = getelementptr inbounds {kind}, ptr %to, i64 %k",
            f"  %unused = atomicrmw add ptr %q, {kind} %v monotonic",
            "  br label %next",
            "next:",
            "  %k1 = add nuw nsw i64 %k, 1",
            "  br label %head",
            "end:",
            "  ret void",
            "}",
        ]


def _end_lines(stem: str, array: _Array) -> list[str]:
    """The addresses between which an array's elements lie: `STEM.first` and `STEM.end`."""
    return [
        f"  %{stem}.first = ptrtoint ptr %argument.{array.data} to i64",
        f"  %{stem}.bytes = mul i64 %argument.{array.count}, %argument.{array.item}",
        f"  %{stem}.end = add i64 %{stem}.first, %{stem}.bytes",
    ]


def find_own_sums(kernel: CutKernel) -> OwnSums | None:
    """The array of a kernel to which it only adds, if there is one and nothing that could wait."""
    code = [i for block in kernel.function.blocks.values() for i in block]
    if any(b.level is not Level.LOOP for b in kernel.barriers) or not _ends_by_itself(kernel, code):
        return None
    arrays = _arrays(kernel.function.parameters, {u for i in code for u in i.uses})
    for array in arrays:
        found = _only_added_to(kernel.function.parameters[array.data][1], code)
        if found is not None:
            others = tuple(a for a in arrays if a is not array)
            return OwnSums(found[0], frozenset(found[1]), array, others)
    return None


def _ends_by_itself(kernel: CutKernel, code: list[Instruction]) -> bool:
    """Whether no thread can wait for what others write: none learns what others have added, and no
    way in a loop hangs on what is read in it.
    """
    used = {u for i in code for u in i.uses}
    for i in code:
        if i.opcode in ("load", "store") and not is_plain(i):
            return False
        if i.opcode in ("fence", "cmpxchg") or (i.opcode == "atomicrmw" and i.result in used):
            return False
    blocks, graph = kernel.function.blocks, kernel.function.successors()
    goes_on = that_return(blocks, graph)
    made = kernel.function.definitions()
    for loop in natural_loops(graph, kernel.function.entry):
        waiting = [
            u
            for b in loop.blocks
            if len(goes_on.intersection(graph[b])) > 1
            for u in blocks[b][-1].uses
        ]
        seen = set(waiting)
        while waiting:
            value = waiting.pop()
            if value in made and made[value][0] in loop.blocks:
                i = made[value][1]
                if i.opcode == "load":
                    return False
                waiting += [u for u in i.uses if u not in seen]
                seen.update(i.uses)
    return True


def _only_added_to(address: str, code: list[Instruction]) -> tuple[str, set[str]] | None:
    """The type of what is added, and the addresses; None if anything else is done with them."""
    addresses, count = {address}, 0
    while count < len(addresses):  # an address may be used before the line that makes it
        count = len(addresses)
        steps = [i for i in code if i.opcode == "getelementptr" and i.uses[:1]]
        addresses.update(i.result for i in steps if i.uses[0] in addresses)
    kinds = set()
    for i in code:
        if addresses.isdisjoint(i.uses) or i.result in addresses:
            continue
        match = _ADDED.fullmatch(i.text)
        if match is None or match[2] not in addresses or match[4] in addresses:
            return None
        kinds.add(match[3])
    return (kinds.pop(), addresses) if len(kinds) == 1 else None


def _arrays(parameters: list[tuple[str, str]], used: set[str]) -> list[_Array]:
    """The arrays among the parameters, whose elements lie one behind the other; none if other
    addresses are among them, or an array with strides that are asked for.
    """
    numbers = {name: n for n, (_, name) in enumerate(parameters)}
    kinds = {name: kind for kind, name in parameters}
    found, inside = [], set()
    for stem in dict.fromkeys(m[1] for name in numbers if (m := _FIELD.fullmatch(name))):
        fields = [f"{stem}.{k}" for k in range(5)]
        if [kinds.get(name) for name in fields] == ["ptr", "ptr", "i64", "i64", "ptr"]:
            n = [numbers[name] for name in fields]
            found.append(_Array((n[0], n[1]), *n[2:]))
            inside.update(fields)
            if any(name.startswith(f"{stem}.6.") for name in used):
                return []
    is_known = all(kind != "ptr" or name in inside for kind, name in parameters)
    return found if is_known else []
