"""The Perseus artifact's runs: one workload's folder name, plans and measurements.

The artifact (github.com/ml-energy/zeus, branch kronos, folder sosp24_data) holds two files a run:
`N.sched.json` with a clock for each command of Merak's 1F1B, `N.prof.json` with what each rank
measured. docs/evaluation.md says how they are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from flyball_profiles.stage_profile import InstructionKind
from flyball_server.planning.documents.plan_document import (
    count_of,
    list_of,
    mapping_of,
    positive_of,
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
    schedule_of,
)
from flyball_server.replay.recording_document import MAX_ENERGY_J, clock_fault, time_of

_SCHEDULE = "1f1b"
# The first iteration of each run is one.
_NUM_WARMUP_ITERATIONS = 1
# Reduction of tied gradients and of gradients, and the optimizer's step.
_NUM_LAST_COMMANDS = 3

_FOLDER = re.compile(
    r"(?:.*\+)?merak\+(?P<model>[^+]+)\+(?P<partition>[^+]+)\+dp(?P<dp>\d{1,4})\+pp(?P<pp>\d{1,4})"
    r"\+tp(?P<tp>\d{1,4})\+mbs(?P<mbs>\d{1,6})\+nmb(?P<nmb>\d{1,6})(?:\+\w+)?"
)


@dataclass(frozen=True, kw_only=True)
class ArtifactWorkload:
    """A workload, as the names of its folders give it.

    Attributes:
        dp, pp, tp: degrees of parallelism; rank r is of stage r mod pp.
    """

    model: str
    partition: str
    gpu: str
    dp: int
    pp: int
    tp: int
    microbatch_size: int
    num_microbatches: int

    @classmethod
    def of_folder(cls, name: str, gpu: str) -> ArtifactWorkload:
        """Return the workload of the folder `name`, in that of `gpu`.

        Raises:
            RecordingError: the name is not one of the artifact's.
        """
        parts = _FOLDER.fullmatch(name)
        counts = {key: int(parts[key]) for key in ("dp", "pp", "tp", "mbs", "nmb")} if parts else {}
        if parts is None or not all(counts.values()):
            raise RecordingError(
                "the folder's name must be"
                " merak+MODEL+PARTITION+dpN+ppN+tpN+mbsN+nmbN+SCHEDULER, each N at least 1"
            )
        return cls(
            model=parts["model"][:MAX_NAME],
            partition=parts["partition"][:MAX_NAME],
            gpu=gpu[:MAX_NAME],
            dp=counts["dp"],
            pp=counts["pp"],
            tp=counts["tp"],
            microbatch_size=counts["mbs"],
            num_microbatches=counts["nmb"],
        )

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return self.dp * self.pp * self.tp

    def recording(self, runs: Sequence[RecordedRun]) -> Recording:
        """These runs as a recording."""
        return Recording(
            model=self.model,
            gpu=self.gpu,
            partition=self.partition,
            dp=self.dp,
            tp=self.tp,
            microbatch_size=self.microbatch_size,
            schedule=schedule_of(_SCHEDULE, self.pp, self.num_microbatches),
            runs=tuple(runs),
        )


def computing_commands(
    stage: int, num_stages: int, num_microbatches: int
) -> tuple[tuple[int, ...], int]:
    """Places of a stage's forwards and backwards among Merak's commands, and how many these are.

    Forward m of stage s is in step 2m+s, backward m in step 2m+2S-1-s, of 2(M+S-1) steps. A step
    begins with a send, a receive, or both in one command, towards the stage before (forwards) or
    behind: it sends if the step before computed, and receives if this one does. Then the first and
    the last stage load a forward's microbatch, and then the stage computes.
    """
    places: list[int] = []
    num_commands = 0
    has_computed = False
    for step in range(2 * (num_microbatches + num_stages - 1)):
        is_forward = (step - stage) % 2 == 0
        first = stage if is_forward else 2 * num_stages - 1 - stage
        computes = 0 <= step - first < 2 * num_microbatches
        has_neighbour = stage > 0 if is_forward else stage < num_stages - 1
        num_commands += has_neighbour and (computes or has_computed)
        if computes:
            num_commands += is_forward and stage in (0, num_stages - 1)
            places.append(num_commands)
            num_commands += 1
        has_computed = computes
    return tuple(places), num_commands + _NUM_LAST_COMMANDS


def plan_clocks(
    document: object, workload: ArtifactWorkload, run: str
) -> tuple[tuple[int, ...], ...]:
    """Read `N.sched.json`: per stage, the clock of each instruction in the order of execution, MHz.

    Raises:
        RecordingError: a part is missing or cannot be right; names run and stage.
    """
    found: dict[int, tuple[int, ...]] = {}
    for rank, fields in _ranks_of(document, workload, run):
        stage = rank % workload.pp
        try:
            clocks = _clocks_of(fields, stage, workload)
            if found.setdefault(stage, clocks) != clocks:
                raise PlanningError(
                    f"rank {rank} has other clocks than rank {stage} of the same stage",
                    field="power_states",
                )
        except PlanningError as error:
            raise RecordingError(f"rank {rank}: {error}", run=run, stage=stage) from None
    return tuple(found[stage] for stage in range(workload.pp))


def _clocks_of(fields: dict[str, Any], stage: int, workload: ArtifactWorkload) -> tuple[int, ...]:
    commands = list_of(fields.get("power_states"), "power_states")
    places, num_commands = computing_commands(stage, workload.pp, workload.num_microbatches)
    if len(commands) != num_commands:
        raise PlanningError(
            f"has {len(commands)} clocks; Merak's 1F1B of {workload.num_microbatches} microbatches"
            f" runs {num_commands} commands",
            field="power_states",
        )
    clocks: list[int] = []
    for place in places:
        clock = commands[place]
        fault = clock_fault(clock)
        if fault is not None or not isinstance(clock, int):
            raise PlanningError(f"{fault}, not {str(clock)[:40]}", field=f"power_states[{place}]")
        clocks.append(clock)
    return tuple(clocks)


def _ranks_of(
    document: object, workload: ArtifactWorkload, run: str
) -> list[tuple[int, dict[str, Any]]]:
    """Return all ranks in ascending order, with the file's content for each."""
    found: dict[int, dict[str, Any]] = {}
    try:
        for place, item in enumerate(list_of(document, "document")):
            fields = mapping_of(item, f"[{place}]")
            rank = count_of(fields.get("rank"), f"[{place}].rank")
            if rank >= workload.num_ranks:
                raise PlanningError(
                    f"is {rank}, there are {workload.num_ranks} ranks", field=f"[{place}].rank"
                )
            if rank in found:
                raise PlanningError(f"rank {rank} is there twice", field=f"[{place}].rank")
            found[rank] = fields
    except PlanningError as error:
        raise RecordingError(str(error), run=run) from None
    missing = next((rank for rank in range(workload.num_ranks) if rank not in found), None)
    if missing is not None:
        raise RecordingError(
            f"rank {missing} of {workload.num_ranks} is missing",
            run=run,
            stage=missing % workload.pp,
        )
    return sorted(found.items())


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """One rank's measurements, without the iterations that warm up.

    Attributes:
        times_s, energies_j: of each iteration, s and J.
        instructions_s: per kind, of each iteration's microbatches, s.
    """

    stage: int
    times_s: tuple[float, ...]
    energies_j: tuple[float, ...]
    instructions_s: dict[InstructionKind, tuple[tuple[float, ...], ...]]


