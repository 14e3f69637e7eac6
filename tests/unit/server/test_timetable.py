"""Targets by the time of day, through midnight, weekends and both changes of the hour."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball_server.jobs.errors import InvalidFieldError
from flyball_server.jobs.wanted.timetable import (
    MAX_WINDOWS,
    check_timetable,
    next_change,
    target_at,
)
from flyball_wire.closed_loop import Timetable, TimetableWindow, Weekday

BERLIN = "Europe/Berlin"
NIGHT = TimetableWindow(from_time="22:00", until_time="06:00", target="least-energy")


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def table(*windows: TimetableWindow, timezone: str = BERLIN) -> Timetable:
    timetable = Timetable(windows=windows, timezone=timezone)
    check_timetable(timetable)
    return timetable


def window(
    from_time: str,
    until_time: str,
    target: str = "power:8000",
    days: tuple[Weekday, ...] | None = None,
) -> TimetableWindow:
    return TimetableWindow(from_time=from_time, until_time=until_time, target=target, days=days)


def changes(timetable: Timetable, first: str, num_changes: int) -> list[tuple[str, str]]:
    """The next changes after a moment, in UTC, each with the target from then on."""
    found: list[tuple[str, str]] = []
    now: datetime | None = at(first)
    for _ in range(num_changes):
        assert now is not None
        now = next_change(timetable, now)
        if now is None:
            break
        found.append((now.strftime("%d %H:%M"), target_at(timetable, now) or "fastest"))
    return found


# ------------------------------------------------------------------ by the wall clock


def test_of_windows_that_hold_at_once_the_first_counts() -> None:
    timetable = table(window("12:00", "13:00", "slowdown:0.1"), window("08:00", "18:00"))
    assert target_at(timetable, at("2026-11-21T12:30:00+01:00")) == "slowdown:0.1"
    assert target_at(timetable, at("2026-11-21T13:00:00+01:00")) == "power:8000"
    assert [when for when, _ in changes(timetable, "2026-11-21T00:00:00+01:00", 4)] == [
        "21 07:00",
        "21 11:00",
        "21 12:00",
        "21 17:00",
    ]


NOVEMBER = "2026-11-20T12:00:00+01:00"
# 29 March, 02:00 becomes 03:00 in Berlin; 25 October, 03:00 becomes 02:00.
FORWARD, BACK = "2026-03-28T12:00:00+01:00", "2026-10-24T12:00:00+02:00"


@pytest.mark.parametrize(
    ("held", "first", "expected"),
    [
        # One with dates holds once.
        (
            window("2026-11-21T10:00:00+01:00", "2026-12-24T18:00:00Z"),
            NOVEMBER,
            ["21 09:00 power:8000", "24 18:00 fastest"],
        ),
        # A day names when a window begins: Friday's night ends on Saturday.
        (
            window("22:00", "06:00", days=(Weekday.FRI,)),
            NOVEMBER,
            ["20 21:00 power:8000", "21 05:00 fastest", "27 21:00 power:8000"],
        ),
        # The same time twice is a whole day.
        (
            window("06:00", "06:00", days=(Weekday.SAT, Weekday.SUN)),
            NOVEMBER,
            ["21 05:00 power:8000", "23 05:00 fastest"],
        ),
        (window("22:00", "00:00"), NOVEMBER, ["20 21:00 power:8000", "20 23:00 fastest"]),
        # A night is an hour shorter, or longer.
        (NIGHT, FORWARD, ["28 21:00 least-energy", "29 04:00 fastest"]),
        (NIGHT, BACK, ["24 20:00 least-energy", "25 05:00 fastest"]),
        # In the hour that is left out a window begins or ends when the clock jumps.
        (window("02:30", "05:00"), FORWARD, ["29 01:00 power:8000", "29 03:00 fastest"]),
        (window("01:00", "02:30"), FORWARD, ["29 00:00 power:8000", "29 01:00 fastest"]),
        # A window within it does not hold that day.
        (window("02:15", "02:45"), FORWARD, ["30 00:15 power:8000", "30 00:45 fastest"]),
        # A window within the hour that is shown twice holds twice.
        (
            window("02:15", "02:45"),
            BACK,
            ["25 00:15 power:8000", "25 00:45 fastest", "25 01:15 power:8000", "25 01:45 fastest"],
        ),
        # One that is open when the clock is put back ends and begins again.
        (
            window("02:30", "04:00"),
            BACK,
            ["25 00:30 power:8000", "25 01:00 fastest", "25 01:30 power:8000", "25 03:00 fastest"],
        ),
    ],
)
def test_windows_follow_the_clock(held: TimetableWindow, first: str, expected: list[str]) -> None:
    found = changes(table(held), first, len(expected))
    assert [f"{when} {target}" for when, target in found] == expected


def test_without_windows_nothing_ever_changes() -> None:
    now = at("2026-11-21T10:00:00+01:00")
    assert target_at(table(), now) is None
    assert next_change(table(), now) is None
    always = table(*(window(f"{hour:02}:00", f"{(hour + 12) % 24:02}:00") for hour in (0, 12)))
    assert target_at(always, now) == "power:8000"


# ------------------------------------------------------------------ where the hour changes


@given(
    st.lists(
        st.tuples(
            st.integers(0, 95),
            st.integers(0, 95),
            st.one_of(st.none(), st.sets(st.sampled_from(Weekday), min_size=1)),
        ),
        max_size=3,
    ),
    st.sampled_from(["2026-03-27", "2026-10-23", "2026-07-01"]),
    st.integers(0, 4 * 24 * 3),
)
def test_between_now_and_the_next_change_nothing_changes(
    spans: list[tuple[int, int, set[Weekday] | None]], day: str, quarter: int
) -> None:
    def shown(quarter_of_day: int) -> str:
        return f"{quarter_of_day // 4:02}:{quarter_of_day % 4 * 15:02}"

    timetable = table(
        *(
            window(shown(start), shown(end), f"power:{index + 1}", tuple(days) if days else None)
            for index, (start, end, days) in enumerate(spans)
        )
    )
    now = at(f"{day}T00:00:00+00:00") + timedelta(minutes=15 * quarter)
    until = next_change(timetable, now)
    held = target_at(timetable, now)
    for step in range(1, 4 * 24 * 8):
        moment = now + timedelta(minutes=15 * step)
        if until is not None and moment >= until:
            break
        assert target_at(timetable, moment) == held
    if until is not None:
        assert until > now
        assert target_at(timetable, until) != held


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        (window("25:00", "06:00"), "windows[1].from_time"),
        (window("٠٦:00", "07:00"), "windows[1].from_time"),
        (window("6:00", "07:00"), "windows[1].from_time"),
        (window("22:00", "midnight"), "windows[1].until_time"),
        (window("1999-12-31T23:59:59Z", "2026-11-21T10:00:00Z"), "windows[1].from_time"),
        (window("2026-11-21T10:00:00Z", "22:00"), "windows[1].until_time"),
        (window("2026-11-21T10:00:00", "2026-11-21T11:00:00Z"), "windows[1].from_time"),
        (window("2026-11-21T10:00:00Z", "2026-11-21T10:00:00Z"), "windows[1].until_time"),
        (window("0001-01-01T00:00:00+14:00", "2026-11-21T10:00:00Z"), "windows[1].from_time"),
        (window("2026-11-21T10:00:00Z", "9999-12-31T23:59:59Z"), "windows[1].until_time"),
        (window("2026-11-21", "2026-11-22", days=(Weekday.MON,)), "windows[1].from_time"),
        (
            window("2026-11-21T10:00:00Z", "2026-11-21T11:00:00Z", days=(Weekday.MON,)),
            "windows[1].days",
        ),
        (window("22:00", "06:00", days=()), "windows[1].days"),
        (window("22:00", "06:00", "cheap"), "windows[1].target"),
    ],
)
def test_unusable_windows_name_their_field(changed: TimetableWindow, field: str) -> None:
    with pytest.raises(InvalidFieldError) as error:
        table(NIGHT, changed)
    assert error.value.field == field


@pytest.mark.parametrize("timezone", ["", "Berlin", "../etc/passwd", "/etc", "\0", "x" * 999])
def test_a_timezone_that_nobody_knows_is_refused(timezone: str) -> None:
    with pytest.raises(InvalidFieldError, match="give an IANA name") as error:
        table(NIGHT, timezone=timezone)
    assert error.value.field == "timezone"


def test_more_windows_than_anyone_needs_are_refused() -> None:
    table(*[NIGHT] * MAX_WINDOWS)
    with pytest.raises(InvalidFieldError, match="at most 64"):
        table(*[NIGHT] * (MAX_WINDOWS + 1))
