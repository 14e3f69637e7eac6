"""Small pipelines for the tests of the planning core: built by hand, or drawn by hypothesis."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import strategies as st
from numpy.typing import NDArray

from flyball_pipeline.errors import PipelineError
from flyball_pipeline.instruction import Checkpoint, Instruction, InstructionKind
from flyball_pipeline.schedules.inputs import ExplicitOrder
from flyball_pipeline.schedules.table import SCHEDULES
from flyball_pipeline.schedules.whole_step import STEP
from flyball_profiles.clock_transitions import ClockTransitions
from flyball_profiles.examples import load_example_profile
from flyball_profiles.rank_merge import whole_stages
from flyball_profiles.stage_profile import OperatingPoint, StageProfile
from flyball_server.planning.frontier.curves import model_curves
from flyball_server.planning.frontier.event_network import EventNetwork, build_network
from flyball_server.planning.model.pipeline_model import PipelineModel, build_model
from flyball_server.planning.planner import PlanRequest
from flyball_server.planning.scheduling import ScheduleContext, schedule_for
from flyball_server.planning.stragglers.slowed_pipelines import SlowedRequest
from flyball_wire.plan_options import Effort, PlanOptions
from flyball_wire.plans.plan import Slowdown

F = InstructionKind.FORWARD
B = InstructionKind.BACKWARD
I = InstructionKind.BACKWARD_INPUT  # noqa: E741 - the field's letter, beside F, B and W
W = InstructionKind.BACKWARD_WEIGHT
R = InstructionKind.RECOMPUTE
S = InstructionKind.STEP

Points = Sequence[tuple[int, float, float]]
"""(frequency in MHz, time in s, energy in J) of each operating point."""

Delay = float | tuple[float, float, float]
"""Time of a clock change in s, or its percentiles p5, p50 and p95."""

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


def changed_points(
    profile: StageProfile,
    change: Callable[[tuple[int, InstructionKind], OperatingPoint], OperatingPoint],
) -> StageProfile:
    """The profile with each operating point replaced, by stage and kind."""
    points = {
        key: tuple(change(key, point) for point in of_key) for key, of_key in profile.points.items()
    }
    return replace(profile, points=points)


def equal_profile(num_stages: int, num_ranks: Sequence[int] | None = None) -> StageProfile:
    """Equal stages: forward 1 s and 10 J, backward 2 s and 30 J at 1410 MHz.

    At 1000 MHz, every stage's valley, forward takes 1.25 s and 8 J, backward 2.5 s and 20 J.
    """
    stage = {F: [(1410, 1.0, 10.0), (1000, 1.25, 8.0)], B: [(1410, 2.0, 30.0), (1000, 2.5, 20.0)]}
    return profile_of([stage] * num_stages, num_ranks)


def timed_profile(
    num_stages: int, times_s: Mapping[InstructionKind, float], num_chunks: int = 1
) -> StageProfile:
    """Equal stages of equal chunks; half as fast at 1000 MHz as at 1410 MHz, and all of 1 J."""
    stage = {
        kind: [(1410, time_s, 1.0), (1000, 2 * time_s, 1.0)] for kind, time_s in times_s.items()
    }
    chunk = profile_of([stage] * num_stages)
    return chunk if num_chunks == 1 else whole_stages((chunk,) * num_chunks)


def merged_profile(num_pipelines: int, num_stages: int = 1) -> StageProfile:
    """`equal_profile` of several data-parallel pipelines, their energies summed."""
    return changed_points(
        equal_profile(num_stages, [num_pipelines] * num_stages),
        lambda _, point: replace(point, energy_j=num_pipelines * point.energy_j),
    )


def request_of(
    profile: StageProfile,
    num_microbatches: int = 1,
    **options: Any,  # noqa: ANN401 - any option
) -> PlanRequest:
    """A request for a plan; GPUs take 5 W while waiting."""
    return PlanRequest(
        profile=profile,
        num_microbatches=num_microbatches,
        options=PlanOptions(**{"blocking_power_w": (5.0,), **options}),
    )


def three_clocks_request(**options: object) -> PlanRequest:
    """Two stages and two microbatches, whose 3^8 plans can be tried one by one."""
    stage = {
        F: [(1400, 1.0, 10.0), (1200, 1.1, 8.5), (1000, 1.25, 8.0)],
        B: [(1400, 2.0, 30.0), (1200, 2.2, 23.0), (1000, 2.5, 20.0)],
    }
    return request_of(profile_of([stage, stage]), 2, **options)


def delays(
    up_s: Delay, down_s: Delay | None = None, *, starts_settled: bool = True
) -> ClockTransitions:
    """Times of clock changes up and down; without the latter they are alike."""
    up, down = (
        each if isinstance(each, tuple) else (each,) * 3
        for each in (up_s, up_s if down_s is None else down_s)
    )
    return ClockTransitions(
        up_p5_s=up[0],
        up_p50_s=up[1],
        up_p95_s=up[2],
        down_p5_s=down[0],
        down_p50_s=down[1],
        down_p95_s=down[2],
        starts_settled=starts_settled,
    )


def request_delays_s(
    model: PipelineModel, assignment: Sequence[int], up_s: float, down_s: float
) -> list[float]:
    """Delay of each instruction's request in s, by its direction; 0 where none is made."""
    clocks = model.clocked.clocks(assignment)
    ways = [
        clock - clocks[before] for clock, before in zip(clocks, model.clocked.before, strict=True)
    ]
    return [up_s if way < 0 else down_s if way else 0.0 for way in ways]


