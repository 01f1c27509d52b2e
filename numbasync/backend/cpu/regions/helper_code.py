"""Functions of LLVM's language that the code of a kernel calls on its rare ways."""

from __future__ import annotations

from collections.abc import Iterable

from numbasync.backend.cpu.record import DIVERGED

ALL = 65536  # added to a barrier's number if every thread that is asked waits there
FAILED_STATUS = 3

_CHOOSE = f"""
; Where those threads go on together: of soft barriers (of warps, of loops) the first at which
; anybody waits and whose members are all there; else the one barrier at which all wait who have not
; returned. 0: all have returned. -1: they wait at different barriers.
define internal i32 @na.choose(ptr %next, ptr %masks, i64 %base, i64 %count, i32 %soft_first,
    i32 %soft_last, i1 %strict, i1 %has_masks) noinline {{
top:
  br label %scan
scan:
  %l = phi i64 [ 0, %top ], [ %l1, %scan ]
  %soft_least = phi i32 [ 2147483647, %top ], [ %soft_least1, %scan ]
  %soft_most = phi i32 [ 0, %top ], [ %soft_most1, %scan ]
  %hard_least = phi i32 [ 2147483647, %top ], [ %hard_least1, %scan ]
  %hard_most = phi i32 [ 0, %top ], [ %hard_most1, %scan ]
  %least = phi i32 [ 2147483647, %top ], [ %least1, %scan ]
  %at = add i64 %base, %l
  %p = getelementptr inbounds i32, ptr %next, i64 %at
  %e = load i32, ptr %p
  %ge = icmp sge i32 %e, %soft_first
  %le = icmp sle i32 %e, %soft_last
  %is_soft = and i1 %ge, %le
  %is_none = icmp eq i32 %e, 0
  %not_hard = or i1 %is_soft, %is_none
  %s1 = select i1 %is_soft, i32 %e, i32 2147483647
  %s0 = select i1 %is_soft, i32 %e, i32 0
  %h1 = select i1 %not_hard, i32 2147483647, i32 %e
  %h0 = select i1 %not_hard, i32 0, i32 %e
  %soft_least1 = call i32 @llvm.smin.i32(i32 %soft_least, i32 %s1)
  %soft_most1 = call i32 @llvm.smax.i32(i32 %soft_most, i32 %s0)
  %hard_least1 = call i32 @llvm.smin.i32(i32 %hard_least, i32 %h1)
  %hard_most1 = call i32 @llvm.smax.i32(i32 %hard_most, i32 %h0)
  %least1 = call i32 @llvm.smin.i32(i32 %least, i32 %e)
  %l1 = add nuw nsw i64 %l, 1
  %more = icmp ult i64 %l1, %count
  br i1 %more, label %scan, label %scanned
scanned:
  %some_returned = icmp eq i32 %least1, 0
  %has_soft = icmp ne i32 %soft_most1, 0
  br i1 %has_soft, label %soft, label %hard
hard:
  %none = icmp eq i32 %hard_most1, 0
  %differ = icmp ne i32 %hard_least1, %hard_most1
  %misses = and i1 %some_returned, %strict
  %wrong = or i1 %differ, %misses
  %flag = select i1 %some_returned, i32 0, i32 {ALL}
  %good = or i32 %hard_most1, %flag
  %bad = select i1 %wrong, i32 -1, i32 %good
  %r = select i1 %none, i32 0, i32 %bad
  ret i32 %r
soft:
  %one = icmp eq i32 %soft_least1, %soft_most1
  %no_hard = icmp eq i32 %hard_most1, 0
  %alone0 = and i1 %one, %no_hard
  %all_there = icmp ne i32 %least1, 0
  %alone = and i1 %alone0, %all_there
  %soft_all = or i32 %soft_least1, {ALL}
  br i1 %alone, label %together, label %several
together:
  ret i32 %soft_all
several:
  br i1 %has_masks, label %try, label %first
first:
  ret i32 %soft_least1
try:
  %t = phi i32 [ %soft_least1, %several ], [ %t1, %tried ]
  br label %members
members:
  %m = phi i64 [ 0, %try ], [ %m1, %members ]
  %there = phi i32 [ 0, %try ], [ %there1, %members ]
  %wanted = phi i32 [ 0, %try ], [ %wanted1, %members ]
  %inside = icmp ult i64 %m, %count
  %m_in = select i1 %inside, i64 %m, i64 0
  %m_at = add i64 %base, %m_in
  %mp = getelementptr inbounds i32, ptr %next, i64 %m_at
  %me = load i32, ptr %mp
  %mq = getelementptr inbounds i32, ptr %masks, i64 %m_at
  %mask = load i32, ptr %mq
  %is_here = icmp eq i32 %me, %t
  %is_gone = icmp eq i32 %me, 0
  %outside = xor i1 %inside, true
  %c1 = or i1 %is_here, %is_gone
  %c2 = or i1 %c1, %outside
  %m32 = trunc i64 %m to i32
  %bit = shl i32 1, %m32
  %bit_or = select i1 %c2, i32 %bit, i32 0
  %there1 = or i32 %there, %bit_or
  %c3 = and i1 %is_here, %inside
  %mask_or = select i1 %c3, i32 %mask, i32 0
  %wanted1 = or i32 %wanted, %mask_or
  %m1 = add nuw nsw i64 %m, 1
  %m_more = icmp ult i64 %m1, 32
  br i1 %m_more, label %members, label %tried
tried:
  %missing0 = xor i32 %there1, -1
  %missing = and i32 %wanted1, %missing0
  %complete = icmp eq i32 %missing, 0
  %somebody = icmp ne i32 %wanted1, 0
  %ready = and i1 %complete, %somebody
  %t1 = add i32 %t, 1
  %t_more = icmp sle i32 %t1, %soft_most1
  %again = xor i1 %ready, true
  %go_on = and i1 %again, %t_more
  br i1 %go_on, label %try, label %decided
decided:
  %found = select i1 %ready, i32 %t, i32 %soft_least1
  ret i32 %found
}}
"""

