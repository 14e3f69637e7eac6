from dataclasses import replace

import pytest
from tests.unit.planning.tiny_pipelines import context_of, equal_profile

from flyball_profiles.stage_profile import InstructionKind
from flyball_server.planning.probe_plan import CounterRun, ProbePlan
from flyball_server.planning.schedules import make_schedule
from flyball_server.profiling.findings import find
from flyball_server.profiling.observations import (
    InstructionClass,
    InstructionTimes,
    ProbeSetup,
    StageStep,
)
from flyball_server.profiling.runs import counter_runs, run_reading, run_readings

F, B = InstructionKind.FORWARD, InstructionKind.BACKWARD
NUM_STAGES, NUM_MICROBATCHES = 4, 6
SCHEDULE = make_schedule("1f1b", context_of(equal_profile(NUM_STAGES), NUM_MICROBATCHES))


def plan_with(runs: tuple[CounterRun, ...]) -> ProbePlan:
    return ProbePlan(
        schedule="1f1b",
        num_microbatches=NUM_MICROBATCHES,
        stages=SCHEDULE.stages,
        cycle_mhz=(tuple((1400,) * len(stage) for stage in SCHEDULE.stages),),
        iteration_time_s=1.0,
        counter_runs=(runs, *((),) * (NUM_STAGES - 1)),
    )


@pytest.mark.parametrize(
    ("forward_s", "backward_s", "of_first", "of_last"),
    [
        # Stage 0 of 1F1B: four forwards, backward and forward in turn, four backwards.
        (0.2, 0.4, (CounterRun(1, 4), CounterRun(9, 12)), ()),
        # Of shorter ones, two make up the counter's period.
        (0.06, 0.12, (CounterRun(2, 4), CounterRun(9, 12)), ()),
        # Nothing is left to read between.
        (0.02, 0.04, (), ()),
    ],
)
def test_runs_begin_a_counter_period_after_their_first_instruction(
    forward_s: float,
    backward_s: float,
    of_first: tuple[CounterRun, ...],
    of_last: tuple[CounterRun, ...],
) -> None:
    setup = ProbeSetup(
        schedule=SCHEDULE, clocks_mhz=((1400, 1000),) * NUM_STAGES, num_ranks=(1,) * NUM_STAGES
    )
    steps = [
        StageStep(
            stage=stage,
            step=0,
            version=1,
            iteration_time_s=9.0,
            energy_j=None,
            instructions=tuple(
                InstructionTimes(
                    kind=kind, chunk=0, sm_clock_mhz=1400, count=6, mean_s=mean_s, variance_s2=0.0
                )
                for kind, mean_s in ((F, forward_s), (B, backward_s))
            ),
        )
        for stage in range(NUM_STAGES)
    ]
    runs = counter_runs(SCHEDULE, find(setup, steps))
    assert runs[0] == of_first
    assert runs[-1] == of_last


def test_a_run_is_read_where_all_its_instructions_had_one_clock() -> None:
    plan = plan_with((CounterRun(2, 4), CounterRun(10, 12)))
    clocks_mhz = [1400] * 12
    clocks_mhz[9] = 1000
    readings = [(position / 10, 5.0 * position) for position in plan.reading_positions(0)]
    (run,) = run_readings(plan, 0, clocks_mhz, readings)
    assert (run.kind, run.sm_clock_mhz) == (F, 1400)
    assert run.energy_j / run.count == pytest.approx(5)
    assert run.time_s / run.count == pytest.approx(0.1)


def test_a_slower_instruction_before_the_first_reading_spoils_a_run_too() -> None:
    plan = plan_with((CounterRun(2, 4),))
    clocks_mhz = [1000] + [1400] * 11
    assert run_readings(plan, 0, clocks_mhz, [(0.1, 1.0), (0.2, 2.0), (0.3, 3.0)]) == ()


def test_two_readings_count_as_the_instructions_between_them() -> None:
    run = run_reading(InstructionClass(F), 1400, [(1.0, 10.0), (1.5, 40.0)])
    assert (run.count, run.time_s, run.energy_j) == pytest.approx((1, 0.5, 30))


def test_more_readings_count_as_more_instructions_than_lie_between_them() -> None:
    # Var(slope) = s^2 / 10 of five readings, 2 s^2 / 16 of their first and last.
    run = run_reading(InstructionClass(F), 1400, [(float(i), 10.0 * i) for i in range(5)])
    assert run.count == pytest.approx(20**0.5)
    assert run.energy_j == pytest.approx(10 * run.count)


def test_without_runs_there_is_nothing_to_read() -> None:
    plan = replace(plan_with(()), counter_runs=())
    assert run_readings(plan, 0, [1400] * 12, []) == ()
