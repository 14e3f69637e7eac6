"""Recorded steps that differ: static plan, one clock, a plan a step and the bound, judged."""

from __future__ import annotations

import itertools
import random

import pytest
from tests.shared_data import needs_shared_data, recorded_steps
from tests.unit.replay.small_steps import HEADER, WAITING_W, alone, profile, steps_of

from flyball_pipeline.dag import build_dag
from flyball_pipeline.instruction import SPLIT_BACKWARD, equal_stages
from flyball_pipeline.paths import earliest_finish_s
from flyball_pipeline.retiming import NO_RESERVE, StepReserve
from flyball_pipeline.schedules.inputs import ScheduleInputs
from flyball_pipeline.schedules.table import make_schedule
from flyball_profiles.clock_transitions import ClockTransitions
from flyball_profiles.examples import load_example_profile
from flyball_server.replay.recorded_runs import RecordingError
from flyball_server.replay.steps.judged_steps import JudgedBy, LateJudge, NodeQueue, judged_at_once
from flyball_server.replay.steps.predicted_work import (
    EXACT,
    LONGER,
    PredictionError,
    chosen_reserves,
    planned_steps,
)
from flyball_server.replay.steps.recorded_steps import parse_recorded_steps
from flyball_server.replay.steps.replayed_steps import (
    bound_saved_percent,
    replay_steps,
)
from flyball_server.replay.steps.step_bound import StepBound
from flyball_server.replay.steps.step_models import pipeline_steps


def pipelines_text(num_steps: int, *, seed: int = 0) -> str:
    """Return two pipelines of two stages and three microbatches in 1F1B, each of other work."""
    rng = random.Random(seed)
    orders = (
        [("forward", 0), ("forward", 1), ("backward", 0), ("forward", 2), ("backward", 1),
         ("backward", 2)],
        [("forward", 0), ("backward", 0), ("forward", 1), ("backward", 1), ("forward", 2),
         ("backward", 2)],
    )  # fmt: skip
    rows: list[str] = []
    for step, rank in itertools.product(range(num_steps), range(2)):
        work = [rng.lognormvariate(0, 0.4) for _ in range(3)]
        for stage, order in enumerate(orders):
            for place, (kind, microbatch) in enumerate(order):
                time_s = work[microbatch] * (0.1 if kind == "forward" else 0.2)
                rows.append(f"{step},{rank},{stage},{kind},{microbatch},{place},{time_s}\n")
    return HEADER + "".join(rows)


def test_a_rank_that_waits_for_another_takes_its_time() -> None:
    # Rank 1 takes 0.3 s, rank 0 0.33 s at the highest clock: rank 1's 10 % are 1200 MHz for both.
    ((slow, quick),) = steps_of(alone([[(0.11, 0.22), (0.1, 0.2)]]))
    ((clocks_of_slow, clocks_of_quick),) = planned_steps(
        [[slow, quick]], PredictionError(deviation=0), [NO_RESERVE], 0
    )
    assert clocks_of_slow == (1400, 1400)
    assert clocks_of_quick == (1200, 1200)
    judged = judged_at_once([slow, quick], [clocks_of_slow, clocks_of_quick])
    assert judged.time_s == pytest.approx(0.33)
    # 1.1 times 30 + 62 J; 26 + 54 J in 0.33 s.
    assert judged.energy_j == pytest.approx(1.1 * 92 + 80)


def test_what_a_plan_a_step_saves_lies_between_one_clock_and_the_bound() -> None:
    replayed = replay_steps(steps_of(pipelines_text(10)))
    assert replayed.static.time_percent > 1
    assert replayed.per_step.time_percent == pytest.approx(0, abs=1e-7)
    assert replayed.one_clock.time_percent == pytest.approx(0, abs=1e-7)
    one_clock, per_step = replayed.one_clock.saved_percent, replayed.per_step.saved_percent
    assert one_clock < per_step <= replayed.bound_saved_percent


def test_the_bound_is_the_hull_of_a_single_instruction() -> None:
    ((pipeline,),) = steps_of(alone([[(0.1, 0.2)]]))
    # Of 0.033 s, 0.03 s bring both from 1400 to 1200 MHz: 4.8 and 9.6 J net of waiting. On to
    # 1000 MHz 1 J more is paid in 0.03 s and 2.4 J of waiting saved: 1.4 J, for both 46.67 W.
    least_j = StepBound().least_j(pipeline, 0.333)
    net_j = 26 + 54 - WAITING_W * 0.33 - 0.003 * 1.4 / 0.03
    assert least_j == pytest.approx(net_j, rel=1e-6)


