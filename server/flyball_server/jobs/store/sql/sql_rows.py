"""Conversion of records to rows of the SQL tables and back."""

from __future__ import annotations

import functools
import hashlib
import json
from array import array
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeVar, cast

from sqlalchemy import Row

from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.gpu_conditions import GpuConditions
from flyball_profiles.stage_profile import EnergyScope, OperatingPoint, StageProfile
from flyball_server.jobs.conditions.changes import ProfiledConditions
from flyball_server.jobs.job_state import JobInput
from flyball_server.jobs.loop_state import JobLoopState
from flyball_server.jobs.measurements.step_fold import StepFold, VersionFold
from flyball_server.jobs.records import PlanRecord, Record
from flyball_server.jobs.step_records import (
    InstructionKey,
    Moments,
    StageMoments,
    StepDetail,
    StepTotals,
)
from flyball_server.kit.checked_documents import adapter_of
from flyball_server.kit.lru import Lru
from flyball_server.planning.documents.plan_document import plan_document, plan_from_document
from flyball_wire.measurements import JobStep, MeasurementDetail
from flyball_wire.messages import JobSpec, JobState
from flyball_wire.options import STORED
from flyball_wire.plans.plan import Plan

_OF_POINT = tuple(field.name for field in fields(OperatingPoint))


def profile_document(profile: StageProfile) -> dict[str, Any]:
    """Return the profile as JSON-ready data: `points` in rows `[stage, kind, MHz, s, J, ...]`.

    With model chunks, `chunks` is a list of such documents.
    """
    chunks = [profile_document(chunk) for chunk in profile.chunks]
    scope = profile.energy_scope
    of_scope = {} if scope is None else {"energy_scope": scope.value}
    under = [None if conditions is None else str(conditions) for conditions in profile.conditions]
    return (
        ({"chunks": chunks} if chunks else {})
        | of_scope
        | ({"conditions": under} if under else {})
        | {
            "num_ranks_per_stage": list(profile.num_ranks_per_stage),
            "points": [
                [stage, str(kind), *(getattr(point, name) for name in _OF_POINT)]
                for (stage, kind), points in profile.points.items()
                for point in points
            ],
        }
    )


def profile_digest(profile: StageProfile) -> str:
    """Return the digest of what a plan depends on in a profile."""
    return _digested(profile).hex()


def _digested(profile: StageProfile) -> bytes:
    digest = hashlib.sha256(repr(profile.num_ranks_per_stage).encode())
    for (stage, kind), points in sorted(profile.points.items()):
        digest.update(f"{stage} {kind}".encode())
        figures = [
            figure
            for point in points
            for figure in (
                *(point.frequency_mhz, point.time_s, point.energy_j, point.rank_waiting_s),
                *(point.time_error_s, point.jitter),
            )
        ]
        digest.update(array("d", figures).tobytes())
        held_by = [point.held_by for point in points]
        digest.update(repr(held_by).encode() if any(held_by) else b"")
    for chunk in profile.chunks:
        digest.update(_digested(chunk))
    return digest.digest()


def profiled_conditions_text(profile: StageProfile) -> str | None:
    """Return the conditions of a profile as JSON; None: none are recorded."""
    profiled = ProfiledConditions.of(profile)
    return None if profiled is None else adapter_of(ProfiledConditions).dump_json(profiled).decode()


@functools.lru_cache(maxsize=256)
def profiled_conditions_of(text: str) -> ProfiledConditions:
    """Return the conditions of a text written by `profiled_conditions_text`."""
    return cast("ProfiledConditions", adapter_of(ProfiledConditions).validate_json(text))


# Each version's ranks request their job's profile, and one of 64 stages takes 0.3 s to read.
@functools.lru_cache(maxsize=8)
def profile_from_text(text: str) -> StageProfile:
    """Return the profile of this JSON document; cached, so the object is shared."""
    return profile_from_document(json.loads(text))