def drawn_delays_s(
    model: PipelineModel, assignment: Sequence[int], transitions: ClockTransitions, draws: Random
) -> list[float]:
    """Delays of all requests in s: the shortest, the longest, or between them."""
    ranges_s = zip(
        request_delays_s(model, assignment, transitions.up_p5_s, transitions.down_p5_s),
        request_delays_s(model, assignment, transitions.up_p95_s, transitions.down_p95_s),
        strict=True,
    )
    return [
        draws.choice([low_s, draws.uniform(low_s, high_s), high_s]) for low_s, high_s in ranges_s
    ]


def every_choice(model: PipelineModel) -> NDArray[np.int64]:
    """All assignments of a pipeline; shape (num_assignments, num_nodes)."""
    return np.array(list(itertools.product(*(range(len(points)) for points in model.points))))


def random_choices(model: PipelineModel, draws: Random, num_plans: int) -> NDArray[np.int64]:
    """Plans of clocks drawn at random; shape (num_plans, num_nodes)."""
    rows = [[draws.randrange(len(points)) for points in model.points] for _ in range(num_plans)]
    return np.array(rows)


def slowed_request(
    profile: StageProfile,
    *slowdowns: Slowdown,
    num_pipelines: int = 1,
    num_microbatches: int = 1,
    **options: Any,  # noqa: ANN401 - any option
) -> SlowedRequest:
    """A request of little effort for pipelines with stragglers."""
    return SlowedRequest(
        request=request_of(profile, num_microbatches, **{"effort": Effort.LOW, **options}),
        slowdowns=slowdowns,
        num_pipelines=num_pipelines,
    )


@contextmanager
def refuses(field: str | None, message: str = "") -> Iterator[None]:
    """Expect a refusal in one line that names `field` and has `message` as a part."""
    with pytest.raises(PipelineError) as error:
        yield
    assert error.value.field == field
    assert message in error.value.message
    assert "\n" not in str(error.value)


def context_of(profile: StageProfile, num_microbatches: int) -> ScheduleContext:
    """Return what a schedule is made from, with memory that bounds nothing."""
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
    made = schedule_for(schedule, context_of(profile, num_microbatches))
    return build_model(profile, made, blocking_power_w)


def network_of(model: PipelineModel) -> EventNetwork:
    """The events of a pipeline with the cost curves of its instructions."""
    return build_network(model, model_curves(model))


