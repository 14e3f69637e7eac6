"""The exported trace held to the Trace Event Format, and to the simulation it shows.

The rules are those of the format's document: what each phase's event must have, that complete
events of a thread nest, that counters are numbers, that a flow's end has a begin of the same
name, category and id.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.stage_profile import OperatingPoint, StageProfile
from flyball_server.cli.export import trace_document
from flyball_server.planning.data_parallel import make_data_parallel_plan
from flyball_server.planning.documents.recorded_plan import (
    model_of_plan,
    models_by_dp_rank,
)
from flyball_server.planning.planner import PlanRequest, make_plan
from flyball_server.planning.simulated_plan import SimulatedPlan, simulated_plan
from flyball_wire.plan_options import PlanOptions, Policy

F, B = InstructionKind.FORWARD, InstructionKind.BACKWARD
Event = dict[str, Any]

# Thirds and sevenths of microseconds: no boundary is a whole one.
ODD_TIME_S = 1e-3 / 3 + 1e-6 / 7


def profile_of(num_stages: int, scale: float, num_ranks: int = 1) -> StageProfile:
    """Forward `scale` s and backward twice that at 1410 MHz; a quarter more at 1000 MHz."""
    kinds = {F: ((1410, 1.0, 10.0), (1000, 1.25, 8.0)), B: ((1410, 2.0, 30.0), (1000, 2.5, 20.0))}
    return StageProfile(
        points={
            (stage, kind): tuple(
                OperatingPoint(frequency_mhz=mhz, time_s=time * scale, energy_j=energy * scale)
                for mhz, time, energy in points
            )
            for stage in range(num_stages)
            for kind, points in kinds.items()
        },
        num_ranks_per_stage=(num_ranks,) * num_stages,
    )


def request_of(num_stages: int, num_microbatches: int, scale: float) -> PlanRequest:
    return PlanRequest(
        profile=profile_of(num_stages, scale, num_ranks=2),
        num_microbatches=num_microbatches,
        options=PlanOptions(blocking_power_w=(5.0,), policy=Policy.ENVELOPE),
    )


def timeline_of(
    num_stages: int = 3, num_microbatches: int = 4, scale: float = 1.0
) -> SimulatedPlan:
    """The envelope plan of equal stages; some forwards run at 1000 MHz."""
    request = request_of(num_stages, num_microbatches, scale)
    plan = make_plan(request).plan
    return simulated_plan(plan, [model_of_plan(request.profile, plan)])


def data_parallel_timeline(scales: Sequence[float]) -> SimulatedPlan:
    """Pipelines of two stages whose instructions take these many times as long."""
    requests = tuple(request_of(2, 3, scale) for scale in scales)
    plan = make_data_parallel_plan(requests).plan
    profiles = [request.profile for request in requests]
    return simulated_plan(plan, models_by_dp_rank(profiles, plan))


TIMELINES: dict[str, Callable[[], SimulatedPlan]] = {
    "one pipeline": timeline_of,
    "odd times": partial(timeline_of, 4, 6, ODD_TIME_S),
    "shorter than a microsecond": partial(timeline_of, 2, 3, 2e-7),
    "one stage": partial(timeline_of, 1, 2),
    "three pipelines": partial(data_parallel_timeline, [1.0, 1.5, 0.7]),
}


@pytest.fixture(params=TIMELINES)
def timeline(request: pytest.FixtureRequest) -> SimulatedPlan:
    return TIMELINES[request.param]()


def events_of(timeline: SimulatedPlan, *phases: str) -> list[Event]:
    return [event for event in trace_document(timeline)["traceEvents"] if event["ph"] in phases]


def by_thread(events: Sequence[Event]) -> dict[tuple[int, int], list[Event]]:
    threads: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in events:
        threads[event["pid"], event["tid"]].append(event)
    return threads


def test_every_event_has_what_its_phase_needs(timeline: SimulatedPlan) -> None:
    needs = {
        "X": {"name": str, "cat": str, "ts": int, "dur": int, "pid": int, "tid": int},
        "C": {"name": str, "ts": int, "pid": int, "args": dict},
        "M": {"name": str, "pid": int, "args": dict},
        "s": {"name": str, "cat": str, "id": int, "ts": int, "pid": int, "tid": int},
        "f": {"name": str, "cat": str, "id": int, "ts": int, "pid": int, "tid": int},
    }
    for event in trace_document(timeline)["traceEvents"]:
        for field, kind in needs[event["ph"]].items():
            assert type(event[field]) is kind, (event, field)
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0


def test_every_instruction_is_there_where_and_when_it_runs(timeline: SimulatedPlan) -> None:
    threads = by_thread(events_of(timeline, "X"))
    for of_stage in threads.values():
        for before, after in pairwise(of_stage):
            assert before["ts"] + before["dur"] <= after["ts"]
    shown = iter(sorted(threads))
    for model, assignment, simulation in zip(
        timeline.models, timeline.assignments, timeline.simulation.pipelines, strict=True
    ):
        for stage in range(model.schedule.num_stages):
            events = sorted(threads[next(shown)], key=lambda event: event["args"]["microbatch"])
            nodes = sorted(
                (node for node, of in enumerate(model.dag.stage) if of == stage),
                key=lambda node: model.dag.instruction[node].microbatch,
            )
            for event, node in zip(events, nodes, strict=True):
                point = model.points[node][assignment[node]]
                assert event["cat"] == model.dag.instruction[node].kind
                assert event["ts"] == pytest.approx(simulation.start_s[node] * 1e6, abs=0.51)
                finish_us = event["ts"] + event["dur"]
                assert finish_us == pytest.approx(simulation.finish_s[node] * 1e6, abs=0.51)
                assert event["args"]["sm_clock_mhz"] == point.frequency_mhz
                assert event["args"]["energy_j"] == point.energy_j
                assert event["args"]["time_ms"] == pytest.approx(1e3 * point.time_s)
                assert event["args"]["wait_ms"] == pytest.approx(1e3 * simulation.wait_s[node])
                assert event["args"]["on_critical_path"] is (node in simulation.critical_path)


def test_a_flow_goes_wherever_the_critical_path_changes_stage(timeline: SimulatedPlan) -> None:
    begins, ends = events_of(timeline, "s"), events_of(timeline, "f")
    changes = sum(
        model.dag.stage[before] != model.dag.stage[after]
        for model, own in zip(timeline.models, timeline.simulation.pipelines, strict=True)
        for before, after in pairwise(own.critical_path)
    )
    assert len(begins) == len(ends) == changes
    key = {(event["name"], event["cat"], event["id"]): event for event in begins}
    assert len(key) == changes
    for end in ends:
        begin = key[end["name"], end["cat"], end["id"]]
        assert end["bp"] == "e"
        assert begin["ts"] <= end["ts"]
        assert (begin["pid"], begin["tid"] != end["tid"]) == (end["pid"], True)


def test_the_power_counters_add_up_to_the_iterations_energy() -> None:
    """Whole and quarter seconds are whole microseconds: the sum is exact but for rounding."""
    for timeline in (timeline_of(), data_parallel_timeline([1.0, 1.5, 0.75])):
        energy_j = 0.0
        for samples in by_thread(
            [event for event in events_of(timeline, "C") if event["name"].endswith("power")]
        ).values():
            for now, after in pairwise(samples):
                energy_j += now["args"]["W"] * (after["ts"] - now["ts"]) / 1e6
            assert samples[0]["ts"] == 0
            assert samples[-1]["args"]["W"] == 0
        assert energy_j == pytest.approx(timeline.simulation.whole.energy_j, rel=1e-9)
