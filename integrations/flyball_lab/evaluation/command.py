"""`flyball evaluate`: EnvPipe's evaluation on emulated GPUs, with Flyball's frontier added."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from flyball_client.gpu.emulated import DEFAULT_PHYSICS, EmulatedGpuSettings
from flyball_client.profiling.arguments import add_option
from flyball_lab.demo.processes import (
    ChildProcess,
    Interruption,
    start_planner,
    wait_for_planner,
)
from flyball_lab.demo.run_folder import DemoFailedError, RunFolder, tail
from flyball_lab.evaluation.configurations import (
    Configuration,
    example_model,
    given_models,
    merged_profile,
)
from flyball_lab.evaluation.figures import FIGURE_NAMES, Figure, make_figure
from flyball_lab.evaluation.planned_run import (
    EvaluationFailedError,
    RunResult,
    run_configuration,
)
from flyball_lab.evaluation.tables import Row, printed_table, rows_of, write_csv
from flyball_profiles.stage_profile_csv import write_stage_profile
from flyball_wire.command import Command, CommandError

_TIMEOUT_S = 300.0
# Where clocks change at once: in virtual time nothing but rounding differs.
TOLERANCE_PERCENT = 0.01

# Runs that two figures share are made once; a model of a name and origin has one profile.
_Key = tuple[str, str, object, int, int]


@dataclass(kw_only=True)
class _Evaluation:
    """Runs of the evaluation, each made once, with progress on stderr."""

    options: argparse.Namespace
    url: str
    folder: Path
    environment: dict[str, str]
    interruption: Interruption
    results: dict[_Key, RunResult] = field(default_factory=dict)

    def rows(self, figure: Figure) -> list[Row]:
        """Return the figure's rows; write its files and print its table."""
        from flyball_lab.evaluation.plots import write_plots  # noqa: PLC0415 - needs matplotlib

        output = self.options.output
        num_runs = len(figure.runs)
        print(f"figure {figure.name}: {num_runs} runs on emulated GPUs", file=sys.stderr)
        results: dict[Configuration, RunResult] = {}
        for number, run in enumerate(figure.runs, 1):
            results[run] = self._result(run, f"{number}/{num_runs} {run.title}")
        self._show_progress("")
        rows = rows_of(figure, results)
        csv = output / f"figure-{figure.name}.csv"
        write_csv(rows, csv)
        plots = write_plots(figure, rows, output)
        if not self.options.json:
            print(f"{printed_table(figure, rows)}\n{', '.join(map(str, [csv, *plots]))}\n")
            sys.stdout.flush()
        return rows

    def _result(self, run: Configuration, progress: str) -> RunResult:
        model = run.model
        key = (model.name, model.origin, run.manner, run.num_microbatches, run.num_pipelines)
        if key not in self.results:
            self.interruption.check()
            self._show_progress(progress)
            self.results[key] = run_configuration(
                self.url,
                f"run-{len(self.results)}",
                run,
                num_steps=self.options.steps,
                settings=_physics(self.options.switch_latency),
                check_interrupted=self.interruption.check,
            )
        return self.results[key]

    def _show_progress(self, text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    def print_plans(self) -> None:
        """Print `CURRENT_STEP n` and a row a stage for each reconfiguring step of EnvPipe's."""
        log = self.folder / "reconfiguration.log"
        profile = self.folder / "profile.csv"
        for result in self.results.values():
            run = result.configuration
            model, manner = run.model, run.manner
            if manner.policy != "envelope":
                continue
            profile.write_text(
                write_stage_profile(merged_profile(model.profile, run.num_pipelines))
            )
            with ChildProcess(
                [
                    *("-m", "flyball_server.cli.reconfiguration_steps", str(profile)),
                    *("--microbatches", str(run.num_microbatches)),
                    *("--blocking-power", repr(model.blocking_power_w)),
                    *("--schedule", manner.schedule, "--policy", manner.policy),
                    *("--reconfigure", manner.reconfigure),
                ],
                environment=self.environment,
                log=log,
            ) as process:
                if process.wait(self.interruption, timeout_s=_TIMEOUT_S) != 0:
                    raise EvaluationFailedError(
                        f"{run.title}: its reconfiguration could not be printed: {tail(log)}"
                    )
            plans = f"{run.title}\n{log.read_text()}"
            print(plans, file=sys.stderr if self.options.json else sys.stdout)


def _physics(switch_latency_ms: float | None) -> EmulatedGpuSettings:
    if switch_latency_ms is None:
        return DEFAULT_PHYSICS
    return EmulatedGpuSettings.exact_delay(switch_latency_ms / 1e3)


def evaluate(options: argparse.Namespace) -> int:
    """Run the figures, write and print them; return the exit status.

    Raises:
        CommandError: folders cannot be used.
        KeyboardInterrupt: a signal came; no process is left behind.
    """
    others = [example_model(), *(given_models(options.profiles) if options.profiles else ())]
    names = FIGURE_NAMES if options.figure == "all" else (options.figure,)
    figures = [make_figure(name, others) for name in names]
    try:
        options.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"--output {options.output}: {error.strerror}") from None
    try:
        with Interruption() as interruption, _planner(interruption) as (url, folder, environment):
            evaluation = _Evaluation(
                options=options,
                url=url,
                folder=folder,
                environment=environment,
                interruption=interruption,
            )
            rows = [row for figure in figures for row in evaluation.rows(figure)]
            if options.print_plans:
                evaluation.print_plans()
    except (DemoFailedError, EvaluationFailedError) as error:
        print(f"flyball evaluate: failed: {error}", file=sys.stderr)
        return 1
    return _concluded(rows, options)


