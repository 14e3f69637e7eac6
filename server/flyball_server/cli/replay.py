"""`flyball replay`: predict recorded runs, and compare with what was measured."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flyball_profiles.limited_file import read_text
from flyball_server.cli.offline_inputs import naming
from flyball_server.cli.plots.plot_file import PLOT_SUFFIXES, check_plot_path, write_replay_plot
from flyball_server.cli.progress_line import ProgressLine
from flyball_server.cli.replay_steps import add_steps_arguments, check_no_steps_arguments, run_steps
from flyball_server.replay.perseus_artifact import (
    ArtifactWorkload,
    RankClocks,
    RankMeasurements,
    measured_run,
    plan_clocks,
)
from flyball_server.replay.predicted_saving import PredictedSaving, predicted_saving
from flyball_server.replay.recorded_runs import RecordedRun, Recording
from flyball_server.replay.replayed_runs import (
    DEFAULT_FIT,
    FIT_FORMS,
    ErrorPercents,
    Replay,
    RunReplay,
    fitted_places,
    replay,
)
from flyball_wire.codec import decode, decode_list
from flyball_wire.command.command import Command, CommandError, RecordedRunsOf, add_planner
from flyball_wire.errors import CodecError


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Fit a stage profile on some of a workload's recorded runs, predict time and energy of the"
        " others, and compare with what was measured. With --steps: compare a plan for each"
        " recorded step with one plan for all of them."
    )
    parser.add_argument(
        "recordings", metavar="RUN.json", type=Path, nargs="*", help="recorded runs of a workload"
    )
    parser.add_argument(
        "--from-perseus",
        metavar="SOSP24_DATA",
        type=Path,
        help="folder sosp24_data of the Perseus artifact: replay all of its workloads",
    )
    parser.add_argument(
        "--job", metavar="JOB", help="replay this job's runs, as measured by the planner"
    )
    add_planner(parser)
    parser.add_argument(
        "--fit",
        metavar="RULE",
        default=DEFAULT_FIT,
        help=f"runs to fit: {', '.join(FIT_FORMS)} (default: %(default)s, starting with the first"
        " run in the file)",
    )
    parser.add_argument(
        "--saving",
        action="store_true",
        help="also fit all runs, and predict the saving of a plan as fast as the first run",
    )
    parser.add_argument(
        "--plot",
        metavar="FILE",
        type=Path,
        help=f"plot measured against predicted figures: {', '.join(PLOT_SUFFIXES)}",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON only")
    add_steps_arguments(parser)


def read_recording(path: Path) -> Recording:
    """Read a file of recorded runs.

    Raises:
        CommandError: the file cannot be read, or is no such file; names the place.
    """
    with naming(path, "not recorded runs in JSON"):
        return _recording_of(str(path), json.loads(read_text(path)))


def _recording_of(source: str, document: object) -> Recording:
    try:
        return decode(Recording, document)
    except CodecError as error:
        fault = str(error).removeprefix(f"{Recording.__name__}: ")
        raise CommandError(f"{source}: {fault}") from None


@dataclass(frozen=True, kw_only=True)
class _Result:
    """One recording replayed.

    Attributes:
        source: name of the file, folder or job.
        saving: None: not asked for.
    """

    source: str
    replayed: Replay
    saving: PredictedSaving | None

    def document(self) -> dict[str, Any]:
        saving = {} if self.saving is None else {"saving": asdict(self.saving)}
        return {"source": self.source, **asdict(self.replayed), **saving}

    def text(self) -> str:
        saving = [] if self.saving is None else [saving_text(self.saving, self.replayed)]
        return "\n\n".join([replay_text(self.replayed), *saving])


def _run(arguments: argparse.Namespace) -> int:
    if arguments.steps:
        _check_steps_alone(arguments)
        return run_steps(arguments)
    check_no_steps_arguments(arguments)
    if arguments.plot:
        check_plot_path(arguments.plot)
    if not (arguments.recordings or arguments.from_perseus or arguments.job):
        raise CommandError(
            "give RUN.json, a file of recorded runs, or --from-perseus, the Perseus artifact's"
            " data, or --job, a job of the planner, or --steps, times of recorded steps"
        )
    sources = [(str(path), read_recording(path)) for path in arguments.recordings]
    refused: list[str] = []
    if arguments.job:
        recorded_runs_of: RecordedRunsOf = arguments.recorded_runs_of
        recorded = recorded_runs_of(arguments.job)
        source = f"job {recorded.job_id}"
        sources.append((source, _recording_of(source, recorded.document)))
        refused += [f"{source}: {reason}" for reason in recorded.left_out]
    results = [_result(arguments, source, recording) for source, recording in sources]
    if arguments.from_perseus:
        _add_artifact(arguments, results, refused)
    if arguments.plot:
        write_replay_plot([(each.replayed, each.saving) for each in results], arguments.plot)
    if arguments.json:
        documents = [result.document() for result in results]
        is_single = len(documents) == 1 and not refused
        printed = documents[0] if is_single else {"recordings": documents, "not_replayed": refused}
        print(json.dumps(printed))
    else:
        not_replayed = "\n".join(f"not replayed: {reason}" for reason in refused)
        print("\n\n".join([*(result.text() for result in results), *filter(None, [not_replayed])]))
    return 0


def _check_steps_alone(arguments: argparse.Namespace) -> None:
    """Refuse recorded steps beside recorded runs."""
    of_runs = {
        "RUN.json": arguments.recordings,
        "--from-perseus": arguments.from_perseus,
        "--job": arguments.job,
        "--saving": arguments.saving,
        "--plot": arguments.plot,
    }
    for name, given in of_runs.items():
        if given:
            raise CommandError(f"{name} is for recorded runs; leave it out with --steps")


def _add_artifact(
    arguments: argparse.Namespace, results: list[_Result], refused: list[str]
) -> None:
    """Replay the artifact's workloads, and add the reasons of those that cannot be.

    Raises:
        CommandError: none can be.
    """
    faults: list[str] = []
    folders = workload_folders(arguments.from_perseus)
    for folder in folders:
        try:
            with ProgressLine(f"{folder}: reading"):
                recording = read_workload(folder)
            results.append(_result(arguments, str(folder), recording))
        except CommandError as error:
            faults.append(str(error))
    if len(faults) == len(folders):
        others = f" (and {len(faults) - 1} other workloads)" if len(faults) > 1 else ""
        raise CommandError(faults[0] + others)
    refused += faults


def _result(arguments: argparse.Namespace, source: str, recording: Recording) -> _Result:
    """Replay a recording; errors name its source."""
    with naming(source), ProgressLine(f"{source}: fitting"):
        fitted = fitted_places(arguments.fit, [run.name for run in recording.runs])
        return _Result(
            source=source,
            replayed=replay(recording, fitted),
            saving=predicted_saving(recording) if arguments.saving else None,
        )


_FILE = re.compile(r"(0|[1-9]\d{0,5})\.(?:prof|sched)\.json")
# File 0 is a run of warming up; the folder's plans follow the baseline, in the order they ran.
_BASELINE, _FIRST_PLAN = 1, 2


def workload_folders(root: Path) -> list[Path]:
    """Return all workloads' folders, `perseus/GPU/LAYOUT/MODEL` below the artifact's data.

    Raises:
        CommandError: there is none.
    """
    found = sorted(folder for folder in root.glob("perseus/*/*/*") if folder.is_dir())
    if not found:
        raise CommandError(
            f"{root}: has no folder perseus/GPU/LAYOUT/MODEL; --from-perseus takes the folder"
            " sosp24_data of the Perseus artifact"
        )
    return found


def read_workload(folder: Path) -> Recording:
    """Read one workload's baseline and plans, and EnvPipe's plan where there is one.

    Raises:
        CommandError: a file is missing, or cannot be right; names file, run and stage.
    """
    layout = folder.parent
    with naming(folder):
        workload = ArtifactWorkload.of_folder(folder.name, layout.parent.name)
    numbers = _run_numbers(folder)
    if _BASELINE not in numbers:
        raise CommandError(f"{folder}: has no {_BASELINE}.prof.json, the baseline")
    if max(numbers) < _FIRST_PLAN:
        raise CommandError(
            f"{folder}: has no runs besides the baseline; plans are from 2.prof.json on"
        )
    runs = [
        _read_run(folder, number, _run_name(number, "perseus"), workload)
        for number in numbers
        if number >= _BASELINE
    ]
    envpipe = _envpipe_folder(folder)
    if envpipe.is_dir():
        if _FIRST_PLAN not in _run_numbers(envpipe):
            raise CommandError(f"{envpipe}: has no {_FIRST_PLAN}.prof.json, EnvPipe's plan")
        name = _run_name(_FIRST_PLAN, "envpipe")
        runs.append(_read_run(envpipe, _FIRST_PLAN, name, workload))
    return workload.recording(runs)


def _envpipe_folder(folder: Path) -> Path:
    layout, gpu = folder.parent, folder.parent.parent
    return gpu.parent.parent / "envpipe" / gpu.name / layout.name / folder.name


def _run_numbers(folder: Path) -> list[int]:
    """Return the numbers of the folder's runs, rising."""
    with naming(folder):
        names = {path.name for path in folder.iterdir()}
    numbers = sorted({int(match[1]) for name in names if (match := _FILE.fullmatch(name))})
    if not numbers:
        raise CommandError(f"{folder}: has no runs, which are files N.prof.json and N.sched.json")
    return numbers


