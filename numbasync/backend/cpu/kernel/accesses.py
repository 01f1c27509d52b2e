"""What an access means in checked code: a call of the rules of `races`, in LLVM's language."""

from __future__ import annotations

import re

from numbasync.backend.cpu.races import rules, words
from numbasync.backend.cpu.target.module import STOPPED

_TEXT = f"""
define internal i32 @na.access(i32 %mode, i32 %site, ptr %address, i64 %bytes) alwaysinline {{
  %memory = call ptr @na.memory()
  %x = call i32 @na.tx()
  %y = call i32 @na.ty()
  %z = call i32 @na.tz()
  %place = getelementptr i64, ptr %memory, i64 {words.STATE}
  %state = load ptr, ptr %place
  %is.plain = icmp slt i32 %mode, {words.ATOMIC}
  br i1 %is.plain, label %plain, label %judge
plain:
  %turns = getelementptr i64, ptr %state, i64 {words.TURNS}
  store i64 0, ptr %turns
  br label %judge
judge:
  %m = ptrtoint ptr %memory to i64
  %a = ptrtoint ptr %address to i64
  %mode64 = zext i32 %mode to i64
  %site64 = sext i32 %site to i64
  %x64 = zext i32 %x to i64
  %y64 = zext i32 %y to i64
  %z64 = zext i32 %z to i64
  %kind64 = call i64 @{rules.SYMBOL}(i64 %m, i64 %a, i64 %bytes, i64 %mode64, i64 %site64, i64 %x64,
                               i64 %y64, i64 %z64)
  %is.wrong = icmp ne i64 %kind64, 0
  br i1 %is.wrong, label %wrong, label %right
wrong:
  %kind = trunc i64 %kind64 to i32
  %some.place = getelementptr i64, ptr %state, i64 {words.SOME}
  %some = load i64, ptr %some.place
  %all.place = getelementptr i64, ptr %state, i64 {words.ALL}
  %all = load i64, ptr %all.place
  call void @na.note(i32 %kind, i32 %site, i64 0, i64 %some, i64 %all)
  ret i32 {STOPPED}
right:
  ret i32 0
}}
"""
_NEEDED = {
    "na.memory": "ptr @na.memory()",
    "na.tx": "i32 @na.tx()",
    "na.ty": "i32 @na.ty()",
    "na.tz": "i32 @na.tz()",
    "na.note": "void @na.note(i32, i32, i64, i64, i64)",
    rules.SYMBOL: f"i64 @{rules.SYMBOL}({', '.join(['i64'] * 8)})",
}


def with_definitions(text: str) -> str:
    """A module's text, in which `na.access` is defined."""
    rules.ready()
    text = re.sub(r"^declare [^\n]*@(?:\"na\.access\"|na\.access)\([^\n]*\n", "", text, flags=re.M)
    declared = set(re.findall(r"^declare [^\n]*?@\"?([\w.]+)\"?\(", text, flags=re.M))
    missing = [f"declare {line}\n" for name, line in _NEEDED.items() if name not in declared]
    return text + "\n" + "".join(missing) + _TEXT
