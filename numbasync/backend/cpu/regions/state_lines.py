"""Lines of code that the states of a block have in common."""

from __future__ import annotations

from collections.abc import Collection


def cases(labels: dict[int, str]) -> str:
    return " ".join(f"i32 {number}, label {label}" for number, label in labels.items())


def copy_lines(kind: str, source: str, target: str, name: str) -> list[str]:
    return [f"  {name} = load {kind}, ptr {source}", f"  store {kind} {name}, ptr {target}"]


def choose(
    result: str,
    masks: str,
    base: str,
    count: str,
    soft: Collection[int],
    is_strict: bool = False,
) -> str:
    """The call that says where threads go on together; see `helper_code`.

    Args:
        masks: the places of the lanes that meet; `%na.next` if all do.
        soft: numbers of the barriers to which not all have to come, one behind the other.
    """
    has_masks = int(masks != "%na.next")
    return (
        f"  {result} = call i32 @na.choose(ptr %na.next, ptr {masks}, i64 {base}, i64 {count}, "
        f"i32 {min(soft, default=-2)}, i32 {max(soft, default=-2)}, i1 {int(is_strict)}, "
        f"i1 {has_masks})"
    )


def store_lines(kind: str, value: str, place: str, name: str, more: str = "") -> list[str]:
    """Store a value; in memory an i1 is a byte, here called `name`."""
    if kind != "i1":
        return [f"  store {kind} {value}, ptr {place}{more}"]
    return [f"  {name} = zext i1 {value} to i8", f"  store i8 {name}, ptr {place}{more}"]


def load_lines(kind: str, result: str, place: str, more: str = "") -> list[str]:
    if kind != "i1":
        return [f"  {result} = load {kind}, ptr {place}{more}"]
    return [
        f"  {result}.byte = load i8, ptr {place}{more}",
        f"  {result} = trunc i8 {result}.byte to i1",
    ]


def access(address: int | str, mode: int) -> str:
    return (
        f"call i64 @numbasync_access(i64 %na.memory64, i64 {address}, i64 0, i64 {mode}, "
        "i64 0, i64 0, i64 0, i64 0)"
    )


def extremes_lines(value: str, tag: str, least: str, most: str) -> list[str]:
    """Let two variables be the least and the most of what came before and a number."""
    return [
        f"  %{tag}.a = load i32, ptr {least}",
        f"  %{tag}.b = call i32 @llvm.smin.i32(i32 %{tag}.a, i32 {value})",
        f"  store i32 %{tag}.b, ptr {least}",
        f"  %{tag}.c = load i32, ptr {most}",
        f"  %{tag}.d = call i32 @llvm.smax.i32(i32 %{tag}.c, i32 {value})",
        f"  store i32 %{tag}.d, ptr {most}",
    ]


def latch_lines(tag: str) -> list[str]:
    """What is done behind each thread of a region whose threads may end at different barriers."""
    return [
        f"{tag}.latch:",
        f"  %{tag}.latch.n = load i32, ptr %na.last",
        *extremes_lines(f"%{tag}.latch.n", f"{tag}.latch", "%na.least", "%na.most"),
        f"  br label %{tag}.next",
    ]
