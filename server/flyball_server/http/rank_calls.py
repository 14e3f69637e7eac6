"""Calls that ranks make all the time, batched by job."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from flyball_server.http.mapping.jobs import rank_plan, rendered
from flyball_server.http.request_batcher import RequestBatcher
from flyball_server.jobs.activation.plan_versions import (
    HeldVersion,
    acknowledge_together,
    list_activations,
)
from flyball_server.jobs.activation.rank_plans import PlanQuestion, RankPlans, StagePlan
from flyball_server.jobs.measurements.measurements import RankPost, StoredPost, store_together
from flyball_server.jobs.records import ActivationRecord, RankRecord
from flyball_server.jobs.registry.launch import Launch
from flyball_server.jobs.registry.registration import KnownRank, register_together
from flyball_server.jobs.services import JobServices
from flyball_wire.messages import RankPlan


class RankCalls:
    """Batchers of the ranks' calls, for all jobs.

    Attributes:
        registrations: ranks, with the start that each belongs to.
        plans: questions for a newer plan; the rendered plan, or None where there is none.
        activations: questions for the first steps of a job's versions.
        acknowledgements: versions that ranks hold.
        measurements: posts.
    """

    def __init__(self, services: JobServices) -> None:
        rank_plans = RankPlans(_rendered)
        self.registrations: RequestBatcher[tuple[RankRecord, Launch], KnownRank] = RequestBatcher(
            functools.partial(register_together, services)
        )
        self.plans: RequestBatcher[PlanQuestion, bytes | None] = RequestBatcher(
            functools.partial(rank_plans.answer, services)
        )
        self.activations: RequestBatcher[None, tuple[ActivationRecord, ...]] = RequestBatcher(
            functools.partial(_activations, services)
        )
        self.acknowledgements: RequestBatcher[HeldVersion, ActivationRecord] = RequestBatcher(
            functools.partial(acknowledge_together, services)
        )
        self.measurements: RequestBatcher[RankPost, StoredPost] = RequestBatcher(
            functools.partial(store_together, services)
        )


def _activations(
    services: JobServices, job_id: str, questions: Sequence[None]
) -> Sequence[tuple[ActivationRecord, ...]]:
    return [list_activations(services, job_id)] * len(questions)


def _rendered(part: StagePlan) -> bytes:
    return rendered(RankPlan, rank_plan(part))
