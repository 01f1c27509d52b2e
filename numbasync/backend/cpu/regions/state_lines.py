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


def wide(kind: str, name: str) -> str:
    return f"{name}.w" if kind == "i1" else name


def widened(kind: str, name: str) -> list[str]:
    return [f"  {name}.w = zext i1 {name} to i8"] if kind == "i1" else []


def access(address: int | str, mode: int) -> str:
    return (
        f"call i64 @numbasync_access(i64 %na.memory64, i64 {address}, i64 0, i64 {mode}, "
        "i64 0, i64 0, i64 0, i64 0)"
    )


def latch_lines(tag: str) -> list[str]:
    """What is done behind each thread of a region whose threads may end at different barriers."""
    x = f"%{tag}.latch"
    return [
        f"{tag}.latch:",
        f"  {x}.n = load i32, ptr %na.last",
        f"  {x}.a = load i32, ptr %na.least",
        f"  {x}.b = call i32 @llvm.smin.i32(i32 {x}.a, i32 {x}.n)",
        f"  store i32 {x}.b, ptr %na.least",
        f"  {x}.c = load i32, ptr %na.most",
        f"  {x}.d = call i32 @llvm.smax.i32(i32 {x}.c, i32 {x}.n)",
        f"  store i32 {x}.d, ptr %na.most",
        f"  br label %{tag}.next",
    ]
