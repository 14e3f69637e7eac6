"""What ranks call all the time, alone or several together, as one kind of call each."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence

from flyball_server.http.gathering import Gathering, Item, Outcome
from flyball_server.http.mapping.jobs import rank_plan
from flyball_server.http.rendering import rendered
from flyball_server.jobs.activation.acknowledgements import (
    HeldVersion,
    acknowledge_together,
    list_activations,
)
from flyball_server.jobs.activation.rank_plans import PlanAnswer, PlanQuestion, RankPlans, StagePlan
from flyball_server.jobs.errors import JobsError, PlannerFaultError
from flyball_server.jobs.measurements.measurements import RankPost, store_together
from flyball_server.jobs.outcomes import each_for_itself
from flyball_server.jobs.records import ActivationRecord, RankRecord
from flyball_server.jobs.registry.launch import Launch
from flyball_server.jobs.registry.registration import KnownRank, register_together
from flyball_server.jobs.services import JobServices
from flyball_wire.messages import RankPlan

_LOG = logging.getLogger(__name__)

Together = Callable[[JobServices, str, Sequence[Item]], Sequence[Outcome | JobsError]]
Several = Gathering[Sequence[Item], tuple[Outcome | JobsError, ...]]


class RankCalls:
    """The calls of the ranks of all jobs, gathered by job.

    Attributes:
        registrations: of ranks, with the start that each belongs to.
        plans: questions for a newer plan.
        activations: questions from which steps a job's versions hold.
        acknowledgements: of versions.
        measurements: posts.
    """

    def __init__(self, services: JobServices) -> None:
        rank_plans = RankPlans(_rendered)
        self.registrations: Several[tuple[RankRecord, Launch], KnownRank] = Gathering(
            functools.partial(_several, register_together, services)
        )
        self.plans: Gathering[PlanQuestion, PlanAnswer] = Gathering(
            functools.partial(rank_plans.answer, services)
        )
        self.activations: Gathering[None, tuple[ActivationRecord, ...]] = Gathering(
            functools.partial(_activations, services)
        )
        self.acknowledgements: Several[HeldVersion, ActivationRecord] = Gathering(
            functools.partial(_several, acknowledge_together, services)
        )
        self.measurements: Several[RankPost, int] = Gathering(
            functools.partial(_several, store_together, services)
        )


def _several(
    together: Together[Item, Outcome],
    services: JobServices,
    job_id: str,
    calls: Sequence[Sequence[Item]],
) -> list[tuple[Outcome | JobsError, ...]]:
    """The outcomes of each call, all of whose items are done in one transaction.

    Where one of them leads to an error that nobody has foreseen it is the only one that fails.
    """
    items = [item for call in calls for item in call]
    found = each_for_itself(functools.partial(together, services, job_id), items)
    outcomes = (_told(job_id, outcome) for outcome in found)
    return [tuple(next(outcomes) for _ in call) for call in calls]


def _told(job_id: str, outcome: Outcome | Exception) -> Outcome | JobsError:
    if isinstance(outcome, JobsError) or not isinstance(outcome, Exception):
        return outcome
    _LOG.error("job %s: a rank's call failed", job_id, exc_info=outcome)
    fault = PlannerFaultError(job_id=job_id)
    fault.__cause__ = outcome  # for the log line of the call that is answered with it
    return fault


def _activations(
    services: JobServices, job_id: str, questions: Sequence[None]
) -> Sequence[tuple[ActivationRecord, ...]]:
    return [list_activations(services, job_id)] * len(questions)


def _rendered(part: StagePlan) -> bytes:
    return rendered(RankPlan, rank_plan(part))