def test_no_clocks_that_keep_the_deadline_are_below_the_bound() -> None:
    for seed in range(5):
        text = alone([[(0.1, 0.2)]] * 2).replace("1,0,0", "0,1,0")
        rng = random.Random(seed)
        ((first, second),) = steps_of(text)
        deadline_s = 0.3 * rng.uniform(1.0, 1.3)
        for pipeline in (first, second):
            bound_j = StepBound().least_j(pipeline, deadline_s)
            for clocks in itertools.product((1400, 1200, 1000), repeat=2):
                judged = judged_at_once([pipeline], [clocks])
                if judged.time_s <= deadline_s:
                    assert judged.energy_j - WAITING_W * judged.time_s >= bound_j - 1e-9


def test_calls_of_a_node_wait_for_each_other() -> None:
    steps = steps_of(alone([[(0.1, 0.2)] * 4]))
    late = ClockTransitions(
        up_p5_s=0.01, up_p50_s=0.01, up_p95_s=0.01, down_p5_s=0.01, down_p50_s=0.01, down_p95_s=0.01
    )
    times_s = []
    for num_pipelines in (1, 2, 4):
        judge = LateJudge(late, queue=NodeQueue(call_s=0.02, num_pipelines=num_pipelines))
        judge.judged(steps[0], [(1200, 1200)] * 4)
        times_s.append(judge.judged(steps[0], [(1400, 1400)] * 4).time_s)
    # The last of n waits for n - 1 calls of 0.02 s; then 0.01 s.
    late_s = [0.01 + 0.02 * (num - 1) for num in (1, 2, 4)]
    assert times_s == pytest.approx([each * (1 - 0.1 / 0.11) + 0.3 for each in late_s])


def test_steps_with_late_changes_keep_the_time_of_the_highest_clocks() -> None:
    transitions = ClockTransitions.of_medians(0.005, 0.004)
    steps = steps_of(pipelines_text(10), transitions=transitions)
    replayed = replay_steps(steps, world=JudgedBy(transitions=transitions))
    at_once = replay_steps(steps_of(pipelines_text(10)))
    assert replayed.per_step.time_percent < 0.3
    assert at_once.per_step.saved_percent - 1.5 < replayed.per_step.saved_percent
    # Changes at once, judged by events, are those that no event delays.
    settled = replay_steps(steps, world=JudgedBy(transitions=ClockTransitions.exact(1e-9)))
    assert settled.static == pytest.approx(at_once.static)
    assert settled.one_clock == pytest.approx(at_once.one_clock)


@pytest.mark.slow
@pytest.mark.parametrize(("is_shared", "num_steps"), [(False, 24), (True, 16)])
def test_a_reserve_is_chosen_on_other_steps_and_keeps_the_time(
    is_shared: bool, num_steps: int
) -> None:
    steps = steps_of(pipelines_text(num_steps))
    error = PredictionError(deviation=0.03, is_shared=is_shared)
    even, odd = chosen_reserves(steps, error, 5)[:2]
    assert chosen_reserves(steps[1::2], error, 5)[1] != odd
    assert sum(even) > 0 and sum(odd) > 0
    # Reserve of the even steps does not depend on them.
    others = steps_of(pipelines_text(num_steps, seed=9))
    changed = tuple(
        each if n % 2 else other for n, (each, other) in enumerate(zip(steps, others, strict=True))
    )
    assert chosen_reserves(changed, error, 5)[0] == even
    replayed = replay_steps(steps, error=error)
    without = list(planned_steps(steps, error, [NO_RESERVE] * len(steps), 0))
    took_s = sum(judged_at_once(*both).time_s for both in zip(steps, without, strict=True))
    highest_s = sum(
        judged_at_once(each, [one.model.highest_mhz for one in each]).time_s for each in steps
    )
    assert replayed.per_step.time_percent < 100 * (took_s / highest_s - 1) / 2
    assert replayed.per_step.time_percent < 10 * 100 * LONGER
    assert 0 < replayed.reserve_percent < 12


