"""The Perseus artifact's runs: one workload's folder name, plans and measurements.

The artifact (github.com/ml-energy/zeus, branch kronos, folder sosp24_data) holds two files a run,
each a list with an entry for each rank: `N.sched.json` with a clock for each command of Merak's
1F1B, `N.prof.json` with measurements. The types have the files' fields.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median

from flyball_pipeline.instruction import InstructionKind
from flyball_server.replay.recorded_runs import (
    KINDS,
    MAX_NAME,
    PointKey,
    RecordedRun,
    RecordedTimes,
    Recording,
    RecordingError,
    check_quantity,
    schedule_of,
)

_SCHEDULE = "1f1b"
# The first iteration of each run warms up.
_KEPT = slice(1, None)
# Reduction of tied gradients and of gradients, and the optimizer's step.
_NUM_LAST_COMMANDS = 3

_FOLDER = re.compile(
    r"(?:.*\+)?merak\+(?P<model>[^+]+)\+(?P<partition>[^+]+)\+dp(?P<dp>\d{1,4})\+pp(?P<pp>\d{1,4})"
    r"\+tp(?P<tp>\d{1,4})\+mbs(?P<microbatch_size>\d{1,6})\+nmb(?P<num_microbatches>\d{1,6})"
    r"(?:\+\w+)?"
)


@dataclass(frozen=True, kw_only=True)
class RankClocks:
    """A rank of `N.sched.json`: the clock of each command, MHz."""

    rank: int
    power_states: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class TimeBreakdown:
    """Times of each iteration's forwards and backwards by microbatch, s."""

    forward: tuple[tuple[float, ...], ...]
    backward: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, kw_only=True)
class RankMeasurements:
    """A rank of `N.prof.json`.

    Attributes:
        iter_time, iter_energy: time and energy of each iteration, s and J.
    """

    rank: int
    iter_time: tuple[float, ...]
    iter_energy: tuple[float, ...]
    time_breakdown: TimeBreakdown

    def of_kind(self, kind: InstructionKind) -> tuple[tuple[float, ...], ...]:
        """Return times of each iteration's instructions of a kind by microbatch, s."""
        is_forward = kind is InstructionKind.FORWARD
        return self.time_breakdown.forward if is_forward else self.time_breakdown.backward

    def check(self, num_iterations: int, num_microbatches: int) -> None:
        """Check lengths and values of what is kept.

        Raises:
            RecordingError: they cannot be right.
        """
        kinds = {f"time_breakdown.{kind}": self.of_kind(kind) for kind in KINDS}
        for field, of_iterations in {
            "iter_time": self.iter_time,
            "iter_energy": self.iter_energy,
            **kinds,
        }.items():
            if len(of_iterations) != num_iterations or num_iterations < 2:
                raise RecordingError(
                    f"rank {self.rank}: {field}: has {len(of_iterations)} iterations, iter_time of"
                    f" rank 0 {num_iterations}, of which the first is a warm-up"
                )
        for field, of_iterations in kinds.items():
            for times_s in of_iterations[_KEPT]:
                if len(times_s) != num_microbatches:
                    raise RecordingError(
                        f"rank {self.rank}: {field}: has {len(times_s)} microbatches, the folder's"
                        f" name says {num_microbatches}"
                    )
                check_quantity(f"rank {self.rank}: {field}", "time_s", min(times_s))
        for energy_j in self.iter_energy[_KEPT]:
            check_quantity(f"rank {self.rank}: iter_energy", "energy_j", energy_j)


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
        fields = {} if parts is None else parts.groupdict()
        model, partition = (fields.pop(text, "")[:MAX_NAME] for text in ("model", "partition"))
        counts = {field: int(value) for field, value in fields.items()}
        if not counts or not all(counts.values()):
            raise RecordingError(
                "the folder's name must be"
                " merak+MODEL+PARTITION+dpN+ppN+tpN+mbsN+nmbN+SCHEDULER, each N at least 1"
            )
        return cls(model=model, partition=partition, gpu=gpu[:MAX_NAME], **counts)

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return self.dp * self.pp * self.tp

    def recording(self, runs: Sequence[RecordedRun]) -> Recording:
        """These runs as a recording."""
        return Recording(**asdict(self), schedule=_SCHEDULE, runs=tuple(runs))

    def check_ranks(self, ranks: Sequence[int]) -> None:
        """Check that each rank is there once.

        Raises:
            RecordingError: a rank is missing, there twice, or unknown.
        """
        if sorted(ranks) != list(range(self.num_ranks)):
            missing = sorted(set(range(self.num_ranks)) - set(ranks))
            named = (
                f"; rank {missing[0]} of stage {missing[0] % self.pp} is missing" if missing else ""
            )
            raise RecordingError(f"must have ranks 0 to {self.num_ranks - 1}, each once{named}")


