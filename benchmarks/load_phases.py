"""Measurements of a phase of `load.py`, and their text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from benchmark_report import Limit, at_most, table

MAX_REACH_S = 20.0
# docs/operations.md has the size, of SQLite.
MAX_BYTES_A_MEASUREMENT = 150.0
MAX_MEMORY_GROWTH = 0.1


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One phase as all nodes saw it, and what the server took for it.

    Attributes:
        num_rank_calls: what its requests did, counted by rank (and step).
        wall_s: from the first request to the last answer, s.
        server_cores, generator_cores: processor time by wall time.
        memory_mib: that the server held at its end.
        database_bytes: size of its SQLite file with the log beside it; None: another database.
    """

    name: str
    num_requests: int
    num_failed: int
    num_rank_calls: int
    wall_s: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    server_cores: float
    generator_cores: float
    memory_mib: float
    database_bytes: int | None = None

    @property
    def requests_per_s(self) -> float:
        """Requests answered, per second."""
        return self.num_requests / self.wall_s

    @property
    def rank_calls_per_s(self) -> float:
        """The same by rank (and step)."""
        return self.num_rank_calls / self.wall_s


def figures_of(phase: Phase) -> dict[str, Any]:
    """A phase for --json."""
    return {
        **asdict(phase),
        "requests_per_s": phase.requests_per_s,
        "rank_calls_per_s": phase.rank_calls_per_s,
    }


def limits_on(reach: dict[str, Any]) -> tuple[Limit, ...]:
    """Return what has to hold of the new plan's reach, and of what was posted."""
    return (
        at_most(
            "a new plan, fetched and acknowledged by all ranks, s", reach["named_s"], MAX_REACH_S
        ),
        at_most("post at the planner's period: 99th percentile, s", reach["paced_p99_s"], 2.0),
        at_most("ranks that it did not reach", reach["num_ranks_without"], 0),
        at_most("measurements posted and not stored", abs(reach["num_lost"]), 0),
        *_limits_on_growth(reach),
    )


def _limits_on_growth(reach: dict[str, Any]) -> tuple[Limit, ...]:
    if reach["bytes_a_measurement"] is None:
        return ()
    return (
        at_most(
            "growth of the database by a measurement, bytes",
            reach["bytes_a_measurement"],
            MAX_BYTES_A_MEASUREMENT,
        ),
        at_most(
            "growth of memory over the last two thirds of the minutes, share",
            reach["memory_growth"],
            MAX_MEMORY_GROWTH,
        ),
    )


def phases_text(phases: list[Phase], reach: dict[str, Any], zeus: list[Phase]) -> str:
    """The phases as a table, a new plan's reach, and the ratios to Zeus's server."""
    header = ["phase", "requests/s", "ranks/s", "p50 ms", "p99 ms", "max ms"]
    header += ["server cores", "generator cores", "MiB"]
    both = [*phases, *(_named(phase) for phase in zeus)]
    text = f"{table(header, [_row(phase) for phase in both])}\n\n"
    text += (
        f"a new plan: {reach['fetched_s']:.3f} s from being made until the last rank had it,"
        f" {reach['named_s']:.3f} s until all had acknowledged it and knew its first step;"
        f" period of posts {reach['period_s']:.1f} s"
    )
    for theirs in zeus:
        ours = next(phase for phase in phases if phase.name == theirs.name)
        ratio = ours.requests_per_s / theirs.requests_per_s
        text += f"\n{ours.name}: {ratio:.2f} times Zeus's requests per second"
    return text


def _named(phase: Phase) -> Phase:
    return Phase(**{**asdict(phase), "name": f"Zeus: {phase.name}"})


def _row(phase: Phase) -> tuple[str, ...]:
    return (
        phase.name,
        f"{phase.requests_per_s:.0f}",
        f"{phase.rank_calls_per_s:.0f}",
        f"{phase.p50_ms:.1f}",
        f"{phase.p99_ms:.1f}",
        f"{phase.max_ms:.0f}",
        f"{phase.server_cores:.2f}",
        f"{phase.generator_cores:.2f}",
        f"{phase.memory_mib:.0f}",
    )