def test_a_reserve_is_chosen_with_the_late_changes_that_the_steps_have() -> None:
    # Late changes keep instructions at higher clocks, so less reserve is needed than without them.
    transitions = ClockTransitions.of_medians(0.08, 0.065)
    steps = steps_of(pipelines_text(8), transitions=transitions)
    world, error = (
        JudgedBy(transitions=transitions),
        PredictionError(deviation=0.03, is_shared=True),
    )
    chosen = replay_steps(steps, world=world, error=error, seed=5).reserve_percent
    reserves = chosen_reserves(steps, error, 1_000_005, world)
    assert chosen == pytest.approx(100 * sum(map(sum, reserves)) / len(steps))
    (late, _), (at_once, _) = reserves[:2], chosen_reserves(steps, error, 1_000_005)[:2]
    others, seeds = steps[1::2], range(1_000_005, 1_000_008)

    def time_and_energy(reserve: StepReserve, error: PredictionError) -> tuple[float, float]:
        judged = [
            step
            for seed in seeds
            for step in world.judged(
                others, planned_steps(others, error, [reserve] * len(others), seed), seed
            )
        ]
        return sum(step.time_s for step in judged), sum(step.energy_j for step in judged)

    exact_s, _ = time_and_energy(NO_RESERVE, EXACT)
    late_s, late_j = time_and_energy(late, error)
    assert late_s <= (1 + LONGER) * exact_s
    assert late_j < time_and_energy(at_once, error)[1]


def test_pipelines_of_a_step_may_have_other_numbers_of_microbatches() -> None:
    text = alone([[(0.1, 0.2), (0.1, 0.2)]])
    text += "0,1,0,forward,1,1,0.1\n0,1,0,backward,1,2,0.2\n"
    ((short, long),) = steps_of(text)
    ((of_short, of_long),) = planned_steps([[short, long]], EXACT, [NO_RESERVE], 0)
    assert set(of_short) == {1000}
    assert set(of_long) == {1400}


def test_model_chunks_are_read() -> None:
    rows = [
        f"0,0,{stage},{kind},0,{begin},0.1,{chunk}\n"
        for begin, (stage, kind, chunk) in enumerate(
            [(0, "forward", 0), (1, "forward", 0), (0, "forward", 1), (1, "forward", 1),
             (1, "backward", 1), (0, "backward", 1), (1, "backward", 0), (0, "backward", 0)]
        )
    ]  # fmt: skip
    steps = steps_of(HEADER.replace("time_s", "time_s,chunk") + "".join(rows))
    judged = judged_at_once(steps[0], [steps[0][0].model.highest_mhz])
    assert judged.time_s == pytest.approx(0.8)
    assert bound_saved_percent(steps) == pytest.approx(0, abs=1e-6)


def ordered_text(name: str) -> str:
    """Return a step of an order of two chunks, with begins at 1 s an instruction."""
    dag = build_dag(
        make_schedule(
            name, ScheduleInputs(shape=equal_stages(2, 4, kinds=SPLIT_BACKWARD, num_chunks=2))
        )
    )
    ends_s = earliest_finish_s(dag, [1.0] * dag.num_nodes)
    nodes = list(zip(dag.stage, dag.instruction, ends_s, strict=True))
    random.Random(1).shuffle(nodes)
    return HEADER.replace("time_s", "time_s,chunk") + "".join(
        f"0,0,{stage},{kind},{microbatch},{end_s - 1},1,{chunk}\n"
        for stage, (kind, microbatch, chunk), end_s in nodes
    )


@pytest.mark.parametrize("name", ["interleaved-zb", "zbv"])
def test_chunks_stand_where_their_begins_say_and_halves_have_the_curve_of_a_backward(
    name: str,
) -> None:
    text = ordered_text(name)
    steps = steps_of(text)
    last_s = max(float(row.split(",")[5]) for row in text.splitlines()[1:])
    judged = judged_at_once(steps[0], [steps[0][0].model.highest_mhz])
    assert judged.time_s == pytest.approx(last_s + 1)
    # 1 s of a backward of 62 J in 0.2 s.
    node = next(n for n, each in enumerate(steps[0][0].model.dag.instruction)
                if each.kind == "backward_weight")  # fmt: skip
    assert steps[0][0].model.points[node][0].energy_j == pytest.approx(310)


