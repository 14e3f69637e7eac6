"""`flyball demo`: the whole loop on this machine, checked against the prediction."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from flyball_client.api.errors import PlannerError, PlannerRefusedError
from flyball_client.api.planner_client import PlannerClient
from flyball_lab.demo.child_process import ChildProcess, DemoFailedError, Interruption
from flyball_lab.demo.options import (
    JOB_ID,
    NUM_STAGES,
    DemoOptions,
    child_environment,
    demo_profile,
    missing_prerequisites,
)
from flyball_lab.demo.report import print_report, result_document, terminal_plan
from flyball_lab.demo.run_folder import RunFolder, read_witnessed_clocks
from flyball_lab.demo.training_process import (
    check_planner,
    check_training,
    start_planner,
    start_training,
    wait_for_planner,
)
from flyball_lab.demo.verdict import DemoResult, failed_condition, measure, steps_of
from flyball_profiles.stage_profile_csv import write_stage_profile
from flyball_wire.command import Command, CommandError
from flyball_wire.messages import JobStep, PlanView

_POLL_S = 0.25
_ALL_STEPS = 10_000
# A planner that died is noticed by its process; a slow one, on a busy computer, is waited for.
_PLANNER_TIMEOUT_S = 30.0


class DemoProgress:
    """Progress on the terminal: a line for each phase, and a bar below them."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.bar = Progress(
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f} steps"),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self.bar.add_task("", total=1, visible=False)
        self._phase = ""

    def begin(self, phase: str) -> None:
        """Print the phase, once."""
        if phase != self._phase:
            self._phase = phase
            self._console.print(phase, highlight=False, soft_wrap=True)

    def show(self, *, num_done: int, num_total: int, loss: float | None) -> None:
        """Show the number of trained steps, out of all as far as their number is known."""
        self.bar.update(
            self._task,
            completed=num_done,
            total=max(num_total, num_done, 1),
            description="" if loss is None else f"loss {loss:.2f}",
            visible=True,
        )


@dataclass(frozen=True, kw_only=True)
class DemoRun:
    """One run of the demo.

    Attributes:
        folder: for all files.
        options: sizes of the run.
        environment: of the processes.
        interruption: checked while the run waits.
        progress: shown while processes run.
    """

    folder: RunFolder
    options: DemoOptions
    environment: dict[str, str]
    interruption: Interruption
    progress: DemoProgress

    def result(self, planner: ChildProcess, url: str) -> DemoResult:
        """Train on the planner's plan, and return the result.

        Raises:
            DemoFailedError: a part ended or failed.
            KeyboardInterrupt: a signal came meanwhile.
        """
        try:
            with PlannerClient(url, timeout_s=_PLANNER_TIMEOUT_S) as client:
                with (
                    self.progress.bar,
                    start_training(
                        self.folder, self.environment, self.options, planner_url=url
                    ) as training,
                ):
                    self._wait_for(training, planner, client)
                return self._measured(client)
        except PlannerError as error:
            # A planner that died has the reason in its log; give its process time to end.
            planner.wait(self.interruption, timeout_s=1.0)
            check_planner(planner)
            raise DemoFailedError(f"a call of the planner failed: {error}") from None

    def _wait_for(
        self, training: ChildProcess, planner: ChildProcess, client: PlannerClient
    ) -> None:
        """Put the profile once the baseline is measured, and return when training has ended."""
        self.progress.begin("starting 4 ranks with torchrun (DeepSpeed over gloo on the CPU)")
        is_profiled = False
        plan: PlanView | None = None
        while not check_training(training, self.folder):
            check_planner(planner)
            self._show(plan)
            if not is_profiled and len(_steps(client, None)) > self.options.num_steps:
                client.put_profile_csv(JOB_ID, self.folder.profile_csv.read_text())
                is_profiled = True
            elif is_profiled and (plan is None or plan.first_step is None):
                plan = _newest_plan(client)
            self.interruption.sleep(_POLL_S)
        check_planner(planner)

    def _show(self, plan: PlanView | None) -> None:
        steps = self.folder.trained_steps()
        num_phase = self.options.num_steps + 1
        first_planned = num_phase if plan is None or plan.first_step is None else plan.first_step
        if steps and steps[-1].plan_version is None:
            self.progress.begin("training at the highest clocks")
        elif steps:
            self.progress.begin(
                f"training on plan {steps[-1].plan_version}, received over HTTP,"
                f" from step {first_planned} on"
            )
        self.progress.show(
            num_done=len(steps),
            num_total=first_planned + num_phase,
            loss=steps[-1].loss if steps else None,
        )

    def _measured(self, client: PlannerClient) -> DemoResult:
        trained, plan = self.folder.trained_steps(), _newest_plan(client)
        return DemoResult(
            job=client.get_job(JOB_ID),
            plan=plan,
            measured_baseline=measure(_steps(client, None)),
            measured_plan=None if plan is None else measure(_steps(client, plan.version)),
            witnessed={
                rank: read_witnessed_clocks(self.folder.rank_clocks(rank))
                for rank in range(NUM_STAGES)
            },
            planned_steps=[step.step for step in trained if step.plan_version is not None],
            losses=[step.loss for step in trained],
        )


