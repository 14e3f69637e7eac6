"""`flyball replay --steps`: recorded steps under a static plan and under a plan for each step."""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flyball_pipeline.errors import PipelineError
from flyball_profiles.clock_transitions import ClockTransitions
from flyball_profiles.gpu_windows import GpuWindow
from flyball_profiles.limited_file import read_bytes
from flyball_server.cli import offline_inputs
from flyball_server.cli.offline_inputs import naming
from flyball_server.cli.progress_line import ProgressLine
from flyball_server.planning.request_options import clock_transitions, with_known_transitions
from flyball_server.replay.steps.judged_steps import JudgedBy
from flyball_server.replay.steps.predicted_work import PredictionError
from flyball_server.replay.steps.recorded_steps import (
    RecordedStep,
    has_chunks,
    parse_recorded_steps,
)
from flyball_server.replay.steps.replayed_steps import (
    StepsReplay,
    TimeAndSaving,
    replay_steps,
)
from flyball_server.replay.steps.step_models import Steps, pipeline_steps
from flyball_server.replay.steps.traced_steps import (
    RankTrace,
    TraceNames,
    read_trace,
    steps_of_traces,
)
from flyball_wire.command.command import CommandError, add_option, add_options
from flyball_wire.command.whole_file import write_result
from flyball_wire.options import Option
from flyball_wire.plan_options import PlanOptions

_ERROR = Option(
    "standard deviation in percent of the predicted times that each step's plan is made of",
    name="error_percent",
    flag="--error",
    kind=float,
    bounds=(0, 50),
    offline="0, the recorded times themselves",
)
# Unpacked; a trace of a few steps of a large model has some 100 MiB.
_MAX_TRACE_BYTES = 512 * 2**20
_GZIP = b"\x1f\x8b"
_JSON = re.compile(rb"(?:\xef\xbb\xbf)?\s*[\[{]")
# Options of recorded steps: name in the arguments, and as it is given.
_OF_STEPS = {
    "trace_names": "--trace-names",
    "trace_places": "--trace-places",
    "profile": "--profile",
    "curve": "--curve",
    "error_percent": "--error",
    "shared_error": "--shared-error",
    "clocks": "--clocks",
    "blocking_power_w": "--blocking-power",
    "gpu": "--gpu",
    "transition_ms": "--transition-ms or --no-transitions",
    "transitions": "--transitions",
}


