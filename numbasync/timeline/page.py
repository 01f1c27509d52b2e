"""A timeline as one page of HTML, which asks nobody for anything."""

from __future__ import annotations

import json
from pathlib import Path

from numbasync.timeline.summary import TraceSummary
from numbasync.timeline.tracks import HOST, Line, Track

TEMPLATE = Path(__file__).with_name("page.html")
DATA = "@DATA@"  # in the template, once


def page(tracks: list[Track], lines: list[Line], summary: TraceSummary) -> str:
    """The page: lanes that can be moved, magnified and searched, counters, and the summary."""
    data = {
        "title": summary.title,
        "us": max([summary.seconds, *(s.ended for track in tracks for s in track.slices)]) * 1e6,
        "rows": summary.rows,
        "tracks": [
            {
                "group": "" if track.group == HOST else track.group,
                "name": track.name,
                "slices": [
                    [s.what, s.name, round(s.began * 1e6, 2), round((s.ended - s.began) * 1e6, 2),
                     s.details]
                    for s in track.slices
                ],
            }
            for track in tracks
        ],
        "lines": [
            {
                "group": "" if line.group == HOST else line.group,
                "name": line.name,
                "unit": line.unit,
                "points": [[round(at * 1e6, 2), value] for at, value in line.points],
            }
            for line in lines
        ],
    }  # fmt: skip
    # Inside of a script element nothing may look like a mark of HTML.
    text = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    before, after = TEMPLATE.read_text(encoding="utf-8").split(DATA)
    return f"{before}{text}{after}"