def _concluded(rows: Sequence[Row], options: argparse.Namespace) -> int:
    largest = {
        quantity: max(abs(float(row[f"{quantity}_difference_percent"] or 0.0)) for row in rows)
        for quantity in ("time", "energy")
    }
    latency_ms = options.switch_latency
    # No plan has late clocks in its prediction: their difference is a result.
    agrees = latency_ms != 0 or max(largest.values()) <= TOLERANCE_PERCENT
    if options.json:
        document = {
            "emulated": True,
            "num_steps": options.steps,
            "switch_latency_s": None if latency_ms is None else latency_ms / 1e3,
            "largest_time_difference_percent": largest["time"],
            "largest_energy_difference_percent": largest["energy"],
            "rows": rows,
        }
        print(json.dumps(document))
    else:
        print(
            f"Emulated and predicted differ by at most {largest['time']:.4f} % (time) and"
            f" {largest['energy']:.4f} % (energy). No figure here is a real GPU's."
        )
    if agrees:
        return 0
    print(
        f"flyball evaluate: failed: emulated and predicted differ by more than"
        f" {TOLERANCE_PERCENT:g} %",
        file=sys.stderr,
    )
    return 1


@contextmanager
def _planner(interruption: Interruption) -> Iterator[tuple[str, Path, dict[str, str]]]:
    """Start a planner; yield its URL, a folder for files, the environment of processes."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("FLYBALL_")
    }
    with tempfile.TemporaryDirectory(
        prefix="flyball-evaluate-", ignore_cleanup_errors=True
    ) as path:
        folder = RunFolder(Path(path))
        with start_planner(folder, environment) as planner:
            yield wait_for_planner(planner, interruption), folder.path, environment


_PACKAGES = ("fastapi", "uvicorn", "sqlalchemy", "highspy", "matplotlib")
_MAX_STEPS = 1000
_MAX_LATENCY_MS = 1000.0


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Trains pipelines of emulated GPUs in virtual time under EnvPipe's policies and Flyball's,"
        " as EnvPipe's figures 9 to 13 do, and compares what they took with the prediction. With"
        " --switch-latency 0, exit status 0 means that everything agreed within 0.01 %."
    )
    parser.add_argument(
        "--figure",
        choices=(*FIGURE_NAMES, "all"),
        default="all",
        help="figure of EnvPipe's paper: 9 models, 10 breakdown, 11 reconfiguration,"
        " 12 data-parallel x pipeline-parallel, 13 microbatches; orders: EnvPipe's order against"
        " 1F1B (default: %(default)s)",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FOLDER",
        type=Path,
        default=Path("flyball-evaluation"),
        help="folder for CSV files and plots (default: %(default)s)",
    )
    add_option(
        parser,
        "--profiles",
        Path,
        "DIR",
        "add the stage profiles (*.csv) of this folder; file names contain the GPU, such as a100",
    )
    steps = f"steps averaged in each run, 1 to {_MAX_STEPS}"
    add_option(parser, "--steps", int, "N", steps, default=3)
    parser.add_argument(
        "--switch-latency",
        type=float,
        metavar="MS",
        help="delay in ms of every clock change; 0: clocks change at once (default: random, as"
        " measured on real GPUs in nodes of eight)",
    )
    parser.add_argument(
        "--print-plans",
        action="store_true",
        help="print EnvPipe's plan after each reconfiguration step",
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON only")


def _run(arguments: argparse.Namespace) -> int:
    if not 1 <= arguments.steps <= _MAX_STEPS:
        raise CommandError(f"--steps must be from 1 to {_MAX_STEPS}, not {arguments.steps}")
    latency_ms = arguments.switch_latency
    if latency_ms is not None and not 0 <= latency_ms <= _MAX_LATENCY_MS:
        raise CommandError(f"--switch-latency must be from 0 to {_MAX_LATENCY_MS:g} ms")
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise CommandError(
            f"missing: {', '.join(missing)}, of the extra 'plot': pip install '.[plot]' in a"
            " clone of Flyball"
        )
    return evaluate(arguments)


COMMAND = Command(
    configure=_configure,
    run=_run,
)