def test_steps_are_read_by_their_numbers_however_lines_end() -> None:
    text = pipelines_text(3)
    header, *rows = text.splitlines()
    steps = parse_recorded_steps(text)
    random.Random(1).shuffle(rows)
    shuffled = parse_recorded_steps("\r".join([header, *rows]))
    assert [each.step for each in shuffled] == [0, 1, 2]
    assert [each.pipelines[1].stages for each in shuffled] == [
        each.pipelines[1].stages for each in steps
    ]


FAULTS = {
    HEADER.replace("time_s", "time_s,time_s"): "line 1: column time_s is there twice",
    HEADER + "0,0,0,forward,1,0,1\n": "line 2: step 0, dp_rank 0 has no microbatch 0;",
    HEADER + "0,0,0,forward,0,0,1\n1,0,0,forward,0,0,1\n1,0,1,forward,0,0,1\n": "line 2: step 0,"
    " dp_rank 0 has no stage 1; stage numbers count from 0 without gaps",
    "step,stage\n": "line 1: column dp_rank is missing",
    HEADER: "line 1: there are no rows",
    HEADER + "0,0,0,fwd,0,0,0.1\n": "line 2: unknown instruction 'fwd'; known: forward, backward",
    HEADER + "0,0,0,forward,0,0,0.1\n0,0,-1,forward,0,0,0.1\n": "line 3: stage must be a whole",
    HEADER + "0,0,0,forward,0,0,nan\n": "line 2: time_s must be a number of seconds",
    HEADER + "0,0,0,forward,0,0,0\n": "line 2: time_s must be above 0",
    HEADER + "0,0,0,forward,0,x,1\n": "line 2: begin_s must be a number of seconds",
    HEADER + "0,0,0,forward,0,0\n": "line 2: time_s must be a number of seconds, not ''",
    HEADER + "0,0,0,forward,0,0,1\n0,0,0,forward,0,1,1\n": "line 3: step 0, dp_rank 0, stage 0 runs"
    " forward of microbatch 0 twice; first in line 2",
    HEADER + "7,3,1,forward,0,0,1\n": "line 2: step 7, dp_rank 3 has no stage 0",
    HEADER + "7,3,999999999,forward,0,0,1\n": "line 2: step 7, dp_rank 3 has no stage 0",
}


@pytest.mark.parametrize("text", FAULTS)
def test_a_fault_is_one_line_with_its_place(text: str) -> None:
    with pytest.raises(RecordingError) as error:
        parse_recorded_steps(text)
    assert str(error.value).startswith(FAULTS[text])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        (
            "0,0,0,forward,0,0,1e-300\n0,0,0,backward,0,1,1e-300\n",
            "line 2: step 0, dp_rank 0: time_s must be from 1e-09 to 1e+06",
        ),
        (
            "3,1,0,forward,0,0,1\n",
            "line 2: step 3, dp_rank 1: stage 0 does not run one forward and",
        ),
        (
            "0,0,0,backward,0,0,1\n0,0,0,forward,0,1,1\n",
            "line 2: step 0, dp_rank 0: stage 0 runs backward of microbatch 0 before",
        ),
        ("0,0,0,step,0,0,1\n", "the profile has no step of stage 0"),
    ],
)
def test_an_order_that_cannot_run_is_refused_with_its_place(rows: str, fault: str) -> None:
    with pytest.raises(RecordingError) as error:
        steps_of(HEADER + rows)
    assert str(error.value).startswith(fault)


def test_a_profile_with_too_few_stages_says_what_to_give() -> None:
    recorded = parse_recorded_steps(pipelines_text(1))
    with pytest.raises(RecordingError, match="no backward of stage 1; give one stage's curve"):
        pipeline_steps(recorded, profile(), [WAITING_W])
    with pytest.raises(RecordingError, match="3 values of blocking power for 2 stages"):
        pipeline_steps(recorded, profile(), [WAITING_W] * 3, curve_stage=0)


@needs_shared_data
def test_the_recorded_steps_of_a_production_job_save_what_was_promised() -> None:
    path = recorded_steps("stage-imbalance.csv")
    steps = pipeline_steps(
        parse_recorded_steps(path.read_text(encoding="utf-8")),
        load_example_profile(),
        [83.64],
        curve_stage=3,
    )
    replayed = replay_steps(steps)
    assert replayed.static == pytest.approx((0.23, 13.79), abs=0.05)
    assert replayed.per_step.time_percent == pytest.approx(0, abs=1e-6)
    assert replayed.per_step.saved_percent > 13.95
    assert replayed.bound_saved_percent == pytest.approx(14.2, abs=0.01)
