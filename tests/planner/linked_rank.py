"""A rank with the client's own threads, whose steps are posted by the test."""

from __future__ import annotations

from tests.planner.samples import rank_registration

from flyball_client.api.planner_client import PlannerClient
from flyball_client.helper.rank_agent import LinkTimes, RankSpec
from flyball_client.session.plan_cursor import CompiledPlan
from flyball_client.session.planner_link import PlannerLink
from flyball_client.session.registration import named_start
from flyball_wire.measurements import StepMeasurement
from flyball_wire.messages import RankRegistration

TIMES = LinkTimes(poll_wait_s=1.0, gather_s=0.02, first_retry_s=0.02, longest_retry_s=0.1)


class LinkedRank:
    """Rank of the job `job`, registered at the planner of this address.

    Attributes:
        activated: plans that have taken effect, in their order.
    """

    def __init__(self, url: str, rank: int, *, ca_file: str | None = None) -> None:
        self.activated: list[CompiledPlan] = []
        self._planner = PlannerClient(url, ca_file=ca_file)
        self.link = PlannerLink(
            self._planner,
            RankSpec(
                job_id="job",
                rank=rank,
                registration=RankRegistration(**rank_registration(rank)),
                times=TIMES,
            ),
            named_start({}, None),
            current_step=lambda: 5,
            activate=lambda plan, _: self.activated.append(plan),
        )
        self.link.start()

    def measure(self, step: int, plan: CompiledPlan, energy_j: float = 10.0) -> None:
        self.link.outbox.put(
            StepMeasurement(
                step=step,
                plan_version=plan.version,
                plan_id=plan.plan_id,
                time_s=0.5,
                energy_j=energy_j,
            )
        )

    def close(self) -> None:
        self.link.stop()
        self._planner.close()