def measured_run(
    document: object,
    workload: ArtifactWorkload,
    run: str,
    clocks_mhz: Sequence[Sequence[int]],
) -> RecordedRun:
    """Read `N.prof.json` of the run whose plan has these clocks.

    An iteration's time is the mean over the ranks, a stage's energy the sum over its ranks, an
    instruction's time the median over all of its stage, kind and clock.

    Raises:
        RecordingError: a part is missing or cannot be right; names run and stage.
    """
    measured: list[_Measured] = []
    for rank, fields in _ranks_of(document, workload, run):
        stage = rank % workload.pp
        try:
            measured.append(_measured_of(fields, stage, workload.num_microbatches))
            num_iterations, expected = (len(of.times_s) for of in (measured[-1], measured[0]))
            if num_iterations != expected:
                raise PlanningError(
                    f"rank {rank} has {num_iterations} iterations after warming up, rank 0 has"
                    f" {expected}",
                    field="iter_time",
                )
        except PlanningError as error:
            raise RecordingError(f"rank {rank}: {error}", run=run, stage=stage) from None
    return RecordedRun(
        name=run,
        clocks_mhz=tuple(tuple(of_stage) for of_stage in clocks_mhz),
        iterations=Iterations.of_times(
            [fmean(times) for times in zip(*(rank.times_s for rank in measured), strict=True)]
        ),
        energy_j_per_stage=tuple(
            sum(fmean(rank.energies_j) for rank in measured if rank.stage == stage)
            for stage in range(workload.pp)
        ),
        instruction_times=_instruction_times(
            measured, schedule_of(_SCHEDULE, workload.pp, workload.num_microbatches), clocks_mhz
        ),
    )


