"""Examples of stragglers and timetables for the API's description."""

from __future__ import annotations

from flyball_wire.closed_loop import (
    StragglerReport,
    StragglerView,
    Timetable,
    TimetableView,
    TimetableWindow,
)

STRAGGLER_REPORT = StragglerReport(
    rank=5, slowdown=1.15, from_time="2026-11-21T22:00:00+01:00", until_time=None
)

STRAGGLER = StragglerView(
    rank=5,
    source="announced",
    reason="slow",
    slowdown=1.15,
    from_time="2026-11-21T21:00:00+00:00",
    until_time=None,
    is_in_force=False,
)

DETECTED_STRAGGLER = StragglerView(
    rank=9,
    source="detected",
    reason="thermal",
    slowdown=1.083,
    from_time="2026-11-21T20:14:09.512000+00:00",
    until_time=None,
    is_in_force=True,
)

TIMETABLE = Timetable(
    windows=(
        TimetableWindow(from_time="22:00", until_time="06:00", target="least-energy"),
        TimetableWindow(
            from_time="17:00",
            until_time="20:00",
            target="power:8000",
            days=("mon", "tue", "wed", "thu", "fri"),
        ),
    ),
    timezone="Europe/Berlin",
)

TIMETABLE_VIEW = TimetableView(
    timetable=TIMETABLE, target_in_force="power:8000", next_change="2026-11-20T19:00:00+00:00"
)
