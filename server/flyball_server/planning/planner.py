"""From a request to a plan: the one entry of the planning core."""

from __future__ import annotations

from dataclasses import dataclass

from flyball_profiles.stage_profile import StageProfile
from flyball_server.planning.plan import FrequencyPlan

DEFAULT_POLICY = "envelope"
DEFAULT_RECONFIGURE = "balanced"
DEFAULT_SCHEDULE = "1f1b"
DEFAULT_TARGET = "fastest"


@dataclass(frozen=True, kw_only=True)
class ActivationMemory:
    """What bounds the extra warm-up forwards of EnvPipe's order; one entry per stage.

    Attributes:
        activation_bytes: bytes held by one microbatch in flight, positive.
        free_bytes: bytes free beside what 1F1B holds, not negative.
    """

    activation_bytes: tuple[int, ...]
    free_bytes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """All that a plan depends on.

    Attributes:
        num_microbatches: at least 1.
        blocking_power_w: W of a waiting GPU, one value for all stages or one per stage.
        activation_memory: None: memory bounds nothing.
    """

    profile: StageProfile
    num_microbatches: int
    blocking_power_w: tuple[float, ...]
    schedule: str = DEFAULT_SCHEDULE
    policy: str = DEFAULT_POLICY
    reconfigure: str = DEFAULT_RECONFIGURE
    target: str = DEFAULT_TARGET
    activation_memory: ActivationMemory | None = None


def make_plan(request: PlanRequest) -> FrequencyPlan:
    """The plan that the request's policy makes.

    Raises:
        PlanningError: a part of the request cannot be used; names its field.
        TargetUnreachableError: no plan of this policy meets the target.
    """
    raise AssertionError(request)