_DIVERGED = f"""
; The record of threads that do not come to a barrier at which others wait: of the first such one.
define internal void @na.diverged(ptr %record, ptr %next, i64 %count, i64 %wx, i64 %wy, i64 %bx,
    i64 %by, i64 %bz) noinline cold {{
top:
  %kind = load i64, ptr %record
  %is_free = icmp eq i64 %kind, 0
  br i1 %is_free, label %find, label %end
find:
  %l = phi i64 [ 0, %top ], [ %l1, %find ]
  %e = phi i32 [ 2147483647, %top ], [ %e1, %find ]
  %p = getelementptr inbounds i32, ptr %next, i64 %l
  %v = load i32, ptr %p
  %waits = icmp sgt i32 %v, 0
  %w = select i1 %waits, i32 %v, i32 2147483647
  %e1 = call i32 @llvm.smin.i32(i32 %e, i32 %w)
  %l1 = add i64 %l, 1
  %f.more = icmp ult i64 %l1, %count
  br i1 %f.more, label %find, label %compare
compare:
  %c = phi i64 [ 0, %find ], [ %c1, %compare ]
  %n = phi i64 [ 0, %find ], [ %n1, %compare ]
  %missing = phi i64 [ -1, %find ], [ %missing1, %compare ]
  %q = getelementptr inbounds i32, ptr %next, i64 %c
  %o = load i32, ptr %q
  %same = icmp eq i32 %o, %e1
  %one = zext i1 %same to i64
  %n1 = add i64 %n, %one
  %is_first = icmp eq i64 %missing, -1
  %differs = xor i1 %same, true
  %take = and i1 %is_first, %differs
  %missing1 = select i1 %take, i64 %c, i64 %missing
  %c1 = add i64 %c, 1
  %c.more = icmp ult i64 %c1, %count
  br i1 %c.more, label %compare, label %write
write:
  %e64 = zext i32 %e1 to i64
  %s = getelementptr inbounds i32, ptr @na.sites, i64 %e64
  %site32 = load i32, ptr %s
  %site = sext i32 %site32 to i64
  call void @na.record(ptr %record, i64 {DIVERGED}, i64 %site, i64 0, i64 %n1, i64 %count,
    i64 %missing1, i64 %wx, i64 %wy, i64 %bx, i64 %by, i64 %bz)
  br label %end
end:
  ret void
}}
"""

_RECORD = (
    """
define internal void @na.record(ptr %record, i64 %kind, i64 %site, i64 %a, i64 %b, i64 %c,
    i64 %thread, i64 %wx, i64 %wy, i64 %bx, i64 %by, i64 %bz) noinline cold {
  %old = load i64, ptr %record
  %is_free = icmp eq i64 %old, 0
  br i1 %is_free, label %write, label %end
write:
  %x = urem i64 %thread, %wx
  %row = udiv i64 %thread, %wx
  %y = urem i64 %row, %wy
  %z = udiv i64 %row, %wy
"""
    + "".join(
        f"  %p{i} = getelementptr inbounds i64, ptr %record, i64 {i}\n"
        f"  store i64 {value}, ptr %p{i}\n"
        for i, value in enumerate(
            ["%kind", "%site", "%a", "%b", "%c", "%bx", "%by", "%bz", "%x", "%y", "%z"]
        )
    )
    + """  br label %end
end:
  ret void
}
"""
)

_FILL = """
define internal void @na.fill(ptr %places, i64 %base, i64 %count, i32 %value) {
top:
  br label %loop
loop:
  %l = phi i64 [ 0, %top ], [ %l1, %loop ]
  %at = add i64 %base, %l
  %p = getelementptr inbounds i32, ptr %places, i64 %at
  store i32 %value, ptr %p
  %l1 = add nuw nsw i64 %l, 1
  %more = icmp ult i64 %l1, %count
  br i1 %more, label %loop, label %end
end:
  ret void
}
"""

# Each comes before those that it calls.
_FUNCTIONS = {
    "@na.choose(": _CHOOSE,
    "@na.diverged(": _DIVERGED,
    "@na.record(": _RECORD,
    "@na.fill(": _FILL,
}


def helpers(lines: Iterable[str]) -> list[str]:
    """The functions that code calls. LLVM would drop the others, after it has simplified them."""
    code = "\n".join(lines)
    found: list[str] = []
    for call, text in _FUNCTIONS.items():
        if call in code:
            found.append(text)
            code += text
    return found
