"""Kareus's files: kernel schedules in `scheds_pipeline_*.py`, and profiles with a row per knob.

A kernel schedule (which SMs communicate, when, how many) is text that is carried along unread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from flyball_pipeline.instruction import InstructionKind
from flyball_pipeline.schedule import Schedule
from flyball_profiles.measured_row import (
    CHUNK_COLUMN,
    NUM_RANKS_COLUMN,
    RANK_COLUMNS,
    RANK_WAITING_COLUMN,
    REQUIRED_COLUMNS,
)
from flyball_profiles.stage_profile_csv import CsvRow, csv_text, parse_csv
from flyball_server.cli.convert.foreign_plan import (
    ForeignPlan,
    KernelSchedules,
    kind_of,
    kinds_of,
    literal_stages,
    named_schedule,
    order_of_kinds,
)
from flyball_server.planning.errors import PlanningError

_OURS = {*REQUIRED_COLUMNS, *RANK_COLUMNS, CHUNK_COLUMN, NUM_RANKS_COLUMN, RANK_WAITING_COLUMN}
# What tells Kareus's profiles from others with extra columns.
_KNOB_PREFIXES = ("fwd_", "bwd_")
_KNOB_SUFFIX = "_configs"

_Key = tuple[int, InstructionKind, int]
"""Stage, instruction, MHz."""


class KeptRow(StrEnum):
    """The row that is kept of several at one clock."""

    LEAST_ENERGY = "least-energy"
    FASTEST = "fastest"


@dataclass(frozen=True, kw_only=True)
class KareusProfile:
    """A profile with one row at each clock.

    Attributes:
        text: the profile as CSV, its knob columns kept.
        num_left_out: rows at a clock that another row is kept for.
    """

    text: str
    num_left_out: int


def is_kareus_header(columns: Sequence[str]) -> bool:
    """Return whether a profile's columns hold knobs of Kareus."""
    return any(
        column.endswith(_KNOB_SUFFIX) or column.startswith(_KNOB_PREFIXES) for column in columns
    )


def kareus_profile(text: str, kept: KeptRow, blocking_power_w: float) -> KareusProfile:
    """Keep one row at each clock of each instruction.

    Args:
        text: the CSV.
        kept: the row to keep.
        blocking_power_w: energy is counted above what waiting takes for as long, W.

    Raises:
        ProfileError: it is no profile.
    """
    columns, rows = parse_csv(text)
    best: dict[tuple[object, ...], CsvRow] = {}
    for row in rows:
        measured = row.measured
        key = (measured.rank, measured.chunk, *_key_of(row))
        if key not in best or _rank(row, kept, blocking_power_w) < _rank(
            best[key], kept, blocking_power_w
        ):
            best[key] = row
    return KareusProfile(
        text=csv_text(columns, [row.cells for row in best.values()]),
        num_left_out=len(rows) - len(best),
    )


def kernels_of_scheds(text: str, schedule: Schedule) -> KernelSchedules:
    """Read kernel schedules: per stage `(instruction, knob, ...)` in the order of execution.

    Without activation checkpointing Kareus writes a pair, forward and backward, for each
    microbatch; that is read too.

    Raises:
        PlanningError: it is something else, or of another order.
    """
    stages = literal_stages(text)
    if len(stages) != schedule.num_stages:
        raise PlanningError(
            f"has {len(stages)} stages, the plan {schedule.num_stages}", field="scheds"
        )
    kernels: list[tuple[tuple[str, ...], ...]] = []
    for stage, (items, instructions) in enumerate(zip(stages, schedule.stages, strict=True)):
        where = f"scheds[{stage}]"
        rows = [_schedule_of(part, where) for item in items for part in _parts(item)]
        if all(len(_parts(item)) > 1 for item in items):
            by_place = {
                (kind, microbatch): knobs
                for microbatch, item in enumerate(items)
                for kind, knobs in (_schedule_of(part, where) for part in _parts(item))
            }
            rows = [
                (kind, by_place[kind, microbatch])
                for kind, microbatch, _ in instructions
                if (kind, microbatch) in by_place
            ]
        if [kind for kind, _ in rows] != [instruction.kind for instruction in instructions]:
            raise PlanningError(
                f"stage {stage} has kernel schedules of another order than the plan", field=where
            )
        kernels.append(tuple(knobs for _, knobs in rows))
    return tuple(kernels)