def example_model(num_microbatches: int) -> PipelineModel:
    """Three stages of the shipped example under 1F1B."""
    profile = load_example_profile().select_stages((0, 1, 7))
    return model_of(profile, num_microbatches, "1f1b", [83.64])


def two_by_two(slow_backward_s: float) -> tuple[PipelineModel, list[int]]:
    """Two stages, two microbatches; F1 and B0 of stage 0 at their lower clock.

    Stage 0: F0 0-1, F1 1-3, B0 from 4, B1 from 7 (or B0's end); stage 1: F0 1-2, B0 2-4,
    F1 4-5, B1 5-7.
    """
    stage = {
        F: [(200, 1.0, 10.0), (100, 2.0, 5.0)],
        B: [(200, 2.0, 10.0), (100, slow_backward_s, 5.0)],
    }
    model = model_of(profile_of([stage, stage]), 2)
    start = model.baseline()
    start[node_of(model, 0, F, 1)] = start[node_of(model, 0, B, 0)] = 1
    return model, start


def node_of(model: PipelineModel, stage: int, kind: InstructionKind, microbatch: int) -> int:
    """The DAG's node of one instruction."""
    wanted = (stage, Instruction(kind, microbatch))
    return list(zip(model.dag.stage, model.dag.instruction, strict=True)).index(wanted)


def written(stage: tuple[Instruction, ...]) -> str:
    """Instructions in letters, as in `F0 B0`, chunks but the first as in `F0.1`."""
    letters = {F: "F", B: "B", I: "I", W: "W", R: "R"}
    return " ".join(
        f"{letters[item.kind]}{item.microbatch}" + (f".{item.chunk}" if item.chunk else "")
        for item in stage
    )


def replaced(document: object, place: tuple[str | int, ...], value: object) -> object:
    """The document with another value at one place."""
    if not place:
        return value
    parts = cast("dict[str | int, object]", document)  # or a list: both take what is in `place`
    parts[place[0]] = replaced(parts[place[0]], place[1:], value) if place[1:] else value
    return document


@st.composite
def operating_points(draw: st.DrawFn) -> list[tuple[int, float, float]]:
    """Two to four points; time and energy follow no rule, as in a noisy profile."""
    clocks = draw(st.lists(st.integers(50, 94), min_size=2, max_size=4, unique=True))
    return [
        (15 * clock, draw(st.integers(1, 40)) * TICK_S, float(draw(st.integers(1, 60))))
        for clock in clocks
    ]


@st.composite
def profiles(draw: st.DrawFn, max_stages: int = 4, split: bool = True) -> StageProfile:
    """Profiles of 1 to `max_stages` stages; with `split` some have a backward in two parts."""
    num_stages = draw(st.integers(1, max_stages))
    stages: list[dict[InstructionKind, Points]] = []
    for _ in range(num_stages):
        kinds = (F, I, W) if split and draw(st.booleans()) else (F, B)
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


LOOPED_SCHEDULES = ("interleaved-1f1b", "looped-bfs", "interleaved-zb")
V_SCHEDULES = ("zbv", "dualpipev")
SPLITTING_SCHEDULES = ("zb-h1", "interleaved-zb", *V_SCHEDULES)
RECOMPUTING_SCHEDULES = ("torchgpipe", "early-recompute-1f1b")
# Its order is drawn too.
EXPLICIT_SCHEDULE = "explicit"

Shape = tuple[str, int, int, int]
"""(schedule, stages, chunks of a stage, microbatches)."""


