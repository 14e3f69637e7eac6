"""`flyball export`: a plan's predicted timeline for a trace viewer, or a job's recorded runs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from itertools import count, pairwise
from pathlib import Path
from typing import Any

from flyball_server.cli.offline_inputs import add_timeline_arguments, read_timeline
from flyball_server.planning.documents.plan_text import instruction_label
from flyball_server.planning.model.pipeline_model import Assignment, PipelineModel
from flyball_server.planning.model.simulator import Simulation
from flyball_server.planning.simulated_plan import SimulatedPlan
from flyball_wire.command.command import Command, CommandError, RecordedRunsOf, add_planner
from flyball_wire.command.whole_file import write_result

Event = dict[str, Any]

_FLOW = "critical path"


def trace_document(timeline: SimulatedPlan) -> dict[str, Any]:
    """Return the JSON Object Format: `traceEvents` in rising time, and `otherData` (predicted).

    `displayTimeUnit` is left out: milliseconds are the default, and some viewers take it for the
    unit of `ts`.
    """
    end_us = _microseconds(timeline.simulation.whole.iteration_time_s)
    num_pipelines = len(timeline.models)
    metadata: list[Event] = []
    timed: list[Event] = []
    flow_ids = count(1)
    for pipeline, (model, assignment, simulation) in enumerate(
        zip(timeline.models, timeline.assignments, timeline.simulation.pipelines, strict=True)
    ):
        num_stages = model.schedule.num_stages
        ids = _Ids(num_pipelines, pipeline, num_stages)
        metadata += _names(ids, num_stages, is_one_of_many=timeline.plan.is_separate)
        timed += _instructions(ids, model, assignment, simulation)
        timed += _counters(ids, model, assignment, simulation, end_us)
        timed += _hand_overs(ids, model, simulation, flow_ids)
    timed.sort(key=lambda event: event["ts"])  # stable: an instruction before what binds to it
    return {"traceEvents": metadata + timed, "otherData": _other_data(timeline)}


class _Ids:
    """Process and thread IDs of one pipeline.

    No thread ID equals another one, a process ID, or 0: viewers mix up the names of equal IDs, and
    take a thread with its process's ID for the main thread.
    """

    def __init__(self, num_pipelines: int, pipeline: int, num_stages: int) -> None:
        self.pipeline = pipeline
        self.pid = pipeline + 1
        self._first_tid = num_pipelines + pipeline * num_stages + 1
        self._stage_digits = len(str(num_stages - 1))

    def of(self, stage: int) -> dict[str, int]:
        return {"pid": self.pid, "tid": self._first_tid + stage}

    def stage_name(self, stage: int) -> str:
        """Return the padded name of a stage: viewers sort counters by name."""
        return f"stage {stage:0{self._stage_digits}}"


def _names(ids: _Ids, num_stages: int, *, is_one_of_many: bool) -> Iterator[Event]:
    process = f"pipeline, dp_rank {ids.pipeline}" if is_one_of_many else "pipeline"
    yield _metadata("process_name", {"pid": ids.pid}, {"name": f"{process} (predicted)"})
    yield _metadata("process_sort_index", {"pid": ids.pid}, {"sort_index": ids.pipeline})
    for stage in range(num_stages):
        yield _metadata("thread_name", ids.of(stage), {"name": ids.stage_name(stage)})
        yield _metadata("thread_sort_index", ids.of(stage), {"sort_index": stage})


def _metadata(name: str, whose: dict[str, int], arguments: Event) -> Event:
    return {"ph": "M", "name": name, **whose, "args": arguments}


def _instructions(
    ids: _Ids, model: PipelineModel, assignment: Assignment, simulation: Simulation
) -> Iterator[Event]:
    """Return a complete event for each node."""
    critical = set(simulation.critical_path)
    for node, choice in enumerate(assignment):
        instruction, point = model.dag.instruction[node], model.points[node][choice]
        start_us = _microseconds(simulation.start_s[node])
        yield {
            "ph": "X",
            "name": instruction_label(instruction),
            "cat": str(instruction.kind),
            "ts": start_us,
            "dur": _microseconds(simulation.finish_s[node]) - start_us,
            **ids.of(model.dag.stage[node]),
            "args": {
                "sm_clock_mhz": point.frequency_mhz,
                "time_ms": simulation.busy_s[node] * 1e3,
                "energy_j": simulation.busy_j[node],
                "wait_ms": simulation.wait_s[node] * 1e3,
                "float_ms": simulation.float_s[node] * 1e3,
                **({"late_ms": simulation.late_s[node] * 1e3} if simulation.in_force else {}),
                "on_critical_path": node in critical,
                "microbatch": instruction.microbatch,
                "chunk": instruction.chunk,
            },
        }


def _counters(
    ids: _Ids,
    model: PipelineModel,
    assignment: Assignment,
    simulation: Simulation,
    end_us: int,
) -> Iterator[Event]:
    """Return each stage's clock, kept while it waits, and its power, summed over its ranks.

    The clock is that of the instructions, or the one in force where clocks change late.

    Power is the blocking power from begin to end while no instruction runs, then 0: its integral is
    the iteration's energy.
    """
    blocking_power_w = model.stage_blocking_power_w
    num_stages = model.schedule.num_stages
    free_us = [0] * num_stages
    clock_mhz: list[int | None] = [None] * num_stages

    def sample(ts: int, stage: int, quantity: str, unit: str, value: float) -> Event:
        name = f"{ids.stage_name(stage)} {quantity}"
        return {"ph": "C", "name": name, "ts": ts, **ids.of(stage), "args": {unit: value}}

    for node, choice in enumerate(assignment):  # stage after stage, each in its order
        stage, point = model.dag.stage[node], model.points[node][choice]
        start_us = _microseconds(simulation.start_s[node])
        if start_us > free_us[stage]:
            yield sample(free_us[stage], stage, "power", "W", blocking_power_w[stage])
        if not simulation.in_force and point.frequency_mhz != clock_mhz[stage]:
            clock_mhz[stage] = point.frequency_mhz
            yield sample(start_us, stage, "clock", "MHz", point.frequency_mhz)
        power_w = simulation.busy_j[node] / simulation.busy_s[node]
        yield sample(start_us, stage, "power", "W", power_w)
        free_us[stage] = _microseconds(simulation.finish_s[node])
    for stage, of_stage in enumerate(simulation.in_force):
        for from_s, mhz in of_stage:
            if _microseconds(from_s) < end_us:
                yield sample(max(0, _microseconds(from_s)), stage, "clock", "MHz", mhz)
    for stage in range(num_stages):
        if end_us > free_us[stage]:
            yield sample(free_us[stage], stage, "power", "W", blocking_power_w[stage])
        yield sample(end_us, stage, "power", "W", 0)


def _hand_overs(
    ids: _Ids, model: PipelineModel, simulation: Simulation, flow_ids: Iterator[int]
) -> Iterator[Event]:
    """Return a flow for each step of the critical path from one stage to another.

    It starts within the last microsecond of the sender, since the next on the stage may begin
    at its end.
    """
    stage = model.dag.stage
    for before, after in pairwise(simulation.critical_path):
        if stage[before] == stage[after]:
            continue
        flow = {"name": _FLOW, "cat": _FLOW, "id": next(flow_ids)}
        begin_us = _microseconds(simulation.start_s[before])
        leave_us = max(begin_us, _microseconds(simulation.finish_s[before]) - 1)
        arrive_us = _microseconds(simulation.start_s[after])
        yield {"ph": "s", **flow, "ts": leave_us, **ids.of(stage[before])}
        yield {"ph": "f", "bp": "e", **flow, "ts": arrive_us, **ids.of(stage[after])}


def _other_data(timeline: SimulatedPlan) -> dict[str, Any]:
    plan, whole = timeline.plan, timeline.simulation.whole
    return {
        "origin": "predicted by Flyball from a stage profile; no figure here was measured in a run",
        "predicted": True,
        "schedule": plan.schedule,
        "policy": plan.policy,
        "target": plan.target,
        "num_pipelines": len(timeline.models),
        "num_stages": plan.num_stages,
        "num_microbatches": plan.num_microbatches,
        "iteration_time_s": whole.iteration_time_s,
        "energy_j": whole.energy_j,
        "bubble_fraction": whole.bubble_fraction,
    }


def _microseconds(time_s: float) -> int:
    return round(time_s * 1e6)


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write a plan's predicted timeline for a trace viewer, or a job's measurements of each of"
        " its plans for flyball replay."
    )
    add_timeline_arguments(parser, are_required=False)
    parser.add_argument(
        "--chrome-trace",
        metavar="FILE.json",
        type=Path,
        help="write the timeline in the Trace Event Format, for ui.perfetto.dev and"
        " chrome://tracing",
    )
    parser.add_argument(
        "--recorded",
        metavar="JOB",
        help="write the recorded runs of this job, read from the planner",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="RUNS.json",
        type=Path,
        help="file to write with --recorded (default: print to stdout)",
    )
    add_planner(parser)
    parser.add_argument(
        "--json", action="store_true", help="print a summary of the written file as JSON only"
    )


def _run(arguments: argparse.Namespace) -> int:
    is_timeline = arguments.profile is not None or arguments.chrome_trace is not None
    if arguments.recorded is not None:
        if is_timeline:
            raise CommandError("--recorded JOB takes no PROFILE.csv, PLAN.json or --chrome-trace")
        return _export_recorded(arguments)
    if arguments.output is not None:
        raise CommandError("-o is the file for --recorded; for a timeline give --chrome-trace")
    if None in (arguments.profile, arguments.plan, arguments.chrome_trace):
        raise CommandError(
            "give PROFILE.csv, PLAN.json and --chrome-trace FILE.json, or --recorded JOB"
        )
    return _export_timeline(arguments)


def _export_recorded(arguments: argparse.Namespace) -> int:
    recorded_runs_of: RecordedRunsOf = arguments.recorded_runs_of
    recorded = recorded_runs_of(arguments.recorded)
    num_runs = len(recorded.document["runs"])
    text = json.dumps(recorded.document, allow_nan=False)
    if arguments.output is None:
        print(text)
    else:
        path: Path = arguments.output
        write_result(path, text + "\n")
        if arguments.json:
            written = {"num_runs": num_runs, "left_out": list(recorded.left_out)}
            print(json.dumps({"recorded": str(path), **written}))
        else:
            print(f"{path}: {num_runs} runs (measured); flyball replay predicts them")
    if not arguments.json:
        for reason in recorded.left_out:
            print(f"left out: {reason}", file=sys.stderr)
    return 0


def _export_timeline(arguments: argparse.Namespace) -> int:
    path: Path = arguments.chrome_trace
    timeline = read_timeline(arguments)
    document = trace_document(timeline)
    write_result(path, json.dumps(document, allow_nan=False) + "\n")
    num_instructions = sum(map(len, timeline.assignments))
    num_events = len(document["traceEvents"])
    if arguments.json:
        written = {"num_instructions": num_instructions, "num_events": num_events}
        print(json.dumps({"chrome_trace": str(path), "predicted": True, **written}))
    else:
        print(
            f"{path}: {num_instructions} instructions (predicted), {num_events} events;"
            " open it in ui.perfetto.dev"
        )
    return 0


COMMAND = Command(configure=_configure, run=_run, reads_planner=True)
