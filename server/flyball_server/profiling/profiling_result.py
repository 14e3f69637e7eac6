"""Result of profiling: the stage profile with its errors, and its cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from flyball_profiles.rank_merge import whole_stages
from flyball_profiles.stage_profile import (
    MAX_JITTER,
    InstructionKind,
    OperatingPoint,
    StageProfile,
)
from flyball_server.profiling.findings import StageFindings
from flyball_server.profiling.iterations import ProbingCost
from flyball_server.profiling.observations import Z_95, ErrorLimits, ProbeSetup
from flyball_server.profiling.walk import needed_points
from flyball_wire.online_profiling import ProbedPoint


@dataclass(frozen=True, kw_only=True)
class ProfilingResult:
    """Knowledge after a number of steps.

    Attributes:
        points: by stage, kind and chunk, each in falling frequency.
        blocking_power_w: per stage, of one of its GPUs.
        blocking_power_error_w: standard errors; None: it was given.
        num_steps: from the first version's first step on.
        cost: measured.
    """

    points: tuple[ProbedPoint, ...]
    blocking_power_w: tuple[float, ...]
    blocking_power_error_w: tuple[float, ...] | None
    num_steps: int
    cost: ProbingCost

    def profile(self, setup: ProbeSetup) -> StageProfile:
        """Stage profile of the points, with those of its chunks if there are any."""
        chunks = tuple(
            StageProfile(points=_points_of(self.points, chunk), num_ranks_per_stage=setup.num_ranks)
            for chunk in range(setup.schedule.num_chunks)
        )
        return chunks[0] if len(chunks) == 1 else whole_stages(chunks)


def result_of(
    setup: ProbeSetup, findings: Sequence[StageFindings], num_steps: int, cost: ProbingCost
) -> ProfilingResult:
    """Return the points down to each class's floor; interpolated ones within their limits only."""
    known = [of_stage.energies for of_stage in findings if of_stage.energies is not None]
    is_given = setup.blocking_power_w is not None
    return ProfilingResult(
        points=tuple(point for of_stage in findings for point in _found(of_stage, setup.limits)),
        blocking_power_w=tuple(energies.blocking_power_w for energies in known),
        blocking_power_error_w=None
        if is_given
        else tuple(energies.blocking_power_error_w for energies in known),
        num_steps=num_steps,
        cost=cost,
    )


def _found(findings: StageFindings, limits: ErrorLimits) -> Iterator[ProbedPoint]:
    points, times, energies = findings.points, findings.times, findings.energies
    if energies is None:
        return
    error_j = energies.error_j
    is_known = (Z_95 * findings.time_share_error() <= limits.time) & (
        Z_95 * findings.energy_share_error() <= limits.energy
    )
    for number in needed_points(findings):
        if not (times.num_probes[number] or is_known[number]):
            continue
        class_index, clock_index = divmod(int(number), len(points.clocks_mhz))
        kind, chunk = points.classes[class_index]
        yield ProbedPoint(
            stage=findings.stage,
            instruction=str(kind),
            chunk=chunk,
            frequency_mhz=points.clocks_mhz[clock_index],
            time_s=float(times.mean_s[number]),
            time_error_s=float(times.error_s[number]),
            energy_j=float(energies.mean_j[number]),
            energy_error_j=float(error_j[number]),
            num_probes=int(times.num_probes[number]),
            jitter=min(float(times.scatter[class_index]), MAX_JITTER),
        )


_Points = Mapping[tuple[int, InstructionKind], tuple[OperatingPoint, ...]]


def _points_of(points: Sequence[ProbedPoint], chunk: int) -> _Points:
    of_chunk: dict[tuple[int, InstructionKind], tuple[OperatingPoint, ...]] = {}
    for point in points:
        if point.chunk == chunk:
            key = (point.stage, InstructionKind(point.instruction))
            of_chunk[key] = (*of_chunk.get(key, ()), _operating_point(point))
    return of_chunk


def _operating_point(point: ProbedPoint) -> OperatingPoint:
    return OperatingPoint(
        frequency_mhz=point.frequency_mhz,
        time_s=point.time_s,
        energy_j=point.energy_j,
        time_error_s=point.time_error_s,
        jitter=point.jitter,
    )
