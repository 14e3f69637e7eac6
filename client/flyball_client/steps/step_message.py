"""Message of a rank about a step, and the load that a pipeline's messages make together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from flyball_client.steps.agreement import AgreementError
from flyball_client.steps.rank_slowness import Slowness
from flyball_client.steps.step_plans import PlanKey, StepLoad
from flyball_pipeline.work import StepWork, checked_work


class StepMessage(NamedTuple):
    """One rank's message about a step, without its work."""

    step: int
    #: Plan for the number of microbatches that steps have; None: it has no plan, or it is late.
    plan: PlanKey | None
    #: Plans for other numbers of microbatches, by that number.
    other_plans: tuple[tuple[int, PlanKey], ...]
    stage: int
    #: Clock that is in force as the step before ends, MHz; 0: not known.
    last_mhz: int
    #: Least time between two steps on this rank, s; 0: not known.
    gap_s: float
    #: Under `plan`.
    slowness: Slowness

    def plan_for(self, num_microbatches: int) -> PlanKey | None:
        """Return the plan of a step with this number of microbatches."""
        return dict(self.other_plans).get(num_microbatches, self.plan)

    def as_bytes(self, work: StepWork | None) -> bytes:
        """Return the message: this in a line, and the work in another."""
        return b"\n".join(json.dumps(part).encode() for part in (self, work))


def read_messages(messages: Sequence[bytes]) -> tuple[list[StepMessage], StepWork | None]:
    """Return the messages of a pipeline's ranks, and the step's work; None: no rank announces it.

    Raises:
        AgreementError: Ranks are at different steps or announce different work, or a message is
            not understood: a rank runs another version of Flyball.
    """
    try:
        parts = [message.partition(b"\n") for message in messages]
        found = [_read(line) for line, _, _ in parts]
        # Equal works are decoded once.
        decoded = [json.loads(work) for work in {work for _, _, work in parts}]
        works = {checked_work(work) for work in decoded if work is not None}
    except (ValueError, TypeError) as error:
        raise AgreementError(f"another rank's message is not understood: {error}") from None
    steps = {message.step for message in found}
    if len(steps) > 1:
        raise AgreementError(
            f"ranks of the pipeline are at different steps, {min(steps)} and {max(steps)}"
        )
    if len(works) > 1:
        raise AgreementError(f"ranks announce different work for step {min(steps)}")
    return found, next(iter(works), None)


def _read(line: bytes) -> StepMessage:
    step, plan, other_plans, stage, last_mhz, gap_s, slowness = json.loads(line)
    return StepMessage(
        step=int(step),
        plan=None if plan is None else _plan_key(*plan),
        other_plans=tuple((int(number), _plan_key(*key)) for number, key in other_plans),
        stage=int(stage),
        last_mhz=int(last_mhz),
        gap_s=float(gap_s),
        slowness=Slowness(*map(float, slowness)),
    )


def _plan_key(version: int, plan_id: str | None) -> PlanKey:
    return PlanKey(int(version), plan_id)


def common_load(messages: Sequence[StepMessage], work: StepWork) -> StepLoad | None:
    """Return the load of a pipeline's step; None: its ranks have no plan for it, or not the same.

    Args:
        messages: Of all ranks of the pipeline.
        work: Of the step.
    """
    plan, *differing = {message.plan_for(len(work)) for message in messages}
    if plan is None or differing:
        return None
    slowness = [1.0] * _num_stages(messages)
    caution = 0.0
    for message in messages:
        # A rank's slowness under another plan does not count.
        if message.plan == plan:
            slowness[message.stage] = max(slowness[message.stage], message.slowness.at_highest)
            caution = max(caution, message.slowness.below)
    return StepLoad(messages[0].step, plan, work, tuple(slowness), caution)


def clocks_in_force_mhz(messages: Sequence[StepMessage]) -> tuple[int, ...]:
    """Return by stage the clock in force before the step, MHz; empty: a clock is not known."""
    in_force_mhz = [0] * _num_stages(messages)
    for message in messages:
        in_force_mhz[message.stage] = max(in_force_mhz[message.stage], message.last_mhz)
    return tuple(in_force_mhz) if all(in_force_mhz) else ()


def _num_stages(messages: Sequence[StepMessage]) -> int:
    return 1 + max(message.stage for message in messages)