def computing_commands(
    stage: int, num_stages: int, num_microbatches: int
) -> tuple[tuple[int, ...], int]:
    """Places of a stage's forwards and backwards among Merak's commands, and their number.

    Forward m of stage s is in step 2m+s, backward m in step 2m+2S-1-s, of 2(M+S-1) steps. A step
    begins with a send, a receive, or both in one command, towards the stage before (forwards) or
    behind: it sends if the step before computed, and receives if this step does. Then the first and
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
    ranks: Sequence[RankClocks], workload: ArtifactWorkload
) -> tuple[tuple[int, ...], ...]:
    """Return the clock of each instruction in the order of execution, per stage, MHz.

    Args:
        ranks: contents of `N.sched.json`.
        workload: the workload.

    Raises:
        RecordingError: ranks are missing, or their clocks cannot be right.
    """
    workload.check_ranks([rank.rank for rank in ranks])
    found: dict[int, tuple[int, ...]] = {}
    for rank in sorted(ranks, key=lambda rank: rank.rank):
        stage = rank.rank % workload.pp
        where = f"stage {stage}: rank {rank.rank}: power_states"
        places, num_commands = computing_commands(stage, workload.pp, workload.num_microbatches)
        if len(rank.power_states) != num_commands:
            raise RecordingError(
                f"{where}: has {len(rank.power_states)} clocks; Merak's 1F1B of"
                f" {workload.num_microbatches} microbatches runs {num_commands} commands"
            )
        clocks = tuple(rank.power_states[place] for place in places)
        for place, mhz in zip(places, clocks, strict=True):
            check_quantity(f"{where}[{place}]", "frequency_mhz", mhz)
        if found.setdefault(stage, clocks) != clocks:
            raise RecordingError(f"{where}: has other clocks than rank {stage} of the same stage")
    return tuple(found[stage] for stage in range(workload.pp))


def measured_run(
    ranks: Sequence[RankMeasurements],
    workload: ArtifactWorkload,
    name: str,
    clocks_mhz: Sequence[Sequence[int]],
) -> RecordedRun:
    """Return the run whose plan has these clocks.

    An iteration's time is the mean over the ranks, a stage's energy the sum over its ranks, an
    instruction's time the median over all of its stage, kind and clock.

    Args:
        ranks: contents of `N.prof.json`.
        workload: the workload.
        name: name of the run.
        clocks_mhz: clocks of the plan.

    Raises:
        RecordingError: ranks are missing, or their measurements do not fit.
    """
    workload.check_ranks([rank.rank for rank in ranks])
    order = schedule_of(_SCHEDULE, workload.pp, workload.num_microbatches)
    energies_j = [0.0] * workload.pp
    times_s: dict[PointKey, list[float]] = {}
    for rank in ranks:
        stage = rank.rank % workload.pp
        rank.check(len(ranks[0].iter_time), workload.num_microbatches)
        energies_j[stage] += fmean(rank.iter_energy[_KEPT])
        for (kind, microbatch, _), mhz in zip(order.stages[stage], clocks_mhz[stage], strict=True):
            times_s.setdefault((stage, kind, mhz), []).extend(
                of_iteration[microbatch] for of_iteration in rank.of_kind(kind)[_KEPT]
            )
    return RecordedRun(
        name=name,
        clocks_mhz=tuple(tuple(of_stage) for of_stage in clocks_mhz),
        iteration_time_s=tuple(
            fmean(of_ranks)
            for of_ranks in zip(*(rank.iter_time[_KEPT] for rank in ranks), strict=True)
        ),
        energy_j_per_stage=tuple(energies_j),
        instruction_times=tuple(
            RecordedTimes(
                stage=stage,
                instruction=kind,
                frequency_mhz=mhz,
                time_s_median=median(of_point),
                samples=len(of_point),
            )
            for (stage, kind, mhz), of_point in sorted(times_s.items())
        ),
    )