def _run_name(number: int, method: str) -> str:
    """Return a run's name, by whose plans the folder holds: `perseus` or `envpipe`."""
    if number < _FIRST_PLAN:
        return "baseline" if number == _BASELINE else "warm-up"
    plan = number - _FIRST_PLAN
    return method if method == "envpipe" and plan == 0 else f"{method}-{plan}"


def _read_run(folder: Path, number: int, name: str, workload: ArtifactWorkload) -> RecordedRun:
    path = folder / f"{number}.sched.json"
    with naming(f"{path}: run {name}", "not complete JSON"):
        clocks_mhz = plan_clocks(decode_list(RankClocks, json.loads(read_text(path))), workload)
    path = folder / f"{number}.prof.json"
    with naming(f"{path}: run {name}", "not complete JSON"):
        ranks = decode_list(RankMeasurements, json.loads(read_text(path)))
        return measured_run(ranks, workload, name, clocks_mhz)


def replay_text(replayed: Replay) -> str:
    """Return the replay as text: a row per run, the errors, and the notes."""
    width = max(len(run.name) for run in replayed.runs)
    num_held_out = len(replayed.held_out)
    lines = [
        replayed.workload,
        f"{len(replayed.runs) - num_held_out} runs fitted, {num_held_out} predicted from them;"
        " +- is the 90 % interval of a prediction",
        "",
        f"{'':{width}}          {'time of an iteration, s':42}  energy of an iteration, J",
        f"{'run':{width}}          {'measured':>9} {'predicted':>19} {'error':>9}"
        f"  {'measured':>10} {'predicted':>21} {'error':>9}",
        *(_row(run, width) for run in replayed.runs),
        "",
        *_errors(replayed),
    ]
    of_runs = [f"{run.name}: {note}" for run in replayed.runs for note in run.notes]
    notes = [f"note: {note}" for note in (*replayed.notes, *of_runs)]
    emulated = [f"here {replayed.origin}"] if replayed.emulated else []
    for part in (notes, emulated):
        lines += ["", *part] if part else []
    return "\n".join(lines)