def _measured_of(fields: dict[str, Any], stage: int, num_microbatches: int) -> _Measured:
    times = list_of(fields.get("iter_time"), "iter_time")
    if len(times) <= _NUM_WARMUP_ITERATIONS:
        raise PlanningError(
            f"has {len(times)} iterations; the first is a warm-up, and at least 2 are needed",
            field="iter_time",
        )
    breakdown = mapping_of(fields.get("time_breakdown"), "time_breakdown")
    return _Measured(
        stage=stage,
        times_s=tuple(
            time_of(time_s, where) for where, time_s in _kept(times, "iter_time", len(times))
        ),
        energies_j=tuple(
            _energy_of(energy_j, where)
            for where, energy_j in _kept(fields.get("iter_energy"), "iter_energy", len(times))
        ),
        instructions_s={
            kind: tuple(
                _microbatches_of(of_iteration, where, num_microbatches)
                for where, of_iteration in _kept(
                    breakdown.get(str(kind)), f"time_breakdown.{kind}", len(times)
                )
            )
            for kind in KINDS
        },
    )


def _kept(value: object, field: str, num_iterations: int) -> Iterable[tuple[str, object]]:
    """Every iteration's value after warming up, with its place."""
    items = list_of(value, field)
    if len(items) != num_iterations:
        raise PlanningError(
            f"has {len(items)} iterations, iter_time has {num_iterations}", field=field
        )
    return [
        (f"{field}[{place}]", item)
        for place, item in enumerate(items)
        if place >= _NUM_WARMUP_ITERATIONS
    ]


def _energy_of(value: object, field: str) -> float:
    energy_j = positive_of(value, field)
    if energy_j > MAX_ENERGY_J:
        raise PlanningError(f"must be at most {MAX_ENERGY_J:g} (check the unit)", field=field)
    return energy_j


def _microbatches_of(value: object, field: str, num_microbatches: int) -> tuple[float, ...]:
    items = list_of(value, field)
    if len(items) != num_microbatches:
        raise PlanningError(
            f"has {len(items)} microbatches, the folder's name says {num_microbatches}", field=field
        )
    return tuple(time_of(item, f"{field}[{place}]") for place, item in enumerate(items))


def _instruction_times(
    measured: Sequence[_Measured], schedule: Schedule, clocks_mhz: Sequence[Sequence[int]]
) -> tuple[RecordedTimes, ...]:
    found: dict[tuple[int, InstructionKind, int], list[float]] = {}
    for rank in measured:
        order, clocks = schedule.stages[rank.stage], clocks_mhz[rank.stage]
        for instruction, clock in zip(order, clocks, strict=True):
            times_s = found.setdefault((rank.stage, instruction.kind, clock), [])
            times_s += [
                of_iteration[instruction.microbatch]
                for of_iteration in rank.instructions_s[instruction.kind]
            ]
    return tuple(
        RecordedTimes(
            stage=stage,
            kind=kind,
            frequency_mhz=clock,
            time_s=median(times_s),
            num_samples=len(times_s),
        )
        for (stage, kind, clock), times_s in sorted(found.items())
    )
