"""`flyball replay`: predict recorded runs, and compare with what was measured."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flyball_profiles.limited_file import read_text
from flyball_server.cli.perseus_folder import read_workload, workload_folders
from flyball_server.cli.plots.plot_file import PLOT_SUFFIXES, check_plot_path
from flyball_server.cli.plots.replay_plot import write_replay_plot
from flyball_server.cli.progress_line import ProgressLine
from flyball_server.replay.covered_plans import CoveredPlanner, JudgedPlan, covered_frontier
from flyball_server.replay.fit_rule import DEFAULT_FIT, FIT_FORMS, FitRule, parse_fit
from flyball_server.replay.predicted_saving import (
    PredictedSaving,
    predicted_saving,
    saving_document,
    saving_text,
)
from flyball_server.replay.recorded_runs import Recording, RecordingError
from flyball_server.replay.recording_document import recording_from_document
from flyball_server.replay.replay_document import replay_document, replay_text
from flyball_server.replay.replayed_runs import Replay, replay
from flyball_server.replay.runs_fit import fit_runs
from flyball_wire.command import Command, CommandError, RecordedRunsOf, add_planner


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Fit a stage profile on some of a workload's recorded runs, predict time and energy of the"
        " others, and compare with what was measured."
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
        type=_fit_rule,
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


def _fit_rule(text: str) -> FitRule:
    try:
        return parse_fit(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def read_recording(path: Path) -> Recording:
    """Read a file of recorded runs.

    Raises:
        CommandError: it cannot be read, or is no such file; names run and stage.
    """
    try:
        return recording_from_document(json.loads(read_text(path)))
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}") from None
    except RecordingError as error:
        raise CommandError(f"{path}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{path}: not recorded runs in JSON ({error})") from None


@dataclass(frozen=True, kw_only=True)
class _Result:
    """One recording replayed.

    Attributes:
        source: what it was read from.
        saving: None: not asked for.
        frontier: plans within the fit, time in s and energy in J; empty: not asked for.
    """

    source: str
    replayed: Replay
    saving: PredictedSaving | None
    frontier: Sequence[tuple[float, float]]


def _run(arguments: argparse.Namespace) -> int:
    if arguments.plot:
        check_plot_path(arguments.plot)
    if not (arguments.recordings or arguments.from_perseus or arguments.job):
        raise CommandError(
            "give RUN.json, a file of recorded runs, or --from-perseus, the Perseus artifact's"
            " data, or --job, a job of the planner"
        )
    sources = [(str(path), read_recording(path)) for path in arguments.recordings]
    refused: list[str] = []
    if arguments.job:
        source, recording, refused = _job_recording(arguments)
        sources.append((source, recording))
    results = [_result(arguments, source, recording) for source, recording in sources]
    if arguments.from_perseus:
        of_artifact, refused_folders = _artifact_results(arguments)
        results += of_artifact
        refused += refused_folders
    if arguments.plot:
        write_replay_plot(
            [result.replayed for result in results],
            [result.frontier for result in results],
            arguments.plot,
        )
    print(_json(results, refused) if arguments.json else _text(results, refused))
    return 0


def _job_recording(arguments: argparse.Namespace) -> tuple[str, Recording, list[str]]:
    """Return a name for the planner's job, its runs, and the versions left out of them and why."""
    recorded_runs_of: RecordedRunsOf = arguments.recorded_runs_of
    recorded = recorded_runs_of(arguments.job)
    source = f"job {recorded.job_id}"
    try:
        recording = recording_from_document(recorded.document)
    except RecordingError as error:
        raise CommandError(f"{source}: {error}") from None
    return source, recording, [f"{source}: {reason}" for reason in recorded.left_out]


def _artifact_results(arguments: argparse.Namespace) -> tuple[list[_Result], list[str]]:
    """Replay the artifact's workloads, and say which could not be and why.

    Raises:
        CommandError: none could be.
    """
    results: list[_Result] = []
    refused: list[str] = []
    for folder in workload_folders(arguments.from_perseus):
        try:
            with ProgressLine(f"{folder}: reading"):
                recording = read_workload(folder)
            results.append(_result(arguments, str(folder), recording))
        except CommandError as error:
            refused.append(str(error))
    if not results:
        others = f" (and {len(refused) - 1} other workloads)" if len(refused) > 1 else ""
        raise CommandError(refused[0] + others)
    return results, refused


def _result(arguments: argparse.Namespace, source: str, recording: Recording) -> _Result:
    """Replay a recording; `source` is what errors name."""
    rule: FitRule = arguments.fit
    try:
        fitted = rule.chosen([run.name for run in recording.runs])
        with ProgressLine(f"{source}: fitting") as progress:

            def report(done: int) -> None:
                progress.show(f"{source}: made {done} fits with a run left out")

            replayed = replay(recording, fitted, report)
            saving = predicted_saving(recording, report) if arguments.saving else None
            frontier: list[JudgedPlan] = []
            if arguments.plot:
                planner = CoveredPlanner.of_fit(fit_runs(replayed.fit.workload, recording.runs))
                frontier = covered_frontier(
                    planner, lambda done: progress.show(f"{source}: planned {done} plans")
                )
    except RecordingError as error:
        raise CommandError(f"{source}: {error}") from None
    return _Result(
        source=source,
        replayed=replayed,
        saving=saving,
        frontier=[(plan.predicted.iteration_time_s, plan.predicted.energy_j) for plan in frontier],
    )


def _json(results: Sequence[_Result], refused: Sequence[str]) -> str:
    documents = [
        {
            "source": result.source,
            **replay_document(result.replayed),
            **({} if result.saving is None else {"saving": saving_document(result.saving)}),
        }
        for result in results
    ]
    if len(documents) == 1 and not refused:
        return json.dumps(documents[0])
    return json.dumps({"recordings": documents, "not_replayed": list(refused)})


def _text(results: Sequence[_Result], refused: Sequence[str]) -> str:
    texts = [
        text if result.saving is None else f"{text}\n\n{saving_text(result.saving)}"
        for result in results
        for text in (replay_text(result.replayed),)
    ]
    if refused:
        texts.append("\n".join(f"not replayed: {reason}" for reason in refused))
    return "\n\n".join(texts)


COMMAND = Command(
    configure=_configure,
    run=_run,
    reads_planner=True,
)