def plan_of_scheds(text: str) -> ForeignPlan:
    """Read kernel schedules in the order of execution as a plan without clocks.

    Raises:
        PlanningError: they are something else.
    """
    stages = literal_stages(text)
    if any(len(_parts(item)) > 1 for items in stages for item in items):
        raise PlanningError(
            "kernel schedules by microbatch have no order; give the file as --kernels of its"
            " freqs_pipeline_*.py",
            field="scheds",
        )
    kinds = [
        [_schedule_of(item, f"scheds[{stage}]")[0] for item in items]
        for stage, items in enumerate(stages)
    ]
    schedule = named_schedule(order_of_kinds(kinds))
    return ForeignPlan(schedule=schedule, kernels=kernels_of_scheds(text, schedule))


def kernels_of_profile(text: str, plan: ForeignPlan) -> KernelSchedules:
    """Look up each instruction's kernel schedule at its clock in a profile with knobs.

    Raises:
        ProfileError: it is no profile.
        PlanningError: it has no knobs, no row for a planned clock, or several.
    """
    columns, rows = parse_csv(text)
    knobs = [column for column in columns if column not in _OURS]
    if not is_kareus_header(columns):
        raise PlanningError("has no columns with kernel schedules", field="kernels")
    found: dict[_Key, tuple[str, ...]] = {}
    for row in rows:
        key = _key_of(row)
        of_row = tuple(cell for column in knobs if (cell := row.cells[column].strip()))
        if found.setdefault(key, of_row) != of_row:
            stage, kind, clock_mhz = key
            raise PlanningError(
                f"has several rows for stage {stage} {kind} at {clock_mhz} MHz; plan and convert"
                " with the profile that flyball convert made of it",
                field="kernels",
            )
    return tuple(
        tuple(
            _looked_up(found, (stage, instruction.kind, clock_mhz))
            for instruction, clock_mhz in zip(instructions, clocks, strict=True)
        )
        for stage, (instructions, clocks) in enumerate(
            zip(plan.schedule.stages, plan.clocks, strict=True)
        )
    )


def scheds_text(plan: ForeignPlan, *, by_microbatch: bool) -> str:
    """Return the kernel schedules as Kareus reads them.

    Args:
        plan: a plan with kernel schedules.
        by_microbatch: a pair for each microbatch, as without activation checkpointing; else in
            the order of execution.

    Raises:
        PlanningError: it has none.
    """
    if plan.kernels is None:
        raise PlanningError(
            "has no kernel schedules; give a profile or a scheds_pipeline file with --kernels",
            field="kernels",
        )
    kinds_of(plan.schedule, "scheds_pipeline_*.py")
    lines: list[str] = []
    for instructions, kernels in zip(plan.schedule.stages, plan.kernels, strict=True):
        rows = [
            (str(instruction.kind), *knobs)
            for instruction, knobs in zip(instructions, kernels, strict=True)
        ]
        if by_microbatch:
            pairs: dict[int, list[tuple[str, ...]]] = {}
            for instruction, row in zip(instructions, rows, strict=True):
                pairs.setdefault(instruction.microbatch, []).append(row)
            lines.append(str([tuple(pair) for pair in pairs.values()]))
        else:
            lines.append(str(rows))
    return "[\n" + "".join(f"{line},\n" for line in lines) + "]\n"


def _parts(item: object) -> list[object]:
    """Return the instructions of an item: itself, or those of a pair."""
    if isinstance(item, list | tuple) and item and all(isinstance(p, list | tuple) for p in item):
        return list(item)
    return [item]


def _schedule_of(item: object, where: str) -> tuple[InstructionKind, tuple[str, ...]]:
    if not isinstance(item, list | tuple) or not item:
        raise PlanningError("must be (instruction, kernel schedule, ...)", field=where)
    name, *knobs = item
    if not all(isinstance(knob, str) for knob in knobs):
        raise PlanningError("kernel schedules must be text", field=where)
    return kind_of(name, where), tuple(str(knob) for knob in knobs)


def _looked_up(found: Mapping[_Key, tuple[str, ...]], key: _Key) -> tuple[str, ...]:
    if key not in found:
        stage, kind, clock_mhz = key
        raise PlanningError(
            f"has no row for stage {stage} {kind} at {clock_mhz} MHz", field="kernels"
        )
    return found[key]


def _key_of(row: CsvRow) -> _Key:
    measured = row.measured
    return measured.stage, measured.kind, measured.point.frequency_mhz


def _rank(row: CsvRow, kept: KeptRow, blocking_power_w: float) -> tuple[float, float]:
    point = row.measured.point
    beyond_waiting_j = point.energy_j - blocking_power_w * point.time_s
    return (
        (point.time_s, point.energy_j)
        if kept == KeptRow.FASTEST
        else (beyond_waiting_j, point.time_s)
    )
