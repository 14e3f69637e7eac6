"""Small pipelines for the tests of the planning core: built by hand, or drawn by hypothesis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import strategies as st

from flyball_profiles.stage_profile import InstructionKind, OperatingPoint, StageProfile
from flyball_server.planning.pipeline_model import PipelineModel, build_model
from flyball_server.planning.schedules import make_schedule
from flyball_server.planning.schedules._base import Instruction, ScheduleContext

F = InstructionKind.FORWARD
B = InstructionKind.BACKWARD
I = InstructionKind.BACKWARD_INPUT  # noqa: E741 - the field's letter, beside F, B and W
W = InstructionKind.BACKWARD_WEIGHT
R = InstructionKind.RECOMPUTE

Points = Sequence[tuple[int, float, float]]
"""(frequency in MHz, time in s, energy in J) of each operating point."""

# Sums of multiples of 1/64 s are exact in floating point, whatever their order.
TICK_S = 1 / 64


def profile_of(
    stages: Sequence[Mapping[InstructionKind, Points]], num_ranks: Sequence[int] | None = None
) -> StageProfile:
    """A profile from one mapping of kind to points per stage."""
    return StageProfile(
        points={
            (stage, kind): tuple(
                OperatingPoint(frequency_mhz=mhz, time_s=time_s, energy_j=energy_j)
                for mhz, time_s, energy_j in points
            )
            for stage, kinds in enumerate(stages)
            for kind, points in kinds.items()
        },
        num_ranks_per_stage=tuple(num_ranks or [1] * len(stages)),
    )


def equal_profile(num_stages: int, num_ranks: Sequence[int] | None = None) -> StageProfile:
    """Equal stages: forward 1 s and 10 J, backward 2 s and 30 J at 1410 MHz.

    At 1000 MHz, every stage's valley, forward takes 1.25 s and 8 J, backward 2.5 s and 20 J.
    """
    stage = {F: [(1410, 1.0, 10.0), (1000, 1.25, 8.0)], B: [(1410, 2.0, 30.0), (1000, 2.5, 20.0)]}
    return profile_of([stage] * num_stages, num_ranks)


def context_of(profile: StageProfile, num_microbatches: int) -> ScheduleContext:
    """What a schedule is made from, with memory that bounds nothing."""
    return ScheduleContext(
        profile=profile, num_microbatches=num_microbatches, activation_memory=None
    )


def model_of(
    profile: StageProfile,
    num_microbatches: int,
    schedule: str = "1f1b",
    blocking_power_w: Sequence[float] = (5.0,),
) -> PipelineModel:
    """The profile under a schedule, ready to be planned."""
    made = make_schedule(schedule, context_of(profile, num_microbatches))
    return build_model(profile, made, blocking_power_w)


def node_of(model: PipelineModel, stage: int, kind: InstructionKind, microbatch: int) -> int:
    """The DAG's node of one instruction."""
    wanted = (stage, Instruction(kind, microbatch))
    return list(zip(model.dag.stage, model.dag.instruction, strict=True)).index(wanted)


@st.composite
def operating_points(draw: st.DrawFn) -> list[tuple[int, float, float]]:
    """Two to four points; time and energy follow no rule, as in a noisy profile."""
    clocks = draw(st.lists(st.integers(50, 94), min_size=2, max_size=4, unique=True))
    return [
        (15 * clock, draw(st.integers(1, 40)) * TICK_S, float(draw(st.integers(1, 60))))
        for clock in clocks
    ]


@st.composite
def profiles(draw: st.DrawFn, max_stages: int = 4) -> StageProfile:
    """Profiles of 1 to `max_stages` stages, some of them with a backward in two parts."""
    num_stages = draw(st.integers(1, max_stages))
    stages: list[dict[InstructionKind, Points]] = []
    for _ in range(num_stages):
        kinds = (F, I, W) if draw(st.booleans()) else (F, B)
        stages.append({kind: draw(operating_points()) for kind in kinds})
    ranks = draw(st.lists(st.integers(1, 4), min_size=num_stages, max_size=num_stages))
    return profile_of(stages, ranks)


@st.composite
def models(draw: st.DrawFn, max_stages: int = 4, max_microbatches: int = 5) -> PipelineModel:
    """Small pipelines under any of the schedules, with a blocking power per stage."""
    profile = draw(profiles(max_stages))
    power_w = draw(
        st.lists(st.integers(0, 90), min_size=profile.num_stages, max_size=profile.num_stages)
    )
    return model_of(
        profile,
        draw(st.integers(1, max_microbatches)),
        draw(st.sampled_from(["gpipe", "1f1b", "envpipe"])),
        power_w,
    )


@st.composite
def assigned_models(draw: st.DrawFn) -> tuple[PipelineModel, list[int]]:
    """A small pipeline and any assignment of it."""
    model = draw(models())
    return model, [draw(st.integers(0, len(points) - 1)) for points in model.points]


# (stages, microbatches, most points of an instruction): at most some hundred assignments each.
ENUMERABLE_SHAPES = [(1, 1, 4), (1, 2, 4), (1, 3, 2), (2, 1, 4), (2, 2, 2), (3, 1, 2), (1, 3, 3)]


@st.composite
def enumerable_models(draw: st.DrawFn) -> PipelineModel:
    """Pipelines so tiny that all their assignments can be tried; ranks and power by stage."""
    num_stages, num_microbatches, most_points = draw(st.sampled_from(ENUMERABLE_SHAPES))
    is_split = num_stages * num_microbatches < 3 and draw(st.booleans())
    stages = [
        {
            kind: draw(operating_points())[:most_points]
            for kind in ((F, I, W) if is_split else (F, B))
        }
        for _ in range(num_stages)
    ]
    ranks = draw(st.lists(st.integers(1, 3), min_size=num_stages, max_size=num_stages))
    power_w = draw(st.lists(st.integers(0, 200), min_size=num_stages, max_size=num_stages))
    schedule = draw(st.sampled_from(["gpipe", "1f1b", "envpipe"]))
    return model_of(profile_of(stages, ranks), num_microbatches, schedule, power_w)


def four_plan_model() -> PipelineModel:
    """One stage, one microbatch, 5 W while waiting: its four plans are easily written down.

    Both fast: 3 s, 40 J. Forward slow: 3.25 s, 38 J. Backward slow: 3.5 s, 30 J. Both slow:
    3.75 s, 28 J.
    """
    return model_of(equal_profile(1), 1)