@st.composite
def any_shapes(draw: st.DrawFn, max_stages: int, max_microbatches: int) -> Shape:
    """A schedule of all there are, with a shape that it can have."""
    name = draw(st.sampled_from(sorted(SCHEDULES)))
    if name == STEP:
        return name, 1, 1, 1
    num_stages = draw(st.integers(1, max_stages))
    num_chunks = 2 if name in V_SCHEDULES else 1
    if name in LOOPED_SCHEDULES:
        num_chunks = draw(st.integers(2, 3))
    elif name == EXPLICIT_SCHEDULE:
        num_chunks = draw(st.integers(1, 2))
    fewest = {"dualpipev": 2 * num_stages, "pipedream-2bw": num_stages}.get(name, 1)
    in_whole_groups = [
        number
        for number in range(fewest, max(fewest, max_microbatches) + 1)
        if number % max(1, number // num_stages) == 0 or name not in LOOPED_SCHEDULES
    ]
    return name, num_stages, num_chunks, draw(st.sampled_from(in_whole_groups))


@st.composite
def any_contexts(draw: st.DrawFn, shape: Shape, most_points: int = 4) -> ScheduleContext:
    """A profile for a shape, with whatever else its schedule needs; ranks by stage.

    Instructions share a few lists of operating points.
    """
    name, num_stages, num_chunks, num_microbatches = shape
    pool = draw(st.lists(operating_points(), min_size=1, max_size=4))
    ranks = draw(st.lists(st.integers(1, 3), min_size=num_stages, max_size=num_stages))
    kinds_of_backward = [(I, W), (B, I, W)] if name in SPLITTING_SCHEDULES else [(B,), (I, W)]

    def kinds_of(backward: tuple[InstructionKind, ...]) -> tuple[InstructionKind, ...]:
        return (S,) if name == STEP else (F, R, *backward)

    chunks = [
        profile_of(
            [
                {
                    kind: draw(st.sampled_from(pool))[:most_points]
                    for kind in kinds_of(draw(st.sampled_from(kinds_of_backward)))
                    if kind is not R or name in (*RECOMPUTING_SCHEDULES, EXPLICIT_SCHEDULE)
                }
                for _ in range(num_stages)
            ],
            ranks,
        )
        for _ in range(num_chunks)
    ]
    profile = chunks[0] if num_chunks == 1 else replace(chunks[0], chunks=tuple(chunks))
    is_explicit = name == EXPLICIT_SCHEDULE
    return ScheduleContext(
        profile=profile,
        num_microbatches=num_microbatches,
        checkpoint=draw(st.sampled_from(Checkpoint)) if name == "torchgpipe" else None,
        order=draw(any_orders(chunks, num_microbatches)) if is_explicit else None,
    )


@st.composite
def any_orders(
    draw: st.DrawFn, chunks: Sequence[StageProfile], num_microbatches: int
) -> ExplicitOrder:
    """Any order that runs to its end: at each turn one instruction that has all it needs.

    The chunks lie anywhere in the model. Some microbatches are computed forward again.
    """
    num_stages, num_virtual = chunks[0].num_stages, chunks[0].num_stages * len(chunks)
    places = draw(st.permutations(range(num_virtual)))
    chance = Random(draw(st.integers(0, 2**16)))  # a draw for each turn would take long
    # What each (virtual stage, kind, microbatch) waits for.
    needs: dict[tuple[int, InstructionKind, int], set[tuple[int, InstructionKind, int]]] = {}
    backward = {
        virtual: B if (index % num_stages, B) in chunks[index // num_stages].points else I
        for index, virtual in enumerate(places)
    }
    for virtual in range(num_virtual):
        for m in range(num_microbatches):
            needs[virtual, F, m] = {(virtual - 1, F, m)} if virtual else set()
            needs[virtual, backward[virtual], m] = {(virtual, F, m)}
            if virtual + 1 < num_virtual:
                needs[virtual, backward[virtual], m].add((virtual + 1, backward[virtual + 1], m))
            if backward[virtual] is I:
                needs[virtual, W, m] = {(virtual, I, m)}
            if chance.random() < 0.3:
                needs[virtual, R, m] = {(virtual, F, m)}
                needs[virtual, backward[virtual], m].add((virtual, R, m))
    stages: list[list[Instruction]] = [[] for _ in range(num_stages)]
    done: set[tuple[int, InstructionKind, int]] = set()
    while len(done) < len(needs):
        ready = [unit for unit in needs if unit not in done and needs[unit] <= done]
        virtual, kind, m = unit = chance.choice(ready)
        chunk, stage = divmod(places.index(virtual), num_stages)
        stages[stage].append(Instruction(kind, m, chunk))
        done.add(unit)
    return ExplicitOrder(
        stages=tuple(map(tuple, stages)),
        virtual_stages=tuple(tuple(places[stage::num_stages]) for stage in range(num_stages)),
    )


@st.composite
def any_models(draw: st.DrawFn, max_stages: int = 3, max_microbatches: int = 4) -> PipelineModel:
    """Small pipelines under every schedule there is, and under any other order that runs."""
    return draw(_any_models_of(draw(any_shapes(max_stages, max_microbatches))))


@st.composite
def _any_models_of(draw: st.DrawFn, shape: Shape, most_points: int = 4) -> PipelineModel:
    context = draw(any_contexts(shape, most_points))
    num_stages = context.profile.num_stages
    power_w = draw(st.lists(st.integers(0, 90), min_size=num_stages, max_size=num_stages))
    return build_model(context.profile, schedule_for(shape[0], context), power_w)


@st.composite
def models_with_delays(draw: st.DrawFn) -> PipelineModel:
    """Models of `any_models`, some with a tail and transfers."""
    model = draw(any_models())
    if model.schedule.is_periodic:
        return model
    return model.with_delays(*draw(st.sampled_from([(0.0, ()), (0.05, (0.02,))])))


def raw_order(order: ExplicitOrder | None) -> dict[str, Any]:
    """Options `order` and `virtual_stages` of an order."""
    if order is None:
        return {}
    entries = tuple(tuple(map(tuple, stage)) for stage in order.stages)
    return {"order": entries, "virtual_stages": order.virtual_stages}


@st.composite
def any_requests(draw: st.DrawFn) -> PlanRequest:
    """Requests for a plan of the frontier's, under any schedule there is."""
    shape = draw(any_shapes(max_stages=3, max_microbatches=3))
    context = draw(any_contexts(shape))
    return PlanRequest(
        profile=context.profile,
        num_microbatches=context.num_microbatches,
        options=PlanOptions(
            blocking_power_w=(1.0,),
            schedule=shape[0],
            effort=Effort.LOW,
            checkpoint=context.checkpoint,
            **raw_order(context.order),
        ),
    )


@st.composite
def assigned_any_models(draw: st.DrawFn) -> tuple[PipelineModel, list[int]]:
    """A small pipeline under any schedule, and any assignment of it."""
    model = draw(any_models(max_microbatches=3))
    return model, [draw(st.integers(0, len(points) - 1)) for points in model.points]


# One shape of each schedule with at most ten instructions of two clocks: a thousand assignments.
ENUMERABLE_SHAPES_OF_ALL: list[Shape] = [
    ("gpipe", 2, 1, 2),
    ("1f1b", 2, 1, 2),
    ("envpipe", 1, 1, 3),
    ("torchgpipe", 1, 1, 2),
    ("early-recompute-1f1b", 2, 1, 1),
    ("interleaved-1f1b", 2, 2, 1),
    ("looped-bfs", 1, 2, 1),
    ("zb-h1", 1, 1, 3),
    ("zb-h1", 2, 1, 1),
    ("interleaved-zb", 1, 2, 1),
    ("zbv", 1, 2, 1),
    ("dualpipev", 1, 2, 2),
    ("pipedream", 2, 1, 1),
    ("pipedream-2bw", 1, 1, 3),
    (EXPLICIT_SCHEDULE, 2, 1, 1),
    (EXPLICIT_SCHEDULE, 1, 2, 1),
]


def any_enumerable_models() -> st.SearchStrategy[PipelineModel]:
    """Pipelines under every schedule, so tiny that all their assignments can be tried."""
    return st.sampled_from(ENUMERABLE_SHAPES_OF_ALL).flatmap(
        lambda shape: _any_models_of(shape, most_points=2)
    )


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
