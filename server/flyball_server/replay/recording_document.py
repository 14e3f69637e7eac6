"""The document of recorded runs: read strictly, and written.

docs/evaluation.md describes it, docs/recorded-runs.schema.json is its schema.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from flyball_profiles.stage_profile import InstructionKind, quantity_fault
from flyball_server.planning.documents.plan_document import (
    count_of,
    list_of,
    mapping_of,
    positive_of,
    text_of,
)
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.schedules._base import Schedule
from flyball_server.replay.recorded_runs import (
    KINDS,
    MAX_NAME,
    Iterations,
    RecordedRun,
    RecordedTimes,
    Recording,
    RecordingError,
    planned_points,
    schedule_of,
)

MAX_ENERGY_J = 1e12


def recording_from_document(document: object) -> Recording:
    """Read a document of recorded runs; keys that it does not need are ignored.

    Raises:
        RecordingError: a part is missing or cannot be right; names run and stage.
    """
    try:
        fields = mapping_of(document, "document")
        num_stages, num_microbatches = (
            _at_least_one(fields, name) for name in ("pp", "num_microbatches")
        )
        raw_runs = list_of(fields.get("runs"), "runs")
        if len(raw_runs) < 2:
            raise RecordingError("runs: must hold at least two runs")
        named = _named_runs(raw_runs)
        schedule_name = text_of(fields, "schedule")
        for name, raw in named:
            _check_shape(name, raw, schedule_name, num_stages, num_microbatches)
        schedule = schedule_of(schedule_name, num_stages, num_microbatches)
        return Recording(
            model=_optional_text(fields, "model"),
            gpu=_optional_text(fields, "gpu"),
            partition=_optional_text(fields, "partition"),
            dp=_at_least_one({"dp": 1, **fields}, "dp"),
            tp=_at_least_one({"tp": 1, **fields}, "tp"),
            microbatch_size=None
            if fields.get("microbatch_size") is None
            else _at_least_one(fields, "microbatch_size"),
            schedule=schedule,
            runs=tuple(_run_of(name, raw, schedule) for name, raw in named),
            emulated=fields.get("emulated") is True,
        )
    except PlanningError as error:
        raise RecordingError(str(error)) from None


def recording_document(recording: Recording) -> dict[str, Any]:
    """Return the document that `recording_from_document` reads."""
    return {
        "model": recording.model,
        "partition": recording.partition,
        "gpu": recording.gpu,
        "dp": recording.dp,
        "pp": recording.num_stages,
        "tp": recording.tp,
        "microbatch_size": recording.microbatch_size,
        "num_microbatches": recording.schedule.num_microbatches,
        "schedule": recording.schedule.name,
        "emulated": recording.emulated,
        "runs": [
            {
                "name": run.name,
                "clocks_mhz": [list(of_stage) for of_stage in run.clocks_mhz],
                **_iterations_document(run.iterations),
                "energy_j_per_stage": list(run.energy_j_per_stage),
                "instruction_times": [_times_document(times) for times in run.instruction_times],
            }
            for run in recording.runs
        ],
    }


def _iterations_document(iterations: Iterations) -> dict[str, Any]:
    if iterations.times_s:
        return {"iteration_time_s": list(iterations.times_s)}
    return {
        "iterations": {
            "count": iterations.num_iterations,
            "time_s_mean": iterations.mean_s,
            "time_s_deviation": iterations.deviation_s,
        }
    }


def _times_document(times: RecordedTimes) -> dict[str, Any]:
    return {
        "stage": times.stage,
        "instruction": str(times.kind),
        "frequency_mhz": times.frequency_mhz,
        "time_s_median" if times.is_median else "time_s_mean": times.time_s,
        "samples": times.num_samples,
        **({"source": "profile"} if times.is_of_profile else {}),
    }


def _at_least_one(fields: Mapping[str, Any], name: str) -> int:
    value = count_of(fields.get(name), name)
    if value < 1:
        raise PlanningError("must be at least 1", field=name)
    return value


def _optional_text(fields: dict[str, Any], name: str) -> str:
    return text_of(fields, name)[:MAX_NAME] if fields.get(name) is not None else ""


def _named_runs(raw_runs: Sequence[object]) -> list[tuple[str, dict[str, Any]]]:
    named: dict[str, dict[str, Any]] = {}
    for place, item in enumerate(raw_runs):
        raw = mapping_of(item, f"runs[{place}]")
        name = text_of(raw, "name") if "name" in raw else ""
        if not name or len(name) > MAX_NAME or not name.isprintable():
            raise RecordingError(
                f"name: must be 1 to {MAX_NAME} printable characters", run=str(place)
            )
        if name in named:
            raise RecordingError("name: two runs have it; names must differ", run=name)
        named[name] = raw
    return list(named.items())


def _check_shape(
    name: str, raw: dict[str, Any], schedule_name: str, num_stages: int, num_microbatches: int
) -> None:
    """Check the lengths, before anything as large as the shape says is built."""
    own = raw.get("schedule", schedule_name)
    if own != schedule_name:
        raise RecordingError(
            f"schedule: is {str(own)[:MAX_NAME]!r}, the other runs' {schedule_name!r}; replay one"
            " schedule at a time",
            run=name,
        )
    clocks = _list_in(raw, "clocks_mhz", name)
    if len(clocks) != num_stages:
        raise RecordingError(
            f"clocks_mhz: has {len(clocks)} stages, pp is {num_stages}",
            run=name,
            stage=min(len(clocks), num_stages),
        )
    for stage, of_stage in enumerate(clocks):
        length = len(cast("list[object]", of_stage)) if isinstance(of_stage, list) else None
        if length != 2 * num_microbatches:
            has = "no list" if length is None else f"{length} clocks"
            raise RecordingError(
                f"clocks_mhz: has {has}; {schedule_name} of {num_microbatches} microbatches runs"
                f" {2 * num_microbatches} instructions",
                run=name,
                stage=stage,
            )


def _list_in(raw: dict[str, Any], field: str, name: str) -> list[object]:
    try:
        return list_of(raw.get(field), field)
    except PlanningError as error:
        raise RecordingError(str(error), run=name) from None


def _run_of(name: str, raw: dict[str, Any], schedule: Schedule) -> RecordedRun:
    clocks_mhz = tuple(
        _clocks_of(of_stage, name, stage) for stage, of_stage in enumerate(raw["clocks_mhz"])
    )
    return RecordedRun(
        name=name,
        clocks_mhz=clocks_mhz,
        iterations=_iterations_of(raw, name),
        energy_j_per_stage=_energies_of(raw, name, schedule.num_stages),
        instruction_times=_instruction_times_of(raw, name, schedule, clocks_mhz),
    )


def _clocks_of(of_stage: Sequence[object], name: str, stage: int) -> tuple[int, ...]:
    clocks: list[int] = []
    for place, clock in enumerate(of_stage):
        fault = clock_fault(clock)
        if fault is not None or not isinstance(clock, int):
            raise RecordingError(
                f"clocks_mhz[{place}]: {fault}, not {str(clock)[:40]}", run=name, stage=stage
            )
        clocks.append(clock)
    return tuple(clocks)


def clock_fault(clock: object) -> str | None:
    """Return the fault of a clock in MHz; None: valid."""
    if isinstance(clock, bool) or not isinstance(clock, int):
        return "must be a whole number of MHz"
    return quantity_fault("frequency_mhz", min(clock, 10**9))


def _iterations_of(raw: dict[str, Any], name: str) -> Iterations:
    try:
        if "iteration_time_s" not in raw and "iterations" in raw:
            totals = mapping_of(raw["iterations"], "iterations")
            return Iterations(
                num_iterations=_at_least_one(totals, "count"),
                mean_s=time_of(totals.get("time_s_mean"), "time_s_mean"),
                deviation_s=_deviation(totals.get("time_s_deviation")),
            )
        times = list_of(raw.get("iteration_time_s"), "iteration_time_s")
        if not times:
            raise PlanningError("must hold at least one iteration", field="iteration_time_s")
        return Iterations.of_times(
            [time_of(time_s, f"iteration_time_s[{place}]") for place, time_s in enumerate(times)]
        )
    except PlanningError as error:
        raise RecordingError(str(error), run=name) from None


def time_of(value: object, field: str) -> float:
    """Return a time in s, within the bounds of a stage profile.

    Raises:
        PlanningError: it is none; names the field.
    """
    time_s = positive_of(value, field)
    fault = quantity_fault("time_s", time_s)
    if fault is not None:
        raise PlanningError(f"{fault}, not {time_s:g}", field=field)
    return time_s


def _deviation(value: object) -> float:
    return 0.0 if value == 0 else time_of(value, "time_s_deviation")


def _energies_of(raw: dict[str, Any], name: str, num_stages: int) -> tuple[float, ...]:
    energies = _list_in(raw, "energy_j_per_stage", name)
    if len(energies) != num_stages:
        raise RecordingError(
            f"energy_j_per_stage: has {len(energies)} stages, pp is {num_stages}",
            run=name,
            stage=min(len(energies), num_stages),
        )
    found: list[float] = []
    for stage, value in enumerate(energies):
        try:
            energy_j = positive_of(value, "energy_j_per_stage")
        except PlanningError as error:
            raise RecordingError(str(error), run=name, stage=stage) from None
        if energy_j > MAX_ENERGY_J:
            raise RecordingError(
                f"energy_j_per_stage: must be at most {MAX_ENERGY_J:g} (check the unit)",
                run=name,
                stage=stage,
            )
        found.append(energy_j)
    return tuple(found)


def _instruction_times_of(
    raw: dict[str, Any],
    name: str,
    schedule: Schedule,
    clocks_mhz: Sequence[Sequence[int]],
) -> tuple[RecordedTimes, ...]:
    planned = planned_points(schedule, clocks_mhz)
    found: dict[tuple[int, InstructionKind, int], RecordedTimes] = {}
    for place, item in enumerate(_list_in(raw, "instruction_times", name)):
        field = f"instruction_times[{place}]"
        times = _times_of(item, field, name, schedule.num_stages)
        key = (times.stage, times.kind, times.frequency_mhz)
        if key not in planned:
            raise RecordingError(
                f"{field}: unknown clock {times.frequency_mhz} MHz; the run's plan has no"
                f" {times.kind} at it",
                run=name,
                stage=times.stage,
            )
        if key in found:
            raise RecordingError(
                f"{field}: {times.kind} at {times.frequency_mhz} MHz is there twice",
                run=name,
                stage=times.stage,
            )
        found[key] = times
    for stage, kind, clock in planned:
        if (stage, kind, clock) not in found:
            raise RecordingError(
                f"instruction_times: has no {kind} at {clock} MHz, which the run's plan runs",
                run=name,
                stage=stage,
            )
    return tuple(found[key] for key in sorted(found))


def _times_of(item: object, field: str, name: str, num_stages: int) -> RecordedTimes:
    stage: int | None = None
    try:
        raw = mapping_of(item, field)
        stage_number = count_of(raw.get("stage"), "stage")
        if stage_number >= num_stages:
            raise RecordingError(
                f"{field}: stage {stage_number} of {num_stages}, which count from 0", run=name
            )
        stage = stage_number
        kinds = {str(kind): kind for kind in KINDS}
        kind = kinds.get(text_of(raw, "instruction"))
        if kind is None:
            raise PlanningError(f"must be {' or '.join(kinds)}", field="instruction")
        clock = raw.get("frequency_mhz")
        fault = clock_fault(clock)
        if fault is not None or not isinstance(clock, int):
            raise PlanningError(f"{fault}, not {str(clock)[:40]}", field="frequency_mhz")
        is_median = "time_s_mean" not in raw
        time_field = "time_s_median" if is_median else "time_s_mean"
        return RecordedTimes(
            stage=stage,
            kind=kind,
            frequency_mhz=clock,
            time_s=time_of(raw.get(time_field), time_field),
            num_samples=_at_least_one(raw, "samples"),
            is_median=is_median,
            is_of_profile=raw.get("source") == "profile",
        )
    except PlanningError as error:
        raise RecordingError(f"{field}: {error}", run=name, stage=stage) from None