def _newest_plan(client: PlannerClient) -> PlanView | None:
    version = client.get_job(JOB_ID).newest_version
    return None if version is None else client.get_plan(JOB_ID, version)


def _steps(client: PlannerClient, plan_version: int | None) -> list[JobStep]:
    """Return the steps on this plan version; none before the job is registered."""
    try:
        steps = client.list_steps(JOB_ID, limit=_ALL_STEPS)
    except PlannerRefusedError as error:
        if error.status == 404:
            return []
        raise
    return steps_of(steps, plan_version=plan_version, num_ranks=NUM_STAGES)


# ------------------------------------------------------------------ the command


def _configure(parser: argparse.ArgumentParser) -> None:
    defaults = DemoOptions()
    parser.description = (
        "Starts a planner and four ranks that train a small language model through DeepSpeed on"
        " the CPU, each with an emulated A100; measures some steps at the highest clocks, then"
        " on the plan, and compares both with the prediction. Exit status 0: everything held."
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=defaults.num_steps,
        metavar="N",
        help="number of measured steps without the plan, and with it (default: %(default)s)",
    )
    parser.add_argument(
        "--microbatches",
        type=int,
        default=defaults.num_microbatches,
        metavar="M",
        help="microbatches per iteration (default: %(default)s)",
    )
    parser.add_argument(
        "--time-scale",
        type=float,
        default=defaults.time_scale,
        metavar="X",
        help="wall-clock seconds per emulated second; raise it on a busy computer"
        " (default: %(default)g)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON only")
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="DIR",
        help="keep logs, database, profile and plan in this folder (new or empty)",
    )


def _run(arguments: argparse.Namespace) -> int:
    missing = missing_prerequisites()
    if missing:
        raise CommandError(f"missing: {'; '.join(missing)}")
    try:
        options = DemoOptions(
            num_steps=arguments.steps,
            num_microbatches=arguments.microbatches,
            time_scale=arguments.time_scale,
        )
    except ValueError as error:
        raise CommandError(str(error)) from None
    with _folder(arguments.keep) as folder:
        try:
            failed = _run_in(folder, options, arguments)
        except DemoFailedError as error:
            if error.log_tail:
                print(error.log_tail, file=sys.stderr)
            failed = str(error)
    if failed is None:
        return 0
    print(f"flyball demo: failed: {failed}", file=sys.stderr)
    return 1


def _run_in(folder: RunFolder, options: DemoOptions, arguments: argparse.Namespace) -> str | None:
    """Run the demo and print its result while the planner answers; return what failed."""
    folder.profile_csv.write_text(write_stage_profile(demo_profile()))
    environment = child_environment(os.environ)
    with Interruption() as interruption, start_planner(folder, environment) as planner:
        progress = DemoProgress(Console(stderr=True))
        run = DemoRun(
            folder=folder,
            options=options,
            environment=environment,
            interruption=interruption,
            progress=progress,
        )
        url = wait_for_planner(planner, interruption)
        progress.begin(f"planner at {url}")
        result = run.result(planner, url)
        failed = failed_condition(result, options)
        plan_lines = []
        if result.plan is not None:
            plan_lines = terminal_plan(result.plan, folder, environment, interruption)
        if arguments.json:
            print(json.dumps(result_document(result, failed=failed)))
        elif result.phases is not None:
            print_report(
                Console(),
                result.phases,
                result.losses,
                plan_lines=plan_lines,
                further_lines=_further_lines(url, folder, keep=arguments.keep is not None),
            )
        return failed


def _further_lines(url: str, folder: RunFolder, *, keep: bool) -> list[str]:
    ended = f"The planner's API was at {url}/docs; it ends with this command."
    if not keep:
        return [
            ended,
            "`flyball demo --keep DIR` keeps its files; `flyball serve` starts a planner.",
        ]
    return [
        f"{ended} Start it again on this run with",
        f"    flyball serve --database sqlite:///{folder.database}",
        "and open http://127.0.0.1:7787/docs",
    ]


@contextmanager
def _folder(keep: Path | None) -> Iterator[RunFolder]:
    if keep is None:
        with tempfile.TemporaryDirectory(
            prefix="flyball-demo-", ignore_cleanup_errors=True
        ) as path:
            yield RunFolder(Path(path))
        return
    try:
        keep.mkdir(parents=True, exist_ok=True)
        is_used = any(keep.iterdir())
    except OSError as error:
        raise CommandError(f"--keep {keep}: {error.strerror}") from None
    if is_used:
        raise CommandError(f"--keep {keep}: the folder is not empty; name a new one")
    yield RunFolder(keep.resolve())


COMMAND = Command(
    configure=_configure,
    run=_run,
)
