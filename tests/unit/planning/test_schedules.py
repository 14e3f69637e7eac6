"""Orders, ours and those that others made: what each stage runs, and what is no order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball_pipeline.dag import NONE, DependencyDag, build_dag
from flyball_pipeline.errors import PipelineError
from flyball_pipeline.instruction import (
    MAX_NUM_MICROBATCHES,
    Checkpoint,
    Instruction,
    InstructionKind,
)
from flyball_pipeline.schedule import Schedule, VirtualStages
from flyball_pipeline.schedules.explicit import explicit_order, num_microbatches_of
from flyball_pipeline.schedules.inputs import ExplicitOrder
from flyball_profiles.stage_profile import StageProfile
from flyball_server.planning.model.pipeline_model import PipelineModel, build_model
from flyball_server.planning.model.simulator import simulate
from flyball_server.planning.planner import model_of_request
from flyball_server.planning.scheduling import (
    ActivationMemory,
    ScheduleContext,
    extra_warmup_forwards,
    schedule_for,
)

from .tiny_pipelines import (
    B,
    F,
    I,
    R,
    S,
    Shape,
    W,
    any_contexts,
    any_shapes,
    context_of,
    equal_profile,
    model_of,
    profiles,
    refuses,
    request_of,
    timed_profile,
    written,
)


@pytest.mark.parametrize(
    ("name", "kinds", "num_chunks", "num_microbatches", "expected"),
    [
        ("gpipe", (F, B), 1, 3, ["F0 F1 F2 B0 B1 B2"] * 2),
        ("1f1b", (F, B), 1, 3, ["F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2"]),
        ("1f1b", (F, B), 1, 1, ["F0 B0"] * 2),
        (
            "envpipe",
            (F, B),
            1,
            5,
            ["F0 F1 F2 F3 B0 F4 B1 B2 B3 B4", "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4"],
        ),
        # A split backward runs its weight part right after its input part.
        ("1f1b", (F, I, W), 1, 2, ["F0 F1 I0 W0 I1 W1", "F0 I0 W0 F1 I1 W1"]),
        # Each forward is followed by the backward that many microbatches behind.
        ("pipedream", (F, B), 1, 3, ["F1 B0 F2 B1 F0 B2", "F0 B0 F1 B1 F2 B2"]),
        # Interleaving runs a backward as it was profiled.
        ("interleaved-1f1b", (F, B), 2, 2, ["F0 F1 F0.1 F1.1 B0.1 B1.1 B0 B1", None]),
        ("interleaved-1f1b", (F, B, I, W), 2, 2, ["F0 F1 F0.1 F1.1 B0.1 B1.1 B0 B1", None]),
        (
            "interleaved-1f1b",
            (F, I, W),
            2,
            2,
            ["F0 F1 F0.1 F1.1 I0.1 W0.1 I1.1 W1.1 I0 W0 I1 W1", None],
        ),
    ],
)
def test_two_equal_stages_run_these_orders(
    name: str,
    kinds: tuple[InstructionKind, ...],
    num_chunks: int,
    num_microbatches: int,
    expected: list[str | None],
) -> None:
    """All but forwards take two forwards; None: this stage is not compared."""
    profile = timed_profile(2, {F: 1.0} | dict.fromkeys(kinds[1:], 2.0), num_chunks)
    schedule = schedule_for(name, context_of(profile, num_microbatches))
    for stage, order in zip(schedule.stages, expected, strict=True):
        assert order in (written(stage), None)
    assert schedule.virtual_stages == (((0,), (1,)) if num_chunks == 1 else ((0, 2), (1, 3)))


@given(
    any_shapes(max_stages=4, max_microbatches=6).flatmap(
        lambda shape: st.tuples(st.just(shape), any_contexts(shape))
    )
)
def test_every_schedule_runs_everything_once_in_order_and_without_deadlock(
    drawn: tuple[Shape, ScheduleContext],
) -> None:
    (name, num_stages, num_chunks, num_microbatches), context = drawn
    schedule = schedule_for(name, context)
    build_dag(schedule)  # raises where the order deadlocks
    assert schedule.name == name
    assert (schedule.num_stages, schedule.num_chunks) == (num_stages, num_chunks)
    for instructions in schedule.stages:
        assert len(set(instructions)) == len(instructions)
        for chunk in range(num_chunks):
            for microbatch in range(num_microbatches):
                run = [unit.kind for unit in instructions if unit[1:] == (microbatch, chunk)]
                if schedule.is_periodic:  # the forward may be of a later microbatch's period
                    run.sort(key=[F, R, B, I, W].index)
                assert run in ([F, B], [F, R, B], [F, I, W], [F, R, I, W], [S])
                assert (run == [S]) == (name == "step")
        assert {unit.microbatch for unit in instructions} == set(range(num_microbatches))
        assert {unit.chunk for unit in instructions} == set(range(num_chunks))


@given(profiles(), st.integers(1, 8), st.sampled_from(["gpipe", "1f1b", "envpipe"]))
def test_forwards_and_backwards_alternate_between_warm_up_and_drain(
    profile: StageProfile, num_microbatches: int, name: str
) -> None:
    context = context_of(profile, num_microbatches)
    extra = extra_warmup_forwards(context)
    model = model_of(profile, num_microbatches, name)
    peaks = simulate(model, model.baseline()).peak_activations
    for stage, instructions in enumerate(model.schedule.stages):
        in_front = {
            "gpipe": num_microbatches,
            "1f1b": profile.num_stages - stage,
            "envpipe": profile.num_stages - stage + extra[stage],
        }[name]
        in_front = min(in_front, num_microbatches)
        assert peaks[stage] == in_front
        compact = "".join(
            "F" if item.kind is F else "B" for item in instructions if item.kind is not W
        )
        alternating = num_microbatches - in_front
        assert compact == "F" * in_front + "BF" * alternating + "B" * in_front


@pytest.mark.parametrize("num_microbatches", [0, -1, MAX_NUM_MICROBATCHES + 1, 2**60])
def test_a_number_of_microbatches_out_of_bounds_is_refused(num_microbatches: int) -> None:
    with refuses("num_microbatches", "must be from 1 to 65536"):
        context_of(equal_profile(2), num_microbatches)


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        ((), "every stage must run something"),
        (
            ((B, 0), (F, 0), (F, 1), (B, 1)),
            "stage 1 runs backward of microbatch 0 before the instruction",
        ),
        (((F, 0), (W, 0), (I, 0), (F, 1), (B, 1)), "runs backward_weight of microbatch 0 before"),
        (((R, 0), (F, 0), (B, 0), (F, 1), (B, 1)), "stage 1 runs recompute of microbatch 0 before"),
        (((F, 0), (B, 0), (R, 0), (F, 1), (B, 1)), "stage 1 runs backward of microbatch 0 before"),
        (((F, 0, 1), (B, 0, 1)), "stage 1 runs chunk 1, but has 1; virtual_stages gives"),
        (((F, 0), (F, 0), (B, 0)), "runs an instruction twice"),
        (((F, 0), (B, 0)), "does not run all 2 microbatches"),
        (((F, 0), (B, 0), (F, 1), (B, 1), (W, 1)), "one forward and one backward of microbatch 1"),
        (((F, 0), (B, 0), (F, 2), (B, 2)), "microbatch 2, of 2 microbatches"),
    ],
)
def test_a_stage_that_runs_too_little_or_too_much_is_refused(
    stage: tuple[tuple[InstructionKind, int] | tuple[InstructionKind, int, int], ...], said: str
) -> None:
    whole = tuple(Instruction(kind, m) for m in (0, 1) for kind in (F, B))
    wrong = tuple(Instruction(*unit) for unit in stage)
    with refuses("schedule", said):
        Schedule(name="by hand", num_microbatches=2, stages=(whole, wrong))


@pytest.mark.parametrize(
    ("num_stages", "chunk", "virtual_stages", "field", "said"),
    [
        (0, 0, (), "schedule", "every stage must run something"),
        (1, 1, ((0, 1),), "schedule", "does not run all 1 microbatches of every chunk"),
        (2, 0, ((0,), (1,), (2,)), "virtual_stages", "3 entries for 2 stages"),
        (2, 0, ((0, 2), (1,)), "virtual_stages", "all stages must hold the same number of chunks"),
        (2, 0, ((0,), (2,)), "virtual_stages", "must hold each of 0 to 1 once, not 0, 2"),
    ],
)
def test_chunks_that_make_no_model_are_refused(
    num_stages: int, chunk: int, virtual_stages: VirtualStages, field: str, said: str
) -> None:
    stages = ((Instruction(F, 0, chunk), Instruction(B, 0, chunk)),) * num_stages
    with refuses(field, said):
        Schedule(name="by hand", num_microbatches=1, stages=stages, virtual_stages=virtual_stages)


@pytest.mark.parametrize(
    ("name", "kinds", "num_chunks", "num_microbatches", "field", "said"),
    [
        ("2f2b", (F, B), 1, 2, "schedule", "unknown '2f2b'; known: 1f1b, envpipe, gpipe"),
        ("interleaved-1f1b", (F, B), 1, 2, "profile", "runs at least 2 per stage"),
        ("zbv", (F, I, W), 1, 4, "profile", "zbv runs 2 per stage"),
        ("zb-h1", (F, B), 1, 4, "profile", "has no backward_input of stage 0; zb-h1"),
        ("zbv", (F, B), 2, 4, "profile", "has no backward_input of stage 0, chunk 0; zbv"),
        ("torchgpipe", (F, B), 1, 2, "profile", "has no recompute of stage 0"),
        ("interleaved-1f1b", (F, B), 2, 5, "num_microbatches", "5 cannot be divided into groups"),
        ("interleaved-zb", (F, I, W), 2, 5, "num_microbatches", "over 2 stages; 4 and 6 can"),
        ("dualpipev", (F, I, W), 2, 3, "num_microbatches", "must be at least 4 for dualpipev"),
        ("pipedream-2bw", (F, B), 1, 1, "num_microbatches", "must be at least 2, one per stage"),
    ],
)
def test_a_schedule_that_profile_or_microbatches_do_not_allow_is_refused(
    name: str,
    kinds: tuple[InstructionKind, ...],
    num_chunks: int,
    num_microbatches: int,
    field: str,
    said: str,
) -> None:
    profile = timed_profile(2, dict.fromkeys(kinds, 1.0), num_chunks)
    with refuses(field, said):
        model_of(profile, num_microbatches, name)


Unit = tuple[InstructionKind, int] | tuple[InstructionKind, int, int]


def dag_of(
    *stages: Sequence[Unit],
    num_microbatches: int = 1,
    virtual_stages: VirtualStages = (),
    weight_versions: tuple[int, ...] | None = None,
) -> DependencyDag:
    return build_dag(
        Schedule(
            name="by hand",
            num_microbatches=num_microbatches,
            virtual_stages=virtual_stages,
            weight_versions=weight_versions,
            stages=tuple(tuple(Instruction(*unit) for unit in stage) for stage in stages),
        )
    )


SPLIT: list[Unit] = [(F, 0), (I, 0), (W, 0)]
WHOLE: list[Unit] = [(F, 0), (B, 0)]
TWO_CHUNKS: list[Unit] = [(F, 0, 0), (F, 0, 1), (B, 0, 1), (B, 0, 0)]
PARTLY_SPLIT: list[Unit] = [(F, 0, 0), (F, 0, 1), (I, 0, 1), (W, 0, 1), (B, 0, 0)]


@pytest.mark.parametrize(
    ("stages", "virtual_stages", "expected"),
    [
        # Microbatches are matched by number.
        (
            ([(F, 0), (F, 1), (B, 0), (B, 1)], [(F, 0), (B, 0), (F, 1), (B, 1)]),
            (),
            (NONE, NONE, 5, 7, 0, 4, 1, 6),
        ),
        # A weight part waits for its input part, the neighbour for the input part.
        ((SPLIT, SPLIT), (), (NONE, 4, 1, 0, 3, 4)),
        ((WHOLE, SPLIT), (), (NONE, 3, 0, 2, 3)),
        ((SPLIT, WHOLE), (), (NONE, 4, 1, 0, 3)),
        # A recomputation waits for its own forward only.
        (([(F, 0), (R, 0), (B, 0)], WHOLE), (), (NONE, 0, 4, 0, 3)),
        # Around the loop: chunk 1 of stage 0 waits for chunk 0 of stage 1.
        ((TWO_CHUNKS, TWO_CHUNKS), ((0, 2), (1, 3)), (NONE, 4, 6, 7, 0, 1, 5, 2)),
        # In the shape of a V chunk 1 of stage 1 waits for its own chunk 0.
        ((PARTLY_SPLIT,) * 2, ((0, 3), (1, 2)), (NONE, 6, 1, 2, 9, 0, 5, 2, 7, 7)),
    ],
)
def test_each_instruction_waits_for_the_data_that_it_needs(
    stages: tuple[list[Unit], ...], virtual_stages: VirtualStages, expected: tuple[int, ...]
) -> None:
    num_microbatches = 1 + max(unit[1] for unit in stages[0])
    dag = dag_of(*stages, num_microbatches=num_microbatches, virtual_stages=virtual_stages)
    assert dag.data_predecessor == expected


@pytest.mark.parametrize(
    ("num_microbatches", "stages", "virtual_stages"),
    [
        (2, ([*WHOLE, (F, 1), (B, 1)], [(F, 1), (B, 1), *WHOLE]), ()),
        # Stage 1 needs two forwards where stage 0 sends one.
        (2, ([*WHOLE, (F, 1), (B, 1)], [(F, 0), (F, 1), (B, 0), (B, 1)]), ()),
        # Chunk 1, later in the model, runs first.
        (1, ([(F, 0, 1), (F, 0, 0), (B, 0, 1), (B, 0, 0)],), ((0, 1),)),
    ],
)
def test_an_order_that_waits_for_itself_is_refused(
    num_microbatches: int, stages: tuple[list[Unit], ...], virtual_stages: VirtualStages
) -> None:
    with refuses("schedule", "deadlocks: stage "):
        dag_of(*stages, num_microbatches=num_microbatches, virtual_stages=virtual_stages)


def test_in_a_steady_state_a_stage_has_a_node_for_each_kind_and_waits_for_itself_alone() -> None:
    """The backward of microbatch 0 belongs to a forward of the period before."""
    dag = dag_of(
        [(F, 1), (B, 0), (F, 0), (B, 1)],
        [(F, 0), (B, 0), (F, 1), (B, 1)],
        num_microbatches=2,
        weight_versions=(2, 1),
    )
    assert dag.instruction == (Instruction(F, 0), Instruction(B, 0)) * 2
    assert dag.data_predecessor == (NONE,) * 4
    assert dag.order_predecessor == (NONE, 0, NONE, 2)


TIMES_S = {F: 1.0, R: 1.0, B: 2.0}


def torchgpipe(
    num_stages: int, num_microbatches: int, checkpoint: Checkpoint | None
) -> PipelineModel:
    profile = timed_profile(num_stages, TIMES_S)
    context = ScheduleContext(
        profile=profile, num_microbatches=num_microbatches, checkpoint=checkpoint
    )
    return build_model(profile, schedule_for("torchgpipe", context), (5.0,))


@pytest.mark.parametrize(
    ("checkpoint", "expected"),
    [
        ("never", "F0 F1 F2 B2 B1 B0"),
        ("except_last", "F0 F1 F2 B2 R1 B1 R0 B0"),
        (None, "F0 F1 F2 B2 R1 B1 R0 B0"),
        ("always", "F0 F1 F2 R2 B2 R1 B1 R0 B0"),
    ],
)
def test_torchgpipe_runs_backwards_from_the_last_and_computes_again_what_it_did_not_keep(
    checkpoint: Checkpoint | None, expected: str
) -> None:
    model = torchgpipe(2, 3, checkpoint)
    assert [written(stage) for stage in model.schedule.stages] == [expected] * 2


@given(st.integers(1, 5), st.integers(1, 6), st.sampled_from(["never", "except_last", "always"]))
def test_torchgpipe_takes_a_forward_more_for_each_microbatch_computed_again(
    num_stages: int, num_microbatches: int, checkpoint: Checkpoint
) -> None:
    """Equal stages of 1 s forward and recompute and 2 s backward.

    Forwards go down in M + K-1 s. The last stage is then busy for R recomputations and M
    backwards; above it backwards of 2 s follow each other with a recomputation between, so the
    last gradient goes up through K-1 more backwards. (Recomputing waits for no gradient: above
    the last stage the first recomputation hides behind the wait.)
    """
    simulation = simulate(
        model := torchgpipe(num_stages, num_microbatches, checkpoint), model.baseline()
    )
    recomputed = {
        "never": 0,
        "except_last": num_microbatches - 1,
        "always": num_microbatches,
    }[checkpoint]
    assert simulation.iteration_time_s == (
        num_microbatches + num_stages - 1 + recomputed + 2 * (num_microbatches + num_stages - 1)
    )


@pytest.mark.parametrize("schedule", ["gpipe", "early-recompute-1f1b"])
def test_a_checkpoint_mode_is_torchgpipes_alone(schedule: str) -> None:
    context = ScheduleContext(
        profile=timed_profile(2, TIMES_S), num_microbatches=2, checkpoint=Checkpoint.ALWAYS
    )
    with refuses("checkpoint", f"is for schedule torchgpipe, not {schedule}"):
        schedule_for(schedule, context)


# ------------------------------------------------------------------ orders that others made


Entry = Sequence[str | int]
TWO_MICROBATCHES: list[Entry] = [["forward", 0], ["forward", 1], ["backward", 0], ["backward", 1]]
ONE: list[Entry] = [["forward", 0], ["backward", 0]]
IN_PARTS: list[Entry] = [["forward", 0], ["backward_input", 0], ["backward_weight", 0]]
MEMORY = {"activation_bytes": (10, 10), "free_memory_bytes": (9, 9)}
IN_A_V = {"virtual_stages": ((0, 3), (1, 2))}
V: list[Entry] = [["forward", 0], ["forward", 0, 1], ["backward", 0, 1], ["backward", 0]]


@given(
    any_shapes(max_stages=3, max_microbatches=4).flatmap(
        lambda shape: any_contexts(shape).map(lambda context: (shape, context))
    )
)
def test_any_schedule_that_flushes_written_down_as_an_order_is_the_same(
    drawn: tuple[Shape, ScheduleContext],
) -> None:
    shape, context = drawn
    made = schedule_for(shape[0], context)
    order = explicit_order(
        [[(str(kind), m, chunk) for kind, m, chunk in stage] for stage in made.stages],
        made.virtual_stages,
    )
    if made.is_periodic:
        return
    taken = schedule_for("explicit", replace(context, checkpoint=None, order=order))
    assert taken.stages == made.stages
    assert build_dag(taken) == build_dag(made)


@pytest.mark.parametrize(
    ("schedule", "free_bytes", "said"),
    [
        ("gpipe", (29, 99, 99), "of 6 microbatches on stage 0, whose memory holds 5.9"),
        ("zb-h1", (0, 10, 19), "of 3 microbatches on stage 2, whose memory holds 2.9"),
        ("dualpipev", (4, 99, 99), "of 3.5 microbatches on stage 0, whose memory holds 3.4"),
    ],
)
def test_a_schedule_that_memory_cannot_hold_is_refused_a_chunk_being_part_of_a_stage(
    schedule: str, free_bytes: tuple[int, ...], said: str
) -> None:
    """Three stages, six microbatches of 10 bytes; two chunks; 1F1B holds 3, 2 and 1 of them."""
    num_chunks = 1 if schedule in {"zb-h1", "gpipe"} else 2
    context = ScheduleContext(
        profile=timed_profile(3, {F: 1.0, B: 2.0, I: 1.0, W: 1.0}, num_chunks),
        num_microbatches=6,
        activation_memory=ActivationMemory(activation_bytes=(10,) * 3, free_bytes=free_bytes),
    )
    with pytest.raises(PipelineError) as error:
        schedule_for(schedule, context)
    assert error.value.message == f"{schedule} keeps the activations {said}"
    assert error.value.field == "free_memory_bytes"
    short = [index for index in range(3) if f"stage {index}" in said]
    enough = tuple(size + (1 if stage in short else 0) for stage, size in enumerate(free_bytes))
    memory = ActivationMemory(activation_bytes=(10,) * 3, free_bytes=enough)
    schedule_for(schedule, replace(context, activation_memory=memory))


def test_an_order_has_the_microbatches_that_it_runs_and_at_least_one() -> None:
    assert num_microbatches_of(explicit_order([TWO_MICROBATCHES], None)) == 2
    assert num_microbatches_of(ExplicitOrder(stages=())) == 1


@pytest.mark.parametrize(
    ("num_chunks", "stages", "options", "field", "said"),
    [
        (1, [], {}, "order", "every stage must run something"),
        (1, [ONE, ONE[:1]], {}, "order", "stage 1 does not run one forward and one backward"),
        (1, [ONE, ONE, ONE], MEMORY, "order", "has 3 stages, the profile 2"),
        (1, [ONE, [*ONE, *TWO_MICROBATCHES]], {}, "order", "stage 1 runs an instruction twice"),
        (1, [ONE, IN_PARTS], {}, "profile", "has no backward_input of stage 1"),
        (2, [V, V], {"virtual_stages": ((0, 3),)}, "virtual_stages", "1 entries for 2 stages"),
        (2, [[V[1], V[0], *V[2:]], V], IN_A_V, "order", "deadlocks"),
        (1, [V, V], IN_A_V, "profile", "and 2 are run; measure each chunk"),
        (1, [ONE, ONE], {"schedule": "gpipe"}, "order", ""),
        (1, None, {}, "order", ""),
    ],
)
def test_an_order_that_cannot_be_planned_is_refused(
    num_chunks: int,
    stages: list[list[Entry]] | None,
    options: dict[str, Any],
    field: str,
    said: str,
) -> None:
    profile = timed_profile(2, {F: 1.0, B: 2.0}, num_chunks)
    order = stages if stages is None else tuple(tuple(map(tuple, stage)) for stage in stages)
    options = {"schedule": "explicit", "order": order, **options}
    with refuses(field, said):
        model_of_request(request_of(profile, **options))


@pytest.mark.parametrize(
    "entry",
    [
        *([], ["forward"], ["forward", 0, 0, 0], [0, "forward"], ["sideways", 0]),
        *(["forward", wrong] for wrong in ("0", 0.0, None, True, -1)),
        *(["forward", 0, wrong] for wrong in ("1", None, False, -1)),
    ],
)
def test_what_is_no_instruction_is_refused_with_its_place(entry: list[str | int]) -> None:
    with refuses("order[1][2]"):
        explicit_order([ONE, [*ONE, entry]], None)
