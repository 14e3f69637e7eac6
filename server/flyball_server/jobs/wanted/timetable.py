"""Targets by the time of day: checks of a timetable, its current target and its next change."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from flyball_pipeline.errors import PipelineError
from flyball_server.jobs.errors import InvalidFieldError
from flyball_wire.closed_loop import Timetable, TimetableWindow, Weekday
from flyball_wire.targets import parse_target

MAX_WINDOWS = 64
_DAYS = tuple(Weekday)
_TIME_OF_DAY = re.compile(r"(?:[01]\d|2[0-3]):[0-5]\d", re.ASCII)
_UTC = "UTC"
# All arithmetic with time zones is valid well beyond these.
_FIRST_YEAR, _LAST_YEAR = 2000, 2200
# A week, after which everything daily repeats, and a day for shifts by clock changes.
_LOOK_AHEAD_DAYS = 8


@dataclass(frozen=True, kw_only=True)
class _Daily:
    from_time: time
    until_time: time
    days: frozenset[int]

    def holds_at(self, local: datetime) -> bool:
        shown = local.time()
        began_today = local.weekday() in self.days and shown >= self.from_time
        if self.from_time < self.until_time:
            return began_today and shown < self.until_time
        began_yesterday = (local.weekday() - 1) % 7 in self.days and shown < self.until_time
        return began_today or began_yesterday


@dataclass(frozen=True, kw_only=True)
class _Once:
    begins: datetime
    ends: datetime

    def holds_at(self, local: datetime) -> bool:
        return self.begins <= local < self.ends


def check_timetable(timetable: Timetable) -> None:
    """Check a timetable.

    Raises:
        InvalidFieldError: a value is invalid; the field is named as in `windows[2].from_time`.
    """
    _zone(timetable)
    if len(timetable.windows) > MAX_WINDOWS:
        raise InvalidFieldError("windows", f"must be at most {MAX_WINDOWS}")
    for index, window in enumerate(timetable.windows):
        where = f"windows[{index}]"
        _read(window, where)
        try:
            parse_target(window.target)
        except PipelineError as error:
            raise InvalidFieldError(f"{where}.target", error.message) from None


def target_at(timetable: Timetable, now: datetime) -> str | None:
    """Return the target of the first window that matches; None: the job's own.

    Args:
        timetable: timetable accepted by `check_timetable`.
        now: current time, with a time zone.
    """
    held = _window_at(_read_all(timetable), now.astimezone(_zone(timetable)))
    return None if held is None else timetable.windows[held].target


def next_change(timetable: Timetable, now: datetime) -> datetime | None:
    """Return the next time at which another window, or none, becomes current, UTC; None: never.

    Args:
        timetable: timetable accepted by `check_timetable`.
        now: current time, with a time zone.
    """
    zone, windows = _zone(timetable), _read_all(timetable)
    held = _window_at(windows, now.astimezone(zone))
    moments = {
        moment
        for window in windows
        for moment in _bounds(window, zone, now.astimezone(zone))
        if moment > now
    }
    moments |= {change for change in _clock_changes(zone, now) if change > now}
    for moment in sorted(moments):
        if _window_at(windows, moment.astimezone(zone)) != held:
            return moment
    return None


_Window = _Daily | _Once


def _window_at(windows: list[_Window], local: datetime) -> int | None:
    return next((index for index, window in enumerate(windows) if window.holds_at(local)), None)


def _zone(timetable: Timetable) -> tzinfo:
    if timetable.timezone == _UTC:  # valid even without an installed database of time zones
        return UTC
    try:
        return ZoneInfo(timetable.timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidFieldError(
            "timezone",
            f"unknown {timetable.timezone[:64]!r}; give an IANA name such as Europe/Berlin, or UTC"
            " (others need the package tzdata where the system has no time zones)",
        ) from None


def _read_all(timetable: Timetable) -> list[_Window]:
    return [_read(window, f"windows[{index}]") for index, window in enumerate(timetable.windows)]


def _read(window: TimetableWindow, where: str) -> _Window:
    is_daily = bool(_TIME_OF_DAY.fullmatch(window.from_time))
    if is_daily != bool(_TIME_OF_DAY.fullmatch(window.until_time)):
        _moment(
            window.from_time if not is_daily else window.until_time, where, is_from=not is_daily
        )
        raise InvalidFieldError(
            f"{where}.until_time", "must be a time of day, or a date and time, as from_time is"
        )
    if is_daily:
        return _Daily(
            from_time=time.fromisoformat(window.from_time),
            until_time=time.fromisoformat(window.until_time),
            days=_days(window, where),
        )
    begins = _moment(window.from_time, where, is_from=True)
    ends = _moment(window.until_time, where, is_from=False)
    if ends <= begins:
        raise InvalidFieldError(f"{where}.until_time", "must be later than from_time")
    if window.days is not None:
        raise InvalidFieldError(f"{where}.days", "requires times of day, such as 22:00, not dates")
    return _Once(begins=begins, ends=ends)


def _moment(text: str, where: str, *, is_from: bool) -> datetime:
    field = f"{where}.{'from_time' if is_from else 'until_time'}"
    return parse_moment(text, field, also="22:00, or ")


def parse_moment(text: str, field: str, *, also: str = "") -> datetime:
    """Parse an ISO 8601 time with an offset from UTC; return it in UTC.

    Raises:
        InvalidFieldError: the text is not such a time; the message lists `also` as an alternative.
    """
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise ValueError
        moment = moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidFieldError(
            field,
            f"must be {also}a date and time with its offset from UTC, such as"
            " 2026-11-21T22:00:00+01:00",
        ) from None
    if not _FIRST_YEAR <= moment.year <= _LAST_YEAR:
        raise InvalidFieldError(field, f"must be in the years {_FIRST_YEAR} to {_LAST_YEAR}, UTC")
    return moment


def _days(window: TimetableWindow, where: str) -> frozenset[int]:
    if window.days is None:
        return frozenset(range(len(_DAYS)))
    if not window.days:
        raise InvalidFieldError(f"{where}.days", "must name a day; leave it out for all")
    return frozenset(_DAYS.index(day) for day in window.days)


def _bounds(window: _Window, zone: tzinfo, local: datetime) -> Iterator[datetime]:
    """Yield times at which the window may begin or end, UTC, from the day of `local` on."""
    if isinstance(window, _Once):
        yield from (window.begins, window.ends)
        return
    for day in range(-1, _LOOK_AHEAD_DAYS + 1):
        date = local.date() + timedelta(days=day)
        for shown in (window.from_time, window.until_time):
            # A local time that occurs twice is a bound twice.
            for fold in (0, 1):
                moment = datetime.combine(date, shown.replace(fold=fold), tzinfo=zone)
                yield moment.astimezone(UTC)


def _clock_changes(zone: tzinfo, now: datetime) -> Iterator[datetime]:
    """Yield times at which the zone's clocks change, to the second, UTC."""
    start = now.astimezone(UTC).replace(microsecond=0)
    for hour in range(24 * _LOOK_AHEAD_DAYS):
        before = start + timedelta(hours=hour)
        after = before + timedelta(hours=1)
        offset = before.astimezone(zone).utcoffset()
        if offset == after.astimezone(zone).utcoffset():
            continue
        while after - before > timedelta(seconds=1):
            middle = before + timedelta(seconds=(after - before).total_seconds() // 2)
            if middle.astimezone(zone).utcoffset() == offset:
                before = middle
            else:
                after = middle
        yield after
