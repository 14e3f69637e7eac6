"""A job's steps for the savings, read in bounded pieces and classified."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence

from flyball_server.jobs.measurements.step_pairs import PairGathering, StepKinds, WholeStep
from flyball_server.jobs.records import PlanRecord, StepTotals
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_wire.plan import Plan

STEPS_A_PIECE = 5_000
# Time in s after which a step counts as lost: a rank that cannot reach its planner posts later.
GIVE_UP_S = 60.0
_FEWEST_LATER = 2
# Number of later steps after which a step is given up, however short they are.
MOST_LATER = 2048
_BASELINE = "baseline"


def step_kinds(record: PlanRecord, highest_mhz: Sequence[int] = ()) -> StepKinds:
    """Return which steps of this version run at the highest clocks.

    Args:
        record: plan version.
        highest_mhz: highest clock of online profiling by stage, MHz; empty: not profiled online.
    """
    if record.plan.is_probe:
        is_probe, cycle = True, _highest_rows(record.plan, highest_mhz)
    else:
        is_probe = False
        cycle = (True,) if record.plan.policy == _BASELINE else record.baseline_cycle
    return StepKinds(
        first_step=record.first_step or 0,
        baseline_cycle=cycle,
        is_probe=is_probe,
        num_microbatches=record.plan.num_microbatches,
    )


def all_step_kinds(records: Iterable[PlanRecord]) -> dict[int, StepKinds]:
    """Return the step kinds of all versions of a job."""
    known = tuple(records)
    probes = [record.plan for record in known if record.plan.is_probe]
    # The first version of profiling runs entirely at the highest clocks.
    first_row = probes[0].cycle_mhz[0] if probes else ()
    highest_mhz = [max(clocks_mhz, default=0) for clocks_mhz in first_row]
    return {record.version: step_kinds(record, highest_mhz) for record in known}


def _highest_rows(plan: Plan, highest_mhz: Sequence[int]) -> tuple[bool, ...]:
    if len(highest_mhz) != plan.num_stages:
        return ()
    return tuple(
        all(
            clock_mhz == highest
            for clocks_mhz, highest in zip(row, highest_mhz, strict=True)
            for clock_mhz in clocks_mhz
        )
        for row in plan.cycle_mhz
    )


def whole_step(totals: StepTotals, num_ranks: int) -> WholeStep:
    """Return the step of a job with this number of ranks as the savings use it."""
    num_held_down = totals.num_power_capped + totals.num_thermally_capped
    return WholeStep(
        step=totals.step,
        version=totals.newest_version,
        is_complete=totals.num_ranks >= num_ranks,
        is_mixed=totals.lowest_version != totals.newest_version
        or 0 < totals.num_with_plan < totals.num_ranks,
        # Power and heat limit the highest clocks too: such steps belong to the comparison. A clock
        # missed for another reason was set by another program, and the step was not on the plan.
        left_plan=totals.num_unplanned > 0
        or totals.num_without_clocks > 0
        or totals.num_clock_misses > num_held_down,
        time_s=totals.time_s,
        energy_j=totals.energy_j,
        is_unknown=totals.num_unknown > 0,
        num_unplanned=totals.num_unplanned,
        num_overruns=totals.num_overruns,
        num_capped=num_held_down,
        num_lost_clocks=max(totals.num_clock_misses - num_held_down, 0),
        num_without_clocks=totals.num_without_clocks,
    )


def whole_steps(
    reader: JobReader, job_id: str, num_ranks: int, *, after_step: int = -1
) -> Iterator[WholeStep]:
    """Yield the job's steps after this one, rising; at most one piece is kept in memory."""
    while True:
        piece = reader.list_step_totals(job_id, after_step=after_step, limit=STEPS_A_PIECE)
        for totals in piece:
            yield whole_step(totals, num_ranks)
        if len(piece) < STEPS_A_PIECE:
            return
        after_step = piece[-1].step


def settled_steps(piece: Sequence[StepTotals], num_ranks: int) -> Sequence[StepTotals]:
    """Return the leading steps before the first one that ranks may still post.

    Args:
        piece: steps, rising.
        num_ranks: number of the job's ranks.
    """
    later_s = 0.0
    num_settled = len(piece)
    for position in range(len(piece) - 1, -1, -1):
        num_later = len(piece) - 1 - position
        is_given_up = num_later >= MOST_LATER or (
            num_later >= _FEWEST_LATER and later_s >= GIVE_UP_S
        )
        if piece[position].num_ranks < num_ranks and not is_given_up:
            num_settled = position
        later_s += piece[position].time_s
    return piece[:num_settled]


def num_paired_steps(reader: JobReader, record: PlanRecord, num_ranks: int) -> int:
    """Return the number of steps of either kind in an interleaved version's pairs so far."""
    return PairedSteps(record, num_ranks).read(reader)


class PairedSteps:
    """Incremental counter of one version's pairs; each settled step is read once.

    Args:
        record: plan version.
        num_ranks: number of its job's ranks.
    """

    def __init__(self, record: PlanRecord, num_ranks: int) -> None:
        self._record = record
        self._num_ranks = num_ranks
        kinds = step_kinds(record)
        self._pairs = PairGathering(kinds)
        self._is_over = record.first_step is None or not kinds.is_interleaved
        # As in the savings, the first step is left out: clocks settle in it.
        self._after_step = record.first_step or 0

    def read(self, reader: JobReader) -> int:
        """Return the number of steps of either kind in the pairs so far."""
        while not self._is_over:
            piece = reader.list_step_totals(
                self._record.job_id, after_step=self._after_step, limit=STEPS_A_PIECE
            )
            settled = settled_steps(piece, self._num_ranks)
            self._is_over = self._add_to(self._pairs, settled)
            self._after_step = settled[-1].step if settled else self._after_step
            if len(piece) < STEPS_A_PIECE:
                return self._with(piece[len(settled) :])
        return self._pairs.so_far().times_s.num_steps

    def _with(self, unsettled: Sequence[StepTotals]) -> int:
        """Return the number with complete steps of `unsettled`, which are read again next time."""
        pairs = copy.deepcopy(self._pairs) if unsettled else self._pairs
        self._add_to(pairs, () if self._is_over else unsettled)
        return pairs.so_far().times_s.num_steps

    def _add_to(self, pairs: PairGathering, several: Iterable[StepTotals]) -> bool:
        """Return whether they go beyond the version."""
        for step in (whole_step(totals, self._num_ranks) for totals in several):
            if (step.version or 0) > self._record.version:
                return True
            is_good = step.is_complete and not (step.is_unknown or step.is_mixed or step.left_plan)
            if is_good and step.version == self._record.version:
                pairs.add(step)
        return False
