"""Time to make a plan's timeline and history, as the dashboard asks for them, without HTTP."""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from benchmark_report import Report, at_most, run_benchmark, show_progress, table_of
from flyball_profiles.examples import load_example_profile
from flyball_profiles.stage_profile import StageProfile
from flyball_server.http.timeline_answers import TimelineAnswers, uncompressed
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.databases import make_job_store
from flyball_server.planning.planner import PlanRequest, make_plan
from flyball_server.views.history import HistoryMemory, plan_summaries
from flyball_wire.messages import JobSpec
from flyball_wire.plan_options import PlanOptions, Policy
from flyball_wire.plans.plan import PipelinePlan, Plan, PlannedInstruction
from gpt3_cells import A100
from made_plans import store_job
from made_profiles import tile_profile

SIZES = ((8, 12), (64, 256))
NUM_VERSIONS = 8
SEED = 20
MAX_TIMELINE_S, MAX_KNOWN_S, MAX_BYTES = 5.0, 0.1, 2_000_000


@dataclass(frozen=True, kw_only=True)
class Took:
    """Duration of one piece of work.

    Attributes:
        passed_s: from its begin to its end, s.
        processor_s: of this process meanwhile, whatever else the cores did, s.
    """

    passed_s: float
    processor_s: float

    def __format__(self, form: str) -> str:
        return f"{self.passed_s:.3f} ({self.processor_s:.3f})"


@dataclass(frozen=True, kw_only=True)
class ViewFigure:
    """One size; each time as it passed and as processor time.

    Attributes:
        timeline: until the compressed answer is made.
        known: until it is found again.
        num_bytes, num_compressed_bytes: of the answer.
        history: until the history of NUM_VERSIONS versions is read, all of them.
        known_history: until it is found again.
    """

    size: str
    timeline: Took
    known: Took
    num_bytes: int
    num_compressed_bytes: int
    history: Took
    known_history: Took


def measure(_: argparse.Namespace) -> Report:
    """Each size, in a store of its own."""
    figures = [_measure(num_stages, num_microbatches) for num_stages, num_microbatches in SIZES]
    columns = {
        "s (of the processor)": "{size}",
        "timeline": "{timeline}",
        "again": "{known}",
        "bytes": "{num_bytes}",
        "gzip": "{num_compressed_bytes}",
        f"history of {NUM_VERSIONS}": "{history}",
        "history again": "{known_history}",
    }
    largest = figures[-1]
    timeline = f"timeline of {largest.size}, processor s"
    return Report(
        figures={"sizes": figures},
        text=table_of(figures, columns),
        limits=[
            at_most(timeline, largest.timeline.processor_s, MAX_TIMELINE_S),
            at_most("the same again, processor s", largest.known.processor_s, MAX_KNOWN_S),
            at_most("compressed bytes", largest.num_compressed_bytes, MAX_BYTES),
        ],
    )


def _measure(num_stages: int, num_microbatches: int) -> ViewFigure:
    size = f"{num_stages}x{num_microbatches}"
    show_progress(f"{size}: the plan")
    profile = tile_profile(load_example_profile(), num_stages, SEED)
    with tempfile.TemporaryDirectory() as folder:
        store = make_job_store(f"sqlite:///{Path(folder) / 'planner.sqlite'}")
        store.open()
        services = JobServices(store=store, notify_pollers=lambda _: None)
        _store_job(services, profile, _plan(profile, num_microbatches))
        show_progress(f"{size}: the views")
        answers, memory = TimelineAnswers(), HistoryMemory()
        made = [_timed(lambda: _answer(services, answers)) for _ in range(2)]
        answer = _answer(services, answers)
        read = [_timed(lambda: plan_summaries(services, "job", memory)) for _ in range(2)]
        store.close()
    return ViewFigure(
        size=size,
        timeline=made[0],
        known=made[1],
        num_bytes=len(uncompressed(answer)),
        num_compressed_bytes=len(answer),
        history=read[0],
        known_history=read[1],
    )


def _answer(services: JobServices, answers: TimelineAnswers) -> bytes:
    """As the route has it."""
    known = answers.known(services, "job", None)
    return answers.get(services, "job", None) if known is None else known


def _timed(call: Callable[[], object]) -> Took:
    began_s, began_processor_s = time.perf_counter(), time.process_time()
    call()
    return Took(
        passed_s=time.perf_counter() - began_s,
        processor_s=time.process_time() - began_processor_s,
    )


def _plan(profile: StageProfile, num_microbatches: int) -> Plan:
    """All clocks drawn at random: no plan's answer is longer when it is compressed."""
    plan = make_plan(
        PlanRequest(
            profile=profile,
            num_microbatches=num_microbatches,
            options=PlanOptions(blocking_power_w=(A100.blocking_power_w,), policy=Policy.BASELINE),
        )
    ).plan
    chance = random.Random(SEED)

    def drawn(stage: int, item: PlannedInstruction) -> PlannedInstruction:
        point = chance.choice(profile.points[stage, item.kind])
        return item._replace(frequency_mhz=point.frequency_mhz)

    stages = tuple(
        tuple(drawn(stage, item) for item in instructions)
        for stage, instructions in enumerate(plan.stages)
    )
    return replace(plan, pipelines=(PipelinePlan(stages=stages),))


def _store_job(services: JobServices, profile: StageProfile, plan: Plan) -> None:
    spec = JobSpec(
        num_stages=profile.num_stages,
        num_microbatches=plan.num_microbatches,
        num_ranks=profile.num_stages,
        blocking_power_w=(A100.blocking_power_w,),
        emulated=True,
    )
    with services.store.writing("job") as writer:
        store_job(writer, spec, [plan] * NUM_VERSIONS)
        writer.save_profile("job", profile)


if __name__ == "__main__":
    run_benchmark(argparse.ArgumentParser(description=__doc__), measure)
