"""Lines of code that the states of a block have in common."""

from __future__ import annotations


def cases(labels: dict[int, str]) -> str:
    return " ".join(f"i32 {number}, label {label}" for number, label in labels.items())


def copy_lines(kind: str, source: str, target: str, name: str) -> list[str]:
    return [f"  {name} = load {kind}, ptr {source}", f"  store {kind} {name}, ptr {target}"]


def wide(kind: str, name: str) -> str:
    return f"{name}.w" if kind == "i1" else name


def widened(kind: str, name: str) -> list[str]:
    return [f"  {name}.w = zext i1 {name} to i8"] if kind == "i1" else []


def access(address: int | str, mode: int) -> str:
    return (
        f"call i64 @numbasync_access(i64 %na.memory64, i64 {address}, i64 0, i64 {mode}, "
        "i64 0, i64 0, i64 0, i64 0)"
    )
