"""Output of every benchmark: tables, limits kept or missed, or JSON alone."""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

from measured_process import BenchmarkError

INTERRUPTED = 128 + signal.SIGINT
CONFIDENCE, NUM_RESAMPLES, SEED = 0.95, 2000, 1788

S = TypeVar("S")


@dataclass(frozen=True, kw_only=True)
class Limit:
    """One figure beside what it must keep.

    Attributes:
        name: of the figure, with its unit.
        value: measured.
        bound: what it is compared with.
        is_upper: the figure must be at most `bound`; else at least.
        peer: whose figure of the same run helps to judge it, and that; None: nobody's.
    """

    name: str
    value: float
    bound: float
    is_upper: bool
    peer: tuple[str, float] | None = None

    @property
    def is_kept(self) -> bool:
        """Return whether the figure is within its limit."""
        return self.value <= self.bound if self.is_upper else self.value >= self.bound

    @property
    def line(self) -> str:
        """For people."""
        sense = "at most" if self.is_upper else "at least"
        verdict = "kept" if self.is_kept else "MISSED"
        beside = "" if self.peer is None else f" ({self.peer[0]}: {self.peer[1]:.5g})"
        return f"{verdict:<6}  {self.name}: {self.value:.5g}, {sense} {self.bound:.5g}{beside}"


@dataclass(frozen=True, kw_only=True)
class Report:
    """A benchmark's result.

    Attributes:
        figures: everything measured, for `--json`; dataclasses become objects, with their
            properties.
        text: the same for people, as tables.
        limits: what decides the exit status.
    """

    figures: dict[str, Any]
    text: str
    limits: Sequence[Limit] = ()

    @property
    def within_limits(self) -> bool:
        """Return whether every limit is kept."""
        return all(limit.is_kept for limit in self.limits)


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """Of some times; `format` gives median and 99th percentile."""

    num_samples: int
    median: float
    p99: float
    longest: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Distribution | None:
        """None: there are no samples."""
        if not samples:
            return None
        rising = sorted(samples)
        # The smallest sample that at least so many are not above.
        return cls(
            num_samples=len(rising),
            median=rising[(len(rising) - 1) // 2],
            p99=rising[-(-99 * len(rising) // 100) - 1],
            longest=rising[-1],
        )

    def __format__(self, form: str) -> str:
        return f"{self.median:.1f} / {self.p99:.0f}"


class Interval(NamedTuple):
    """95 % confidence interval."""

    low: float
    high: float

    @classmethod
    def of(cls, samples: Sequence[S], statistic: Callable[[Sequence[S]], float]) -> Interval:
        """Return the interval of a statistic of independent samples, by resampling them."""
        draw = random.Random(SEED)
        found = [statistic(draw.choices(samples, k=len(samples))) for _ in range(NUM_RESAMPLES)]
        cuts = statistics.quantiles(found, n=1000, method="inclusive")
        tail = round(1000 * (1 - CONFIDENCE) / 2)
        return cls(cuts[tail - 1], cuts[-tail])

    def __str__(self) -> str:
        return f"[{self.low:+.2f}, {self.high:+.2f}]"


def at_most(
    name: str, value: float, bound: float, *, peer: tuple[str, float] | None = None
) -> Limit:
    """A limit from above."""
    return Limit(name=name, value=value, bound=bound, is_upper=True, peer=peer)


def at_least(name: str, value: float, bound: float) -> Limit:
    """A limit from below."""
    return Limit(name=name, value=value, bound=bound, is_upper=False)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as their widest cell, the first to the left, the others to the right."""
    lines = [tuple(header), *(tuple(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def table_of(figures: Iterable[object], columns: Mapping[str, str]) -> str:
    """Return a table with a row for each figure.

    Args:
        figures: dataclasses or mappings.
        columns: by heading, the cell in the form of `str.format`, as `{gap_percent:.2f}`; what
            is None becomes `-`.
    """
    rows = ([form.format_map(_Shown(figure)) for form in columns.values()] for figure in figures)
    return table(list(columns), rows)


class _Shown(dict[str, object]):
    """A figure's fields and properties by name."""

    def __init__(self, figure: object) -> None:
        super().__init__(figure if isinstance(figure, Mapping) else figures_of(figure))

    def __getitem__(self, name: str) -> object:
        value = super().__getitem__(name)
        return _NoValue() if value is None else value


class _NoValue:
    def __format__(self, form: str) -> str:
        return "-"


def figures_of(figure: Any) -> dict[str, Any]:  # noqa: ANN401 - of any kind
    """Return the fields and properties of a dataclass by name."""
    properties = [name for name, one in vars(type(figure)).items() if isinstance(one, property)]
    names = [*(field.name for field in fields(figure)), *properties]
    return {name: getattr(figure, name) for name in names}


def show_progress(line: str) -> None:
    """Print the current measurement on stderr, if that is a terminal."""
    if sys.stderr.isatty():
        print(line, file=sys.stderr)


def run_benchmark(
    parser: argparse.ArgumentParser, measure: Callable[[argparse.Namespace], Report]
) -> NoReturn:
    """Measure, print, and exit.

    Exit status: 0 where all limits are kept, 1 where one is missed, 2 where it could not be
    measured, 130 after Ctrl-C or SIGTERM.
    """
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, alone")
    arguments = parser.parse_args()
    # As Ctrl-C, so that what it has started ends too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        report = measure(arguments)
    except BenchmarkError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print(f"{parser.prog}: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    try:
        print(_json(report) if arguments.json else _text(report), flush=True)
    except BrokenPipeError:  # as by `| head`; Python would write the rest once more as it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(0 if report.within_limits else 1)


def _json(report: Report) -> str:
    limits = [{**asdict(limit), "is_kept": limit.is_kept} for limit in report.limits]
    return json.dumps(
        {
            "machine": _machine(),
            **report.figures,
            "limits": limits,
            "within_limits": report.within_limits,
        },
        default=_document,
    )


def _document(value: object) -> dict[str, Any]:
    if not is_dataclass(value):
        raise TypeError(f"{value!r} is no figure")
    return figures_of(value)


def _text(report: Report) -> str:
    machine = _machine()
    missed = sum(not limit.is_kept for limit in report.limits)
    return "\n".join(
        [
            f"{machine['processor']}, {machine['num_cores']} cores",
            "",
            report.text,
            "",
            *(limit.line for limit in report.limits),
            f"{len(report.limits) - missed} limits kept, {missed} missed",
        ]
    )


def _machine() -> dict[str, str | int]:
    """The processor by its own name, and how many cores this process may use."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else "unknown processor",
        "num_cores": len(os.sched_getaffinity(0)),
    }