def profile_from_document(document: dict[str, Any]) -> StageProfile:
    """Return the profile from a document written by `profile_document`."""
    points: dict[tuple[int, InstructionKind], tuple[OperatingPoint, ...]] = {}
    for stage, kind, *values in document["points"]:
        key = (int(stage), InstructionKind(kind))
        # Points of a schema before or after this one may have other values at their end.
        point = OperatingPoint(**dict(zip(_OF_POINT, values, strict=False)))
        points[key] = (*points.get(key, ()), point)
    return StageProfile(
        points=points,
        num_ranks_per_stage=tuple(document["num_ranks_per_stage"]),
        chunks=tuple(profile_from_document(chunk) for chunk in document.get("chunks", ())),
        energy_scope=_optional(EnergyScope)(document.get("energy_scope")),
        conditions=tuple(map(_optional(conditions_of), document.get("conditions", ()))),
    )


def _optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


@functools.lru_cache(maxsize=256)
def conditions_of(text: str) -> GpuConditions:
    """Return the conditions of a text; cached, since thousands of ranks share them."""
    return GpuConditions.parse(text)


@functools.lru_cache(maxsize=256)
def _clocks_of(text: str) -> tuple[int, ...]:
    """Return a GPU's clocks; cached, since thousands of ranks share them."""
    return tuple(json.loads(text))


@functools.lru_cache(maxsize=64)
def _spec_of(document: str) -> JobSpec:
    given: dict[str, Any] = json.loads(document)
    known = {field.name for field in fields(JobSpec)}
    if not given.keys() <= known:  # a newer planner's options
        document = json.dumps({name: given[name] for name in given.keys() & known})
    return cast("JobSpec", adapter_of(JobSpec).validate_json(document, context=STORED))


# By field: the function from a column's value to the record's.
_READ: dict[str, Callable[[Any], Any]] = {
    "created_at": datetime.fromisoformat,
    "last_seen_at": _optional(datetime.fromisoformat),
    "sm_clocks_mhz": _optional(_clocks_of),
    "energy_scope": _optional(EnergyScope),
    "conditions": _optional(conditions_of),
    "state": JobState,
    "changed_input": JobInput,
    "registered": _spec_of,
    "spec": _spec_of,
    "measurement_detail": MeasurementDetail,
    "baseline_cycle": lambda text: tuple(json.loads(text)),
}
RecordT = TypeVar("RecordT", bound=Record)


@functools.cache
def _columns(kind: type[Any]) -> tuple[tuple[str, Callable[[Any], Any] | None], ...]:
    return tuple((field.name, _READ.get(field.name)) for field in fields(kind))


def record_of(kind: type[RecordT], row: Row[Any], **given: object) -> RecordT:
    """Return the record of a row, with the given fields taking precedence over its columns."""
    values = dict(given)
    for name, read in _columns(cast("Any", kind)):
        if name not in given:
            value = getattr(row, name)
            values[name] = value if read is None else read(value)
    return kind(**values)


StepVersions = tuple[tuple[int | None, ...], tuple[int, ...]]
"""Plan versions that ranks ran in a step, None for default clocks; and those unknown here."""


def versions_value(versions: StepVersions) -> str | None:
    """Return the column `versions` of PRUNED_STEPS: None where all ranks ran the same plan."""
    known, unknown = versions
    return None if len(known) == 1 and not unknown else json.dumps(versions)


def pruned_versions(row: Row[Any]) -> StepVersions:
    """Return the versions of a row of PRUNED_STEPS."""
    if row.versions is None:
        return (row.newest_version,), ()
    known, unknown = json.loads(row.versions)
    return tuple(known), tuple(unknown)


_TOTALS_OF_STEP = tuple(
    field.name for field in fields(JobStep) if not field.name.endswith("_versions")
)


def job_step_of(
    totals: StepTotals, plan_versions: tuple[int | None, ...], unknown_versions: tuple[int, ...]
) -> JobStep:
    """Return the step of these totals as it is shown."""
    return JobStep(
        **{name: getattr(totals, name) for name in _TOTALS_OF_STEP},
        plan_versions=plan_versions,
        unknown_versions=unknown_versions,
    )


# JSON has no tuples as keys.
_INSTRUCTION_MOMENTS = tuple[tuple[InstructionKey, Moments], ...]


def moments_values(job_id: str, moments: StageMoments) -> dict[str, Any]:
    """Return the row of a stage's moments."""
    items = tuple(moments.instructions_s.items())
    return {
        "job_id": job_id,
        "plan_version": moments.plan_version or 0,
        "stage": moments.stage,
        "document": adapter_of(_INSTRUCTION_MOMENTS).dump_json(items).decode(),
    }