def _row(run: RunReplay, width: int) -> str:
    return (
        f"{run.name:{width}}  {'fitted' if run.fitted else '':6}"
        f"  {run.measured_s:9.4f}"
        f" {run.predicted_s:9.4f} +-{run.predicted_s_interval[1] - run.predicted_s:7.4f}"
        f" {run.time_error_percent:+7.2f} %"
        f"  {run.measured_j:10.1f}"
        f" {run.predicted_j:10.1f} +-{run.predicted_j_interval[1] - run.predicted_j:8.1f}"
        f" {run.energy_error_percent:+7.2f} %"
    )


def _errors(replayed: Replay) -> list[str]:
    if not replayed.held_out:
        return ["every run was fitted, so none shows an error of prediction"]

    def row(name: str, errors: ErrorPercents) -> str:
        return f"{name:28}  {errors.time:10.2f} %  {errors.energy:10.2f} %"

    inside = [f"{covered} of {len(replayed.held_out)}" for covered in replayed.covered]
    return [
        "absolute error of the runs that were not fitted",
        f"{'':28}  {'time':>12}  {'energy':>12}",
        row("predicted, mean", replayed.mean_absolute_error_percent),
        row("predicted, largest", replayed.largest_absolute_error_percent),
        row(f"all as {replayed.runs[0].name[:16]}, mean", replayed.unchanged),
        f"{'within the interval':28}  {inside[0]:>12}  {inside[1]:>12}",
    ]


def saving_text(saving: PredictedSaving, replayed: Replay) -> str:
    """Return the predicted saving as text."""
    origin = replayed.origin
    lines = [
        f"against {saving.baseline}, {origin}; fitted on all {len(replayed.runs)} runs; +- is the"
        " 90 % interval",
        f"{'':34}  {'energy saved':>20}  {'time':>20}",
    ]
    lines += [
        f"{f'{run.name}, {origin}':34}  {run.saving_percent:18.2f} %"
        f"  {run.slowdown_percent:+18.2f} %"
        for run in saving.measured
    ]
    plan, predicted = saving.predicted, "no plan within the recorded runs"
    if plan is not None:
        predicted = (
            f"{plan.saving_percent:9.2f} +-"
            f"{plan.saving_percent_interval[1] - plan.saving_percent:5.2f} %"
            f"  {plan.slowdown_percent:+10.2f} +-"
            f"{plan.slowdown_percent_interval[1] - plan.slowdown_percent:5.2f} %"
        )
    return "\n".join([*lines, f"{'Flyball, predicted':34}  {predicted}"])


COMMAND = Command(configure=_configure, run=_run, reads_planner=True)
