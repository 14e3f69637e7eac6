"""Ranks that post what a pipeline without noise would measure, as far as a planner can tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.planner.one_rank import register_rank, store_posts, take_up

from flyball_profiles.stage_profile import StageProfile
from flyball_server.jobs.measurements.measurements import RankPost
from flyball_server.jobs.records import PlanRecord, RankRecord
from flyball_server.jobs.registry.inspection import get_plan
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.step_records import StepDetail, StepRecord
from flyball_server.planning.documents.recorded_plan import model_of_plan
from flyball_server.planning.model.simulator import simulate
from flyball_server.planning.policies.measured_reconfigure import receives_from_neighbour
from flyball_wire.measurements import InstructionReport

Told = Callable[[int, InstructionReport], InstructionReport]
"""Report of an instruction by a rank, from its index and the true report."""


def _truly(_: int, report: InstructionReport) -> InstructionReport:
    return report


@dataclass(kw_only=True)
class PipelineOnPaper:
    """All ranks of job `job`; times are those of a profile, which may not be the planner's.

    Attributes:
        services: the planner's.
        ranks: as registered.
        profile: how long instructions really take.
        told: changes what a rank tells of an instruction; to leave something out, say.
        tells_instructions: whether ranks tell single instructions at all.
        step: that runs next.
    """

    services: JobServices
    ranks: tuple[RankRecord, ...]
    profile: StageProfile
    told: Told = _truly
    tells_instructions: bool = True
    step: int = 0
    _held: int = field(default=0, init=False)

    def register(self) -> None:
        """Make all ranks known."""
        for rank in self.ranks:
            register_rank(self.services, rank)

    def take(self, version: int) -> PlanRecord:
        """All ranks acknowledge the version, and go on to its first step."""
        ranks = (rank.rank for rank in self.ranks)
        self.step = take_up(self.services, ranks, version=version, current_step=self.step)
        self._held = version
        return get_plan(self.services, "job", version)

    def run(
        self, num_steps: int, *, only: range | None = None, late: dict[int, int] | None = None
    ) -> None:
        """Post so many steps of the version that was taken last.

        Args:
            num_steps: that pass.
            only: some of the ranks; None: all.
            late: ranks that still run another version, and which.
        """
        record = get_plan(self.services, "job", self._held)
        reports = self._reports(record)
        posts: list[RankPost] = []
        for _ in range(num_steps):
            posts += (
                self._post(rank, reports[rank.stage], (late or {}).get(rank.rank, self._held))
                for rank in (self.ranks if only is None else self.ranks[only.start : only.stop])
            )
            self.step += 1
        store_posts(self.services, posts)

    def _post(self, rank: RankRecord, reports: list[InstructionReport], version: int) -> RankPost:
        told = tuple(self.told(rank.rank, report) for report in reports)
        step = StepRecord(
            job_id="job",
            rank=rank.rank,
            step=self.step,
            plan_version=version,
            time_s=1.0,
            energy_j=None,
        )
        detail = StepDetail(job_id="job", rank=rank.rank, step=self.step, instructions=told)
        details = (detail,) if self.tells_instructions else ()
        return RankPost(rank=rank.rank, steps=(step,), details=details)

    def _reports(self, record: PlanRecord) -> list[list[InstructionReport]]:
        assert not record.plan.is_separate
        model, assignment = model_of_plan(self.profile, record.plan)
        simulated = simulate(model, assignment)
        reports: list[list[InstructionReport]] = [[] for _ in model.schedule.stages]
        for node, (kind, microbatch, chunk) in enumerate(model.dag.instruction):
            receives = receives_from_neighbour(model.dag, node)
            began_s, ended_s = simulated.start_s[node], simulated.finish_s[node]
            received_s = simulated.wait_s[node] if receives else 0.0
            clock_mhz = model.points[node][assignment[node]].frequency_mhz
            times_s = began_s, ended_s - began_s, received_s, 0.0
            reports[model.dag.stage[node]].append(
                (kind.value, microbatch, chunk, *times_s, clock_mhz)
            )
        return reports
