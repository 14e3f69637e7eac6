"""`flyball replay`: predict recorded runs, and compare with what was measured."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flyball_profiles.limited_file import read_text
from flyball_server.cli.perseus_folder import read_workload, workload_folders
from flyball_server.cli.plots.plot_file import PLOT_SUFFIXES, check_plot_path
from flyball_server.cli.plots.replay_plot import write_replay_plot
from flyball_server.cli.progress_line import ProgressLine
from flyball_server.cli.replay_steps import (
    add_steps_arguments,
    check_no_steps_arguments,
    run_steps,
)
from flyball_server.replay.predicted_saving import PredictedSaving, predicted_saving
from flyball_server.replay.recorded_runs import Recording, RecordingError
from flyball_server.replay.replay_report import replay_text, saving_text
from flyball_server.replay.replayed_runs import (
    DEFAULT_FIT,
    FIT_FORMS,
    Replay,
    fitted_places,
    replay,
)
from flyball_wire.codec import decode
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
    try:
        document: object = json.loads(read_text(path))
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{path}: not recorded runs in JSON ({error})") from None
    return _recording_of(str(path), document)


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
    try:
        with ProgressLine(f"{source}: fitting"):
            fitted = fitted_places(arguments.fit, [run.name for run in recording.runs])
            return _Result(
                source=source,
                replayed=replay(recording, fitted),
                saving=predicted_saving(recording) if arguments.saving else None,
            )
    except RecordingError as error:
        raise CommandError(f"{source}: {error}") from None


COMMAND = Command(
    configure=_configure,
    run=_run,
    reads_planner=True,
)
