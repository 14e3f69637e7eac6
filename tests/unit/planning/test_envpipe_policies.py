"""EnvPipe's three policies before any reconfiguring, node by node."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball_profiles.stage_profile import StageProfile
from flyball_server.planning.model.pipeline_model import PipelineModel, build_model
from flyball_server.planning.policies import choose
from flyball_server.planning.policies._base import PolicyRequest
from flyball_server.planning.policies.envpipe import outer_envelope
from flyball_server.planning.schedules import make_schedule
from flyball_server.planning.schedules._base import ScheduleContext
from flyball_server.planning.schedules.explicit import explicit_order
from flyball_wire.plan_options import PlanOptions, Policy, Reconfigure

from .oracles import event_driven_finish_s, planned_schedule
from .tiny_pipelines import (
    B,
    F,
    I,
    R,
    W,
    any_models,
    equal_profile,
    model_of,
    profile_of,
    profiles,
    refuses,
    timed_profile,
)


def assigned(
    policy: Policy, model: PipelineModel, reconfigure: Reconfigure = Reconfigure.DEFAULT
) -> list[int]:
    request = PolicyRequest(
        model=model,
        reconfigure_granularity_mhz=30,
        options=PlanOptions(reconfigure=reconfigure, target="fastest"),
    )
    return choose(policy, request).assignment


def clocks_mhz(model: PipelineModel, assignment: list[int]) -> list[list[tuple[str, int]]]:
    """Per stage, (letter and microbatch, MHz) of each unit."""
    letters = {F: "F", B: "B", I: "I", W: "W"}
    rows: list[list[tuple[str, int]]] = [[] for _ in model.schedule.stages]
    for node, choice in enumerate(assignment):
        instruction = model.dag.instruction[node]
        rows[model.dag.stage[node]].append(
            (
                f"{letters[instruction.kind]}{instruction.microbatch}",
                model.points[node][choice].frequency_mhz,
            )
        )
    return rows


def two_valleys() -> StageProfile:
    """Stage 0 has its valley at 900 MHz, stage 1 at 1200, stage 2 at its highest, 1500."""
    stages = []
    for valley in (900, 1200, 1500):
        points = [(mhz, 1.0, 10.0 + abs(mhz - valley)) for mhz in (1500, 1200, 900)]
        stages.append({F: points, B: points})
    return profile_of(stages)


def test_baseline_runs_everything_at_the_highest_clock_of_its_stage_and_kind() -> None:
    stage = {F: [(100, 1.0, 1.0), (300, 1.0, 9.0)], B: [(200, 1.0, 1.0), (250, 1.0, 9.0)]}
    model = model_of(profile_of([stage, stage]), 1)
    assert clocks_mhz(model, assigned(Policy.BASELINE, model)) == [[("F0", 300), ("B0", 250)]] * 2


def test_envelope_runs_the_outer_envelope_at_the_highest_and_the_rest_at_the_valley() -> None:
    model = model_of(two_valleys(), 3)
    assert clocks_mhz(model, assigned(Policy.ENVELOPE, model)) == [
        [("F0", 1500), ("F1", 900), ("F2", 900), ("B0", 900), ("B1", 900), ("B2", 1500)],
        [("F0", 1500), ("F1", 1200), ("B0", 1200), ("F2", 1200), ("B1", 1200), ("B2", 1500)],
        [("F0", 1500), ("B0", 1500), ("F1", 1500), ("B1", 1500), ("F2", 1500), ("B2", 1500)],
    ]


def test_of_a_split_backward_only_the_parts_on_the_longest_path_belong_to_the_envelope() -> None:
    """All parts 1 s: stage 0 waits for I1 of stage 1, whose W1 delays nobody, and ends with W1."""
    parts = {kind: [(1500, 1.0, 9.0), (900, 1.0, 1.0)] for kind in (F, I, W)}
    model = model_of(profile_of([parts, parts]), 2)
    assert clocks_mhz(model, assigned(Policy.ENVELOPE, model)) == [
        [("F0", 1500), ("F1", 900), ("I0", 900), ("W0", 900), ("I1", 1500), ("W1", 1500)],
        [("F0", 1500), ("I0", 1500), ("W0", 1500), ("F1", 1500), ("I1", 1500), ("W1", 900)],
    ]


@given(
    profiles(max_stages=6, split=False),
    st.integers(1, 9),
    st.sampled_from(["gpipe", "1f1b", "envpipe"]),
)
def test_the_envelope_is_the_published_one_where_that_is_defined(
    profile: StageProfile, num_microbatches: int, schedule: str
) -> None:
    """The last stage, microbatch 0's forwards and the last microbatch's backwards."""
    dag = model_of(profile, num_microbatches, schedule).dag
    published = {
        node
        for node, (stage, unit) in enumerate(zip(dag.stage, dag.instruction, strict=True))
        if stage == profile.num_stages - 1 or unit[:2] in ((F, 0), (B, num_microbatches - 1))
    }
    envelope = outer_envelope(dag)
    assert set(envelope) == published
    assert len(envelope) == len(published)


@given(any_models())
def test_under_any_schedule_the_envelope_is_a_path_that_ends_last_where_all_stages_are_equal(
    model: PipelineModel,
) -> None:
    units = [{B: 2.0}.get(unit.kind, 1.0) for unit in model.dag.instruction]
    envelope = outer_envelope(model.dag)
    for before, node in itertools.pairwise(envelope):
        assert before in model.dag.predecessors(node)
    assert sum(units[node] for node in envelope) == max(
        event_driven_finish_s(planned_schedule(model), units)
    )


@pytest.mark.parametrize("policy", ["baseline", "uniform", "envelope"])
@pytest.mark.parametrize("target", ["slowdown:0.05", "least-energy", "", "FASTEST"])
def test_another_target_than_fastest_is_refused(policy: Policy, target: str) -> None:
    request = PolicyRequest(
        model=model_of(equal_profile(2), 2),
        reconfigure_granularity_mhz=30,
        options=PlanOptions(reconfigure=Reconfigure.BALANCED, target=target),
    )
    with refuses("target", "support 'fastest' only"):
        choose(policy, request)


def test_recomputing_weighs_as_much_as_a_forward_in_the_outer_envelope() -> None:
    """Stage 0 waits for its gradient until 4, as long as F0 F1 F2 R0 take; the gradient wins.

    Were recomputing 2 units, R0 would end at 5 and the envelope stay on stage 0.
    """
    begin = [("forward", 0), ("forward", 1), ("forward", 2), ("recompute", 0), ("backward", 0)]
    again = [(kind, at) for at in (1, 2, 3) for kind in ("recompute", "backward")]
    first = [*begin, ("forward", 3), *again]
    last = [(kind, at) for at in range(4) for kind in ("forward", "backward")]
    profile = timed_profile(2, {F: 1.0, B: 2.0, R: 1.0})
    context = ScheduleContext(
        profile=profile, num_microbatches=4, order=explicit_order([first, last], None)
    )
    model = build_model(profile, make_schedule("explicit", context), (5.0,))
    envelope = outer_envelope(model.dag)[:4]
    where = [(model.dag.stage[node], model.dag.instruction[node]) for node in envelope]
    assert [(stage, one.kind, one.microbatch) for stage, one in where] == [
        (0, F, 0),
        (1, F, 0),
        (1, B, 0),
        (0, B, 0),
    ]
