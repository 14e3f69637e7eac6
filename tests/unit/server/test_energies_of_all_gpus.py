"""Predicted energies of a job with more GPUs than its profile holds: they are of all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.planner.samples import CountingPlanner, Services, job_record, job_spec, plan_record
from tests.planner.samples import profile as sample_profile

from flyball_server.jobs.measurements.step_reading import predicted_iteration
from flyball_server.jobs.services import JobServices
from flyball_server.planning.planner import PlanRequest, make_plan
from flyball_server.views.frontier import FrontierMemory, get_frontier, known_frontier
from flyball_server.views.plan_facts import plan_facts
from flyball_server.views.plan_timeline import get_timeline
from flyball_wire.plan_options import Effort, PlanOptions
from flyball_wire.predictions import SavingSources
from flyball_wire.read_models import JobFrontier, PlanTimeline

NUM_STAGES, NUM_POINTS = 2, 3


def services() -> JobServices:
    """Job `job` with a profile of one pipeline and a plan."""
    found = Services(CountingPlanner()).jobs
    options = PlanOptions(blocking_power_w=(70.0,), effort=Effort.LOW)
    request = PlanRequest(profile=sample_profile(), num_microbatches=2, options=options)
    with found.store.writing("job") as writer:
        writer.save_job(job_record())
        writer.save_profile("job", sample_profile())
        writer.add_plan(plan_record(1, plan=make_plan(request).plan))
    return found


def with_pipelines(found: JobServices, num_pipelines: int) -> None:
    with found.store.writing("job") as writer:
        spec = job_spec(num_ranks=num_pipelines * NUM_STAGES, effort=Effort.LOW)
        writer.save_job(job_record(spec=spec))


def energies_of_frontier(frontier: JobFrontier) -> list[float]:
    plans = (frontier.baseline, *frontier.envpipe, *frontier.constant, *frontier.global_clock)
    points = [number for each in frontier.points for number in (each.energy_j, each.lower_bound_j)]
    return points + [each.energy_j for each in plans]


def energies_of_timeline(timeline: PlanTimeline) -> list[float]:
    found: list[float] = []
    for of_plan in (timeline.plan, timeline.baseline):
        found.append(of_plan.energy_j)
        for row in of_plan.rows:
            found += [row.blocking_power_w, *row.energy_j]
    return found


def test_a_frontier_is_of_all_gpus_also_after_their_number_has_changed() -> None:
    found, memory = services(), FrontierMemory()
    with_pipelines(found, 1)
    one = get_frontier(found, memory, "job", NUM_POINTS)
    with_pipelines(found, 3)
    assert known_frontier(found, memory, "job", NUM_POINTS) is None
    three = get_frontier(found, memory, "job", NUM_POINTS)
    assert energies_of_frontier(three) == pytest.approx(
        [3 * energy_j for energy_j in energies_of_frontier(one)]
    )
    times = [replace(each, energy_j=0.0, lower_bound_j=0.0) for each in one.points]
    assert [replace(each, energy_j=0.0, lower_bound_j=0.0) for each in three.points] == times


def test_a_timeline_is_of_all_gpus() -> None:
    found = services()
    with_pipelines(found, 1)
    _, one = get_timeline(found, "job", 1)
    with_pipelines(found, 3)
    _, three = get_timeline(found, "job", 1)
    assert energies_of_timeline(three) == pytest.approx(
        [3 * number for number in energies_of_timeline(one)], rel=1e-4
    )
    assert three.plan.iteration_time_s == one.plan.iteration_time_s


def test_every_energy_of_a_prediction_is_of_all_gpus() -> None:
    options = PlanOptions(blocking_power_w=(70.0,), effort=Effort.LOW)
    request = PlanRequest(profile=sample_profile(), num_microbatches=2, options=options)
    plan = make_plan(request).plan
    prediction = plan.prediction
    assert prediction is not None
    plan = replace(plan, prediction=replace(prediction, late_changes_j=0.5, stragglers_s=0.1))
    one, three = (predicted_iteration(plan, sample_profile(), n * NUM_STAGES) for n in (1, 3))
    assert one is not None
    assert three is not None
    sources = one.saving_sources
    assert sources is not None
    assert one.compared
    assert one.lower_bound_j is not None
    assert three == replace(
        one,
        energy_j=3 * one.energy_j,
        baseline_energy_j=3 * one.baseline_energy_j,
        lower_bound_j=3 * one.lower_bound_j,
        late_changes_j=1.5,
        compared=tuple(replace(each, energy_j=3 * each.energy_j) for each in one.compared),
        saving_sources=SavingSources(
            imbalance_j=3 * sources.imbalance_j,
            bubbles_j=3 * sources.bubbles_j,
            iteration_time_j=3 * sources.iteration_time_j,
        ),
    )
    facts = [plan_facts(plan_record(plan=plan), sample_profile(), n * NUM_STAGES) for n in (1, 3)]
    assert [each.prediction for each in facts] == [one, three]
    stages_j = [[stage.energy_j for stage in each.stages] for each in facts]
    assert stages_j[1] == pytest.approx([3 * energy_j for energy_j in stages_j[0]])
