"""Messages of a pipeline's ranks about a step, and the load that they make together."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.client.step_parts import HEAVY, LIGHT

from flyball_client.steps.agreement import AgreementError
from flyball_client.steps.rank_slowness import Slowness
from flyball_client.steps.step_message import (
    StepMessage,
    clocks_in_force_mhz,
    common_load,
    read_messages,
)
from flyball_client.steps.step_plans import PlanKey
from flyball_pipeline.work import step_work

_WORK = step_work(LIGHT)
_PLAN, _OF_TWO = PlanKey(3, "plan"), PlanKey(4, None)


def _message(stage: int, **changes: Any) -> StepMessage:  # noqa: ANN401
    message = StepMessage(
        step=7,
        plan=_PLAN,
        other_plans=((5, PlanKey(2, "five")),),
        stage=stage,
        last_mhz=1300,
        gap_s=0.25,
        slowness=Slowness(),
    )
    return message._replace(**changes)


def test_messages_are_read_as_they_were_sent_with_the_work_of_the_rank_that_announces() -> None:
    messages = [_message(0), _message(1, plan=None, other_plans=(), slowness=Slowness(1.2, 0.1))]
    sent = [messages[0].as_bytes(None), messages[1].as_bytes(_WORK)]
    assert read_messages(sent) == (messages, _WORK)
    assert read_messages([each.as_bytes(None) for each in messages]) == (messages, None)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (_message(1, step=8).as_bytes(None), "ranks of the pipeline are at different steps, 7 "),
        (_message(1).as_bytes(step_work(HEAVY)), "ranks announce different work for step 7"),
        (b"[7, null]\nnull", "another rank's message is not understood"),
        (_message(1).as_bytes(None) + b"[", "another rank's message is not understood"),
    ],
)
def test_ranks_whose_messages_do_not_fit_cannot_agree(message: bytes, why: str) -> None:
    with pytest.raises(AgreementError, match=why):
        read_messages([_message(0).as_bytes(_WORK), message])


def test_a_stage_is_as_slow_as_its_slowest_rank_and_the_pipeline_as_cautious_as_any() -> None:
    slow = Slowness(at_highest=1.3, below=0.2)
    messages = [_message(0), _message(1, slowness=slow), _message(1, slowness=Slowness(1.1, 0.1))]
    load = common_load(messages, _WORK)
    assert load is not None
    assert (load.step, load.plan, load.work) == (7, _PLAN, _WORK)
    assert (load.slowness, load.caution) == ((1.0, 1.3), 0.2)


def test_slowness_under_another_plan_than_the_steps_does_not_count() -> None:
    others = ((len(_WORK), _OF_TWO),)
    slow = Slowness(at_highest=1.3, below=0.2)
    load = common_load(
        [_message(0, other_plans=others, slowness=slow), _message(1, plan=_OF_TWO)], _WORK
    )
    assert load is not None
    assert load.plan == _OF_TWO
    assert (load.slowness, load.caution) == ((1.0, 1.0), 0.0)


@pytest.mark.parametrize("plan", [None, PlanKey(4, "plan"), PlanKey(3, "restored")])
def test_ranks_without_a_plan_or_with_another_have_no_load(plan: PlanKey | None) -> None:
    assert common_load([_message(0), _message(1, plan=plan)], _WORK) is None


def test_a_stages_clock_is_the_highest_in_force_on_its_ranks_and_all_must_be_known() -> None:
    messages = [_message(0), _message(1, last_mhz=1000), _message(1, last_mhz=1200)]
    assert clocks_in_force_mhz(messages) == (1300, 1200)
    assert clocks_in_force_mhz([*messages, _message(2, last_mhz=0)]) == ()
