"""Types of the calls that several ranks of a job make together; they cross HTTP.

As in `wire`. Each rank is answered for itself: one that is wrong does not cost the others theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flyball_wire.messages import RankPlan, RankRegistration, RegisteredRank, StepMeasurement
from flyball_wire.strictness import Sent

# Of one call; a node has fewer.
MAX_RANKS_PER_CALL = 1024


# ------------------------------------------------------------------ what clients send


@dataclass(frozen=True, kw_only=True)
class OneRegistration(Sent):
    """A rank and its registration."""

    rank: int
    registration: RankRegistration


@dataclass(frozen=True, kw_only=True)
class RegistrationBatch(Sent):
    """Ranks of one job, usually those of a node; of a rank that is named twice the last counts."""

    ranks: tuple[OneRegistration, ...]


@dataclass(frozen=True, kw_only=True)
class OneAcknowledgement(Sent):
    """A rank, the plan version that it has and the step that it is in (counted from 0)."""

    LEFT_OUT_IF_NULL: ClassVar[frozenset[str]] = frozenset({"run_id"})

    rank: int
    version: int
    current_step: int
    run_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class AcknowledgementBatch(Sent):
    """What ranks of one job have."""

    ranks: tuple[OneAcknowledgement, ...]


@dataclass(frozen=True, kw_only=True)
class StepsOfRank(Sent):
    """A rank and the steps that it has measured since its last post."""

    LEFT_OUT_IF_NULL: ClassVar[frozenset[str]] = frozenset({"run_id"})

    rank: int
    steps: tuple[StepMeasurement, ...]
    run_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class StepBatch(Sent):
    """What ranks of one job have measured."""

    ranks: tuple[StepsOfRank, ...]


# ------------------------------------------------------------------ what the planner answers


@dataclass(frozen=True, kw_only=True)
class RankFailure:
    """What the planner would have answered to this rank's own call.

    Attributes:
        status: HTTP status, 404 or 422, say.
        detail: why, in one line.
    """

    rank: int
    status: int
    detail: str


@dataclass(frozen=True, kw_only=True)
class RanksAnswer:
    """The ranks that are known now, and those that could not be."""

    ranks: tuple[RegisteredRank, ...]
    failures: tuple[RankFailure, ...]


@dataclass(frozen=True, kw_only=True)
class SharedPlan:
    """The part of a plan version that these ranks run, all the same."""

    ranks: tuple[int, ...]
    plan: RankPlan


@dataclass(frozen=True, kw_only=True)
class PlansAnswer:
    """The newest version for each rank that was asked for; unknown ranks fail."""

    plans: tuple[SharedPlan, ...]
    failures: tuple[RankFailure, ...]


@dataclass(frozen=True, kw_only=True)
class OneActivation:
    """From which step the version that a rank holds does so; null: others are awaited."""

    rank: int
    version: int
    first_step: int | None


@dataclass(frozen=True, kw_only=True)
class ActivationsAnswer:
    """The ranks whose versions are noted, and those that could not be."""

    ranks: tuple[OneActivation, ...]
    failures: tuple[RankFailure, ...]


@dataclass(frozen=True, kw_only=True)
class OneAccepted:
    """How many of a rank's steps were stored."""

    rank: int
    stored: int


@dataclass(frozen=True, kw_only=True)
class AcceptedAnswer:
    """The ranks whose steps are stored, and those whose are not."""

    ranks: tuple[OneAccepted, ...]
    failures: tuple[RankFailure, ...]
