"""The loops over the threads of a block, or over the lanes of a warp."""

from __future__ import annotations

from typing import TYPE_CHECKING

from numbasync.backend.cpu.regions.cut import Level

if TYPE_CHECKING:
    from numbasync.backend.cpu.regions.region import Settings, Written

WARP = 32


class Loops:
    """Loops around a body, which goes on at `TAG.next` and is followed by `TAG.after`.

    The body finds `TAG.na.tid`, an i64, and `TAG.na.tx`, `.ty`, `.tz`, which are i32.
    """

    def __init__(
        self, tag: str, level: Level, settings: Settings, out: Written, has_vectors: bool
    ) -> None:
        self._tag, self._level, self._settings, self._out = tag, level, settings, out
        is_short = level is Level.WARP
        self._kind = ("short" if is_short else "vectors") if has_vectors else "scalar"

    def head(self) -> list[str]:
        if self._settings.ordered:
            return self._named(self._ordered_head())
        if self._level is Level.WARP:
            return self._named(self._warp_head())
        return self._named(self._row_head() if self._settings.row else self._block_head())

    def tail(self) -> list[str]:
        if self._settings.ordered:
            return self._named(self._end("k", "%na.threads", "@.after"))
        if self._level is Level.WARP:
            return self._named(self._end("l", "%@.lanes", "@.after"))
        if self._settings.row:
            return self._named(self._end("x", "%na.threads", "@.after"))
        return self._named(
            [
                *self._end("x", "%na.wx64", "@.y_end"),
                "@.y_end:",
                *self._end("y", "%na.wy64", "@.z_end")[1:],
                "@.z_end:",
                *self._end("z", "%na.wz64", "@.after")[1:],
            ]
        )

    def _named(self, lines: list[str]) -> list[str]:
        return [line.replace("@.", f"{self._tag}.") for line in lines]

    def _end(self, letter: str, extent: str, behind: str) -> list[str]:
        metadata = "" if self._settings.ordered else self._out.loop_metadata(self._kind)
        return [
            "@.next:",
            f"  %@.{letter}1 = add nuw nsw i64 %@.{letter}, 1",
            f"  %@.{letter}_more = icmp ult i64 %@.{letter}1, {extent}",
            f"  br i1 %@.{letter}_more, label %@.{letter}_head, label %{behind}{metadata}",
        ]

    @staticmethod
    def _begin(letter: str, before: str, last: str) -> list[str]:
        return [
            f"  br label %@.{letter}_head",
            f"@.{letter}_head:",
            f"  %@.{letter} = phi i64 [ 0, %@.{before} ], [ %@.{letter}1, %@.{last} ]",
        ]

    def _row_head(self) -> list[str]:
        return [
            *self._begin("x", "start", "next"),
            "  %@.na.tid = add nuw nsw i64 %@.x, 0",
            "  %@.na.tx = trunc nuw nsw i64 %@.x to i32",
            "  %@.na.ty = add i32 0, 0",
            "  %@.na.tz = add i32 0, 0",
        ]

    def _block_head(self) -> list[str]:
        return [
            *self._begin("z", "start", "z_end"),
            *self._begin("y", "z_head", "y_end"),
            "  %@.plane = mul nuw nsw i64 %@.z, %na.wy64",
            "  %@.rows = add nuw nsw i64 %@.plane, %@.y",
            "  %@.before = mul nuw nsw i64 %@.rows, %na.wx64",
            *self._begin("x", "y_head", "next"),
            "  %@.na.tid = add nuw nsw i64 %@.before, %@.x",
            *(f"  %@.na.t{c} = trunc nuw nsw i64 %@.{c} to i32" for c in "xyz"),
        ]

    def _from_number(self) -> list[str]:
        """Coordinates from `na.tid`."""
        return [
            "  %@.number = trunc nuw nsw i64 %@.na.tid to i32",
            "  %@.na.tx = urem i32 %@.number, %na.wx",
            "  %@.row = udiv i32 %@.number, %na.wx",
            "  %@.na.ty = urem i32 %@.row, %na.wy",
            "  %@.na.tz = udiv i32 %@.row, %na.wy",
        ]

    def _warp_head(self) -> list[str]:
        coordinates = self._from_number()
        if self._settings.row:
            coordinates = [
                "  %@.na.tx = trunc nuw nsw i64 %@.na.tid to i32",
                "  %@.na.ty = add i32 0, 0",
                "  %@.na.tz = add i32 0, 0",
            ]
        return [
            "  %@.base = load i64, ptr %na.base",
            "  %@.lanes = load i64, ptr %na.lanes",
            *self._begin("l", "start", "next"),
            "  %@.na.tid = add nuw nsw i64 %@.base, %@.l",
            *coordinates,
        ]

    def _ordered_head(self) -> list[str]:
        lines = [
            *self._begin("k", "start", "next"),
            "  %@.turn = getelementptr inbounds i64, ptr %na.turns, i64 %@.k",
            "  %@.na.tid = load i64, ptr %@.turn",
            *self._from_number(),
        ]
        if self._level is Level.WARP:
            lines.insert(0, "  %@.base = load i64, ptr %na.base")
            lines += [
                "  %@.warp = and i64 %@.na.tid, -32",
                "  %@.is_mine = icmp eq i64 %@.warp, %@.base",
                "  br i1 %@.is_mine, label %@.mine, label %@.next",
                "@.mine:",
            ]
        return lines