def moments_of(row: Row[Any]) -> StageMoments:
    """Return the moments of a row of MOMENTS."""
    return StageMoments(
        plan_version=row.plan_version or None,
        stage=row.stage,
        instructions_s=dict(adapter_of(_INSTRUCTION_MOMENTS).validate_json(row.document)),
    )


ALL_VERSIONS = -1
_APART = {"versions", "changed"}


def fold_rows(job_id: str, fold: StepFold) -> list[dict[str, Any]]:
    """Return the rows of the totals, and of the versions in them that have changed."""
    whole = adapter_of(StepFold).dump_json(fold, exclude=_APART)
    documents = {ALL_VERSIONS: whole} | {
        version: adapter_of(VersionFold).dump_json(fold.versions[version])
        for version in fold.changed
    }
    return [
        {"job_id": job_id, "version": version, "document": document.decode()}
        for version, document in documents.items()
    ]


def fold_of(documents: Mapping[int, str]) -> StepFold:
    """Return the totals of these documents, by version."""
    fold = cast("StepFold", adapter_of(StepFold).validate_json(documents[ALL_VERSIONS]))
    fold.versions = {
        version: cast("VersionFold", adapter_of(VersionFold).validate_json(document))
        for version, document in sorted(documents.items())
        if version != ALL_VERSIONS
    }
    return fold


def values_of(record: Record) -> dict[str, Any]:
    """Return the row of a record, with times, names and lists as text."""
    return {name: _column_value(value) for name, value in vars(record).items()}


def _column_value(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, StrEnum | GpuConditions):
        return str(value)
    if isinstance(value, JobSpec):
        return json.dumps(asdict(value))
    return json.dumps(value) if isinstance(value, tuple) else value


# Plans written or read last, by their text, since all ranks of a job request the same plan. One of
# 64 stages x 256 microbatches takes a third of a second to read, and some 10 MB.
_PLANS = Lru[str, Plan](8)


def _plan_text(plan: PlanRecord) -> str:
    text = json.dumps(plan_document(plan.plan, solve_s=plan.solve_s))
    _PLANS.put(text, plan.plan)
    return text


def _plan_of_text(text: str) -> Plan:
    plan = _PLANS.get(text)
    if plan is None:
        plan = plan_from_document(json.loads(text))
        _PLANS.put(text, plan)
    return plan


def plan_values(plan: PlanRecord) -> dict[str, Any]:
    """Return the row of a plan version."""
    values = values_of(plan) | {"document": _plan_text(plan)}
    del values["plan"]
    return values


def plan_of(row: Row[Any], job_id: str) -> PlanRecord:
    """Return the plan version of a row of the job with this name."""
    return record_of(PlanRecord, row, job_id=job_id, plan=_plan_of_text(row.document))


_KEY_OF_DETAIL = ("job_id", "rank", "step")


def detail_values(detail: StepDetail) -> dict[str, Any]:
    """Return the row of a step's details."""
    document = adapter_of(StepDetail).dump_json(
        detail, exclude={*_KEY_OF_DETAIL}, exclude_defaults=True
    )
    return {name: getattr(detail, name) for name in _KEY_OF_DETAIL} | {
        "document": document.decode()
    }


def detail_of(row: Row[Any], job_id: str) -> StepDetail:
    """Return the details of a row of the job with this name."""
    key = {"job_id": job_id, "rank": row.rank, "step": row.step}
    given = json.loads(row.document) | key
    return cast("StepDetail", adapter_of(StepDetail).validate_python(given))


def loop_state_values(loop_state: JobLoopState) -> dict[str, Any]:
    """Return the row of a job's loop state."""
    return {
        "job_id": loop_state.job_id,
        "document": adapter_of(JobLoopState).dump_json(loop_state).decode(),
    }


def loop_state_of(document: str, job_id: str) -> JobLoopState:
    """Return the loop state of a row, for the job's current name, which may have changed."""
    loop_state = _loop_state_of(document)
    return loop_state if loop_state.job_id == job_id else loop_state.evolve(job_id=job_id)


@functools.lru_cache(maxsize=64)
def _loop_state_of(document: str) -> JobLoopState:
    """Return the loop state of a document; one with a measured profile takes long to read."""
    return cast("JobLoopState", adapter_of(JobLoopState).validate_json(document))
