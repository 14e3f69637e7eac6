"""EnvPipe: the valley of a stage, extra warm-up forwards, and the policies before reconfiguring."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.stage_profile import StageProfile
from flyball_server.planning.model.least_energy_clock import stage_least_energy
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.policies import POLICIES
from flyball_server.planning.policies._base import PolicyRequest
from flyball_server.planning.policies.envpipe import outer_envelope
from flyball_server.planning.scheduling import (
    ActivationMemory,
    ScheduleContext,
    extra_warmup_forwards,
    schedule_for,
)
from flyball_wire.plan_options import PlanOptions, Policy, Reconfigure

from .oracles import event_driven_finish_s, planned_schedule
from .tiny_pipelines import (
    B,
    F,
    I,
    Points,
    W,
    any_models,
    context_of,
    equal_profile,
    model_of,
    profile_of,
    profiles,
    refuses,
    written,
)

Energies = dict[int, int]
"""Energy in J by clock in MHz."""

CHEAP_HIGH, CHEAP_LOW = {300: 2, 100: 3}, {300: 9, 100: 3}


@pytest.mark.parametrize(
    ("energies_j", "expected_mhz"),
    [
        # The least of both together, not of either kind; of equal ones the higher clock.
        ({F: {300: 9, 200: 8, 100: 5}, B: {300: 12, 200: 11, 100: 15}}, {F: 200, B: 200}),
        ({F: {300: 9, 200: 8, 100: 5}, B: {300: 12, 200: 11, 100: 14}}, {F: 200, B: 200}),
        # The least at a clock that both have; without one the least of each kind.
        ({F: {300: 9, 200: 1, 100: 8}, B: {300: 9, 150: 1, 100: 9}}, {F: 100, B: 100}),
        ({F: {300: 9, 200: 2, 100: 2}, B: {310: 3, 210: 4, 110: 3}}, {F: 200, B: 310}),
        # Both parts of a split backward count: 2 + 2 + 9 J or 3 + 3 + 3.
        ({F: CHEAP_HIGH, I: CHEAP_HIGH, W: CHEAP_LOW}, {F: 100, I: 100, W: 100}),
        # A kind that is not asked for does not count.
        ({F: CHEAP_HIGH, B: CHEAP_HIGH, I: CHEAP_LOW, W: CHEAP_LOW}, {F: 300, B: 300}),
        # A kind with a single clock leaves the others their choice.
        ({F: {300: 9}, B: CHEAP_LOW}, {F: 300, B: 100}),
        ({F: {300: 9}, B: {300: 9}}, {F: 300, B: 300}),
    ],
)
def test_a_stages_least_energy_is_that_of_all_its_kinds_at_a_shared_clock(
    energies_j: dict[InstructionKind, Energies], expected_mhz: dict[InstructionKind, int]
) -> None:
    """The times do not count."""
    stage = {
        kind: [(mhz, 1000 / mhz, energy_j) for mhz, energy_j in by_clock.items()]
        for kind, by_clock in energies_j.items()
    }
    points = stage_least_energy(profile_of([stage]), 0, expected_mhz)
    assert {kind: point.frequency_mhz for kind, point in points.items()} == expected_mhz


@pytest.mark.parametrize(
    ("num_microbatches", "free_bytes", "expected"),
    [
        # floor(2 * 3 / 1.25) = 4, floor(2 * 2 / 1.25) = 3, floor(2 / 1.25) = 1, and 0 at the end.
        (12, None, (4, 3, 1, 0)),
        (8, None, (4, 3, 1, 0)),
        # Stage 0 has 4 + 3 forwards in front: all 7. Stage 1 keeps its 3.
        (7, None, (3, 3, 1, 0)),
        # Stage 0 has all 5 in front with 1 extra, so stage 1 may have 2 though that is more.
        (5, None, (1, 2, 1, 0)),
        # Fewer microbatches than stages: M - (P - s) is negative for stage 0 and counts as 0.
        (3, None, (0, 0, 1, 0)),
        (1, None, (0, 0, 0, 0)),
        (8, (1000, 1000, 1000, 1000), (4, 3, 1, 0)),
        (8, (1000, 299, 1000, 1000), (4, 2, 1, 0)),
        (8, (1000, 1000, 99, 1000), (4, 3, 0, 0)),
        # Stage 0 has 6 of 8 in front: stage 1 may have no more than it.
        (8, (250, 1000, 1000, 1000), (2, 2, 1, 0)),
        # The rule goes down stage by stage: 0 is handed on through 1 to 2.
        (8, (0, 1000, 1000, 1000), (0, 0, 0, 0)),
        (8, (1000, 0, 1000, 1000), (4, 0, 0, 0)),
    ],
)
def test_time_microbatches_and_memory_bound_the_extra_forwards(
    num_microbatches: int, free_bytes: tuple[int, ...] | None, expected: tuple[int, ...]
) -> None:
    """Four stages, activations of 100 bytes; a later stage never leads an earlier one."""
    context = context_of(equal_profile(4), num_microbatches)
    if free_bytes:
        memory = ActivationMemory(activation_bytes=(100,) * 4, free_bytes=free_bytes)
        context = replace(context, activation_memory=memory)
    assert extra_warmup_forwards(context) == expected


@pytest.mark.parametrize(
    ("extra", "in_front"),
    [
        ((2, 0, 0), (5, 2, 1)),
        ((9, 9, 9), (6, 6, 6)),
        ((0, 1, 2), (3, 3, 3)),
        ((0, 0, 0), (3, 2, 1)),
    ],
)
def test_given_extra_forwards_are_run_whatever_the_profile_says(
    extra: tuple[int, ...], in_front: tuple[int, ...]
) -> None:
    context = replace(context_of(equal_profile(3), 6), extra_forwards=extra)
    stages = schedule_for("envpipe", context).stages
    assert tuple([kind for kind, *_ in stage].index(B) for stage in stages) == in_front


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        ((1, 0), "2 values for 3 stages"),
        ((1, -1, 0), "must be whole numbers from 0 on, not 1, -1, 0"),
        ((0, 2, 0), "stage 1 would run 4 forwards in front and stage 0 only 3"),
    ],
)
def test_extra_forwards_that_cannot_be_run_are_refused(extra: tuple[int, ...], text: str) -> None:
    context = replace(context_of(equal_profile(3), 6), extra_forwards=extra)
    with refuses("extra_forwards", text):
        schedule_for("envpipe", context)
    with refuses("extra_forwards", "is for schedule envpipe, not 1f1b"):
        schedule_for("1f1b", context)


def test_the_valley_counts_only_what_the_schedule_runs() -> None:
    """Split parts beside a whole backward do not move the valley of forward and backward.

    Forward and backward together are least at 1 MHz (4 J), where a forward takes 2 s, so
    floor(4 / 2) = 2; with the parts, which nothing runs, it would be 2 MHz, 1 s and 4.
    """
    stage: dict[InstructionKind, Points] = {
        F: [(2, 1.0, 3.0), (1, 2.0, 2.0)],
        B: [(2, 4.0, 3.0), (1, 8.0, 2.0)],
        I: [(2, 1.0, 1.0), (1, 1.0, 90.0)],
        W: [(2, 1.0, 1.0), (1, 1.0, 90.0)],
    }
    profile = profile_of([stage, stage])
    assert extra_warmup_forwards(context_of(profile, 20)) == (2, 0)


@given(profiles(), st.integers(1, 8), st.data())
def test_the_bounds_and_the_consistency_rule_hold_always(
    profile: StageProfile, num_microbatches: int, data: st.DataObject
) -> None:
    num_stages = profile.num_stages
    slots = data.draw(st.lists(st.integers(0, 5), min_size=num_stages, max_size=num_stages))
    context = ScheduleContext(
        profile=profile,
        num_microbatches=num_microbatches,
        activation_memory=ActivationMemory(
            activation_bytes=(10,) * num_stages, free_bytes=tuple(10 * slot for slot in slots)
        ),
    )
    extra = extra_warmup_forwards(context)
    assert extra[-1] == 0
    for stage, more in enumerate(extra):
        assert 0 <= more <= slots[stage]
        assert more <= max(0, num_microbatches - (num_stages - stage))
    for stage in range(num_stages - 1):
        all_in_front = num_stages - stage + extra[stage] >= num_microbatches
        assert all_in_front or extra[stage] >= extra[stage + 1]


def assigned(policy: Policy, model: PipelineModel) -> list[int]:
    request = PolicyRequest(
        model=model,
        reconfigure_granularity_mhz=30,
        options=PlanOptions(reconfigure=Reconfigure.DEFAULT, target="fastest"),
    )
    return POLICIES[policy](request).assignment


def clocks_mhz(model: PipelineModel, assignment: list[int]) -> list[list[tuple[str, int]]]:
    """Per stage, (letter and microbatch, MHz) of each unit."""
    rows: list[list[tuple[str, int]]] = [[] for _ in model.schedule.stages]
    for node, choice in enumerate(assignment):
        unit = written((model.dag.instruction[node],))
        rows[model.dag.stage[node]].append((unit, model.points[node][choice].frequency_mhz))
    return rows


def two_valleys() -> StageProfile:
    """Stage 0 has its valley at 900 MHz, stage 1 at 1200, stage 2 at its highest, 1500."""
    stages = []
    for valley in (900, 1200, 1500):
        points = [(mhz, 1.0, 10.0 + abs(mhz - valley)) for mhz in (1500, 1200, 900)]
        stages.append({F: points, B: points})
    return profile_of(stages)


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