def add_steps_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--steps` and what belongs to it."""
    group = parser.add_argument_group("recorded steps")
    group.add_argument(
        "--steps",
        metavar="FILE",
        type=Path,
        nargs="+",
        help="times of recorded steps at the highest clock: CSV with columns step, dp_rank, stage,"
        " instruction, microbatch, begin_s, time_s, and chunk where there are model chunks; or"
        " traces of torch's profiler or in Chrome's format, one for each rank, .json or .json.gz;"
        " a plan for each step is compared with one plan for all of them",
    )
    group.add_argument(
        "--trace-names",
        metavar="KIND=REGEX",
        action="append",
        help="names of ranges in traces: KIND is forward, backward, backward_input,"
        " backward_weight, recompute, or step for ranges of whole steps; groups microbatch, stage"
        " and step are numbers (default: those of torch)",
    )
    group.add_argument(
        "--trace-places",
        metavar="DP_RANK:STAGE,...",
        help="place of each trace (default: from names and process groups)",
    )
    group.add_argument(
        "--profile",
        metavar="PROFILE.csv",
        type=Path,
        help="stage profile; times and energies by clock are taken relative to the highest clock",
    )
    group.add_argument(
        "--curve",
        metavar="STAGE",
        type=int,
        help="stage of the profile whose curves all stages get (default: each its own)",
    )
    add_option(group, _ERROR)
    group.add_argument(
        "--shared-error",
        action="store_true",
        help="draw one error for each microbatch of a pipeline, not for each instruction",
    )
    group.add_argument(
        "--clocks",
        metavar="OUT.csv",
        type=Path,
        help="write the clocks of each step's plan: step, dp_rank, stage, instruction, microbatch,"
        " clock_mhz",
    )
    add_options(group, PlanOptions, ["blocking_power_w", "gpu"])
    offline_inputs.add_transition_arguments(group, "from --gpu, else clocks change at once")


def check_no_steps_arguments(arguments: argparse.Namespace) -> None:
    """Refuse options of recorded steps where there are none.

    Raises:
        CommandError: one is given.
    """
    for name, option in _OF_STEPS.items():
        if getattr(arguments, name) not in {None, False}:
            raise CommandError(f"{option} needs --steps FILE, times of recorded steps")


def run_steps(arguments: argparse.Namespace) -> int:
    """Run `flyball replay --steps`."""
    error = _error(arguments)
    if arguments.profile is None:
        raise CommandError("--steps needs --profile PROFILE.csv, energies by clock")
    profile = offline_inputs.read_profile(arguments.profile)
    if arguments.curve is not None and not 0 <= arguments.curve < profile.num_stages:
        raise CommandError(
            f"--curve: the profile has stages 0 to {profile.num_stages - 1}, not {arguments.curve}"
        )
    gpu = offline_inputs.gpu_window(arguments.gpu)
    power_w = offline_inputs.blocking_power_w(arguments.blocking_power_w, gpu)
    transitions = _transitions(arguments, gpu)
    recorded = _recorded(arguments)
    with ProgressLine("replaying the steps"), naming(_shown(arguments.steps)):
        try:
            steps = pipeline_steps(
                recorded, profile, power_w, curve_stage=arguments.curve, transitions=transitions
            )
            replayed = replay_steps(steps, world=JudgedBy(transitions=transitions), error=error)
        except PipelineError as fault:
            raise CommandError(offline_inputs.option_text(fault)) from None
    if arguments.clocks:
        write_result(arguments.clocks, _clocks_csv(recorded, steps, replayed))
    if arguments.json:
        print(json.dumps(_document(replayed, error)))
    else:
        print(_text(replayed, error, transitions))
    return 0


def _error(arguments: argparse.Namespace) -> PredictionError:
    percent: float = arguments.error_percent or 0.0
    if arguments.shared_error and not percent:
        raise CommandError("--shared-error needs --error PERCENT")
    return PredictionError(deviation=percent / 100, is_shared=arguments.shared_error)


def _transitions(arguments: argparse.Namespace, gpu: GpuWindow | None) -> ClockTransitions | None:
    options = PlanOptions(
        transition_ms=arguments.transition_ms,
        transitions=offline_inputs.given_transitions(arguments.transitions),
    )
    of_gpu = None if gpu is None else gpu.transitions
    try:
        return clock_transitions(with_known_transitions(options, of_gpu))
    except PipelineError as fault:
        raise CommandError(f"--transition-ms: {fault.message}") from None


def _recorded(arguments: argparse.Namespace) -> tuple[RecordedStep, ...]:
    paths: list[Path] = arguments.steps
    first = _content(paths[0])
    if not _JSON.match(first):
        return _of_csv(paths, first, arguments)
    names, places = _trace_names(arguments.trace_names), _trace_places(arguments.trace_places)
    traces = [_trace(paths[0], names, first)]
    traces += [_trace(path, names, _content(path)) for path in paths[1:]]
    with naming(_shown(paths)):
        return steps_of_traces(traces, places)


def _shown(paths: Sequence[Path]) -> str:
    return f"{paths[0]}" + (f" and {len(paths) - 1} more" if paths[1:] else "")


def _content(path: Path) -> bytes:
    """Return a file's content, unpacked."""
    try:
        content = read_bytes(path, max_bytes=_MAX_TRACE_BYTES)
        if content.startswith(_GZIP):
            with gzip.open(io.BytesIO(content)) as packed:
                content = packed.read(_MAX_TRACE_BYTES + 1)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        fault = getattr(error, "strerror", None) or error
        raise CommandError(f"{path}: {fault}") from None
    if len(content) > _MAX_TRACE_BYTES:
        raise CommandError(f"{path}: larger than {_MAX_TRACE_BYTES // 2**20} MiB unpacked")
    return content


def _of_csv(
    paths: Sequence[Path], content: bytes, arguments: argparse.Namespace
) -> tuple[RecordedStep, ...]:
    for name in ("trace_names", "trace_places"):
        if getattr(arguments, name):
            raise CommandError(f"{_OF_STEPS[name]} is for traces, and {paths[0]} is none")
    if paths[1:]:
        raise CommandError(f"{paths[0]}: no trace; of CSV files give one")
    with naming(paths[0], "not a CSV file in UTF-8"):
        return parse_recorded_steps(content.decode("utf-8-sig"))


def _trace(path: Path, names: TraceNames, content: bytes) -> RankTrace:
    with naming(path, "not a trace in JSON"):
        return read_trace(json.loads(content), names)


def _trace_names(given: Sequence[str] | None) -> TraceNames:
    names = [text.partition("=") for text in given or ()]
    wrong = next((kind for kind, equals, _ in names if not equals), None)
    if wrong is not None:
        raise CommandError(f"--trace-names: must be KIND=REGEX, not {wrong[:40]!a}")
    try:
        return TraceNames({kind: expression for kind, _, expression in names})
    except ValueError as error:
        raise CommandError(f"--trace-names: {error}") from None


def _trace_places(given: str | None) -> list[tuple[int, int]] | None:
    if given is None:
        return None
    places = [re.fullmatch(r"([0-9]{1,6}):([0-9]{1,6})", text) for text in given.split(",")]
    if None in places:
        raise CommandError("--trace-places: must be DP_RANK:STAGE,..., as 0:0,0:1")
    return [(int(place[1]), int(place[2])) for place in places if place is not None]


def _clocks_csv(recorded: tuple[RecordedStep, ...], steps: Steps, replayed: StepsReplay) -> str:
    with_chunks = has_chunks(recorded)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = ["step", "dp_rank", "stage", "instruction", "microbatch", "clock_mhz"]
    writer.writerow([*columns[:-1], *(["chunk"] if with_chunks else []), columns[-1]])
    for step, pipelines, of_step in zip(recorded, steps, replayed.clocks_mhz, strict=True):
        for pipeline, clocks in zip(pipelines, of_step, strict=True):
            dag = pipeline.model.dag
            nodes = zip(dag.stage, dag.instruction, clocks, strict=True)
            for stage, (kind, microbatch, chunk), mhz in nodes:
                of_chunk = [chunk] if with_chunks else []
                row = [step.step, pipeline.dp_rank, stage, kind.value, microbatch]
                writer.writerow([*row, *of_chunk, mhz])
    return text.getvalue()


def _document(replayed: StepsReplay, error: PredictionError) -> dict[str, Any]:
    document: dict[str, Any] = {
        "steps": replayed.steps,
        "static": replayed.static._asdict(),
        "one_clock": replayed.one_clock._asdict(),
        "per_step": replayed.per_step._asdict(),
        "bound_saved_percent": replayed.bound_saved_percent,
    }
    return document | ({"reserve_percent": replayed.reserve_percent} if error.deviation else {})


def _text(
    replayed: StepsReplay, error: PredictionError, transitions: ClockTransitions | None
) -> str:
    def row(name: str, figures: TimeAndSaving) -> str:
        return f"{name:26} {figures.time_percent:+z8.2f} % {figures.saved_percent:z12.2f} %"

    clocks = "clocks change at once"
    if transitions is not None:
        up_ms, down_ms = 1e3 * transitions.up_p50_s, 1e3 * transitions.down_p50_s
        clocks = f"clock changes take {up_ms:g} ms up, {down_ms:g} ms down"
    predicted = "each step's plan is made of its recorded times"
    if error.deviation:
        of_what = "a microbatch" if error.is_shared else "an instruction"
        predicted = (
            f"each step's plan is made of times with an error of {100 * error.deviation:g} %"
            f" {of_what}, with a reserve of {replayed.reserve_percent:.1f} %"
        )
    return "\n".join(
        [
            f"{replayed.steps} steps, {replayed.pipeline_steps} pipeline steps; {clocks};"
            " predicted, against the highest clocks",
            predicted,
            f"{'':26} {'time':>10} {'energy saved':>14}",
            row("one plan for all steps", replayed.static),
            row("one clock a pipeline, step", replayed.one_clock),
            row("a plan for each step", replayed.per_step),
            f"{'bound, no slower':26} {'':10} {replayed.bound_saved_percent:z12.2f} %",
        ]
    )
