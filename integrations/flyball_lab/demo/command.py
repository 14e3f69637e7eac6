"""`flyball demo`: the whole loop on this machine, and whether it did what it promises."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

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
from flyball_lab.demo.report import terminal_plan
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
from flyball_wire.messages import JobStep, JobView, PlanView


class DemoProgress:
    """Progress display of the demo; enter it for as long as something runs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f} steps"),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=1, visible=False)
        self._phase = ""

    def __enter__(self) -> DemoProgress:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def say(self, phase: str) -> None:
        """A new phase begins; saying it again changes nothing."""
        if phase != self._phase:
            self._phase = phase
            self._console.print(phase, highlight=False, soft_wrap=True)

    def show(self, *, num_done: int, num_total: int, loss: float | None) -> None:
        """Show the number of steps trained, of all as far as their number is known."""
        description = "" if loss is None else f"loss {loss:.2f}"
        self._bar.update(
            self._task,
            completed=num_done,
            total=max(num_total, num_done, 1),
            description=description,
            visible=True,
        )


_POLL_S = 0.25
_ALL_STEPS = 10_000


@dataclass(frozen=True, kw_only=True)
class TrainingWatch:
    """Inputs for watching one run.

    Attributes:
        profile_csv: given to the planner once the baseline is measured.
    """

    folder: RunFolder
    options: DemoOptions
    client: PlannerClient
    planner: ChildProcess
    training: ChildProcess
    interruption: Interruption
    progress: DemoProgress
    profile_csv: str

    def until_over(self) -> None:
        """Return when training has ended well.

        Raises:
            DemoFailedError: a rank or the planner ended before.
            KeyboardInterrupt: a signal came meanwhile.
        """
        self.progress.say("starting 4 ranks with torchrun (DeepSpeed over gloo on the CPU)")
        profile_given = False
        plan: PlanView | None = None
        while not check_training(self.training, self.folder):
            check_planner(self.planner)
            self._show(plan)
            if not profile_given:
                profile_given = self._baseline_is_measured()
                if profile_given:
                    self.client.put_profile_csv(JOB_ID, self.profile_csv)
            elif plan is None or plan.first_step is None:
                plan = newest_plan(self.client)
            self.interruption.sleep(_POLL_S)
        check_planner(self.planner)

    def _baseline_is_measured(self) -> bool:
        return len(baseline_steps(self.client)) > self.options.num_steps

    def _show(self, plan: PlanView | None) -> None:
        steps = self.folder.trained_steps()
        num_phase = self.options.num_steps + 1
        first_planned = num_phase if plan is None or plan.first_step is None else plan.first_step
        if steps and steps[-1].plan_version is None:
            self.progress.say("training at the highest clocks")
        elif steps:
            self.progress.say(
                f"training on plan {steps[-1].plan_version}, received over HTTP,"
                f" from step {first_planned} on"
            )
        self.progress.show(
            num_done=len(steps),
            num_total=first_planned + num_phase,
            loss=steps[-1].loss if steps else None,
        )


def newest_plan(client: PlannerClient) -> PlanView | None:
    """The newest plan of the demo's job, if it has one."""
    version = demo_job(client).newest_version
    return None if version is None else client.get_plan(JOB_ID, version)


def demo_job(client: PlannerClient) -> JobView:
    """The demo's job as the planner knows it."""
    return client.get_job(JOB_ID)


def baseline_steps(client: PlannerClient) -> list[JobStep]:
    """The steps measured at default clocks by all ranks; none before the job is known."""
    try:
        steps = client.list_steps(JOB_ID, limit=_ALL_STEPS)
    except PlannerRefusedError as error:
        if error.status == 404:
            return []
        raise
    return steps_of(steps, plan_version=None, num_ranks=NUM_STAGES)


def planned_steps(client: PlannerClient, version: int) -> list[JobStep]:
    """The steps measured on this plan version by all ranks."""
    steps = client.list_steps(JOB_ID, limit=_ALL_STEPS)
    return steps_of(steps, plan_version=version, num_ranks=NUM_STAGES)


def planner_failed(error: PlannerError) -> DemoFailedError:
    """A planner call that failed, as the end of the demo."""
    return DemoFailedError(f"the planner did not do its part: {error}")


# A planner that died is seen dead; one that is only slow, on a busy computer, is waited for.
_PLANNER_TIMEOUT_S = 30.0

# Given the result, the plan's lines and the planner's URL, while the planner still answers.
Conclusion = Callable[[DemoResult, list[str], str], int]


def run_demo(
    folder: RunFolder,
    options: DemoOptions,
    *,
    interruption: Interruption,
    progress: DemoProgress,
    conclude: Conclusion,
) -> int:
    """Planner, training, result; returns what `conclude` returns.

    Raises:
        DemoFailedError: a part died or failed.
        KeyboardInterrupt: a signal came; no process is left behind.
    """
    environment = child_environment(os.environ)
    profile_csv = write_stage_profile(demo_profile())
    folder.profile_csv.write_text(profile_csv)
    with start_planner(folder, environment) as planner:
        try:
            with progress:
                url = wait_for_planner(planner, interruption)
                progress.say(f"planner at {url}")
                with (
                    PlannerClient(url, timeout_s=_PLANNER_TIMEOUT_S) as client,
                    start_training(folder, environment, options, planner_url=url) as training,
                ):
                    TrainingWatch(
                        folder=folder,
                        options=options,
                        client=client,
                        planner=planner,
                        training=training,
                        interruption=interruption,
                        progress=progress,
                        profile_csv=profile_csv,
                    ).until_over()
            with PlannerClient(url, timeout_s=_PLANNER_TIMEOUT_S) as client:
                result = _result(client, folder)
        except PlannerError as error:
            # A planner that died says why in its log; give it the moment to be seen dead.
            planner.wait(interruption, timeout_s=1.0)
            check_planner(planner)
            raise planner_failed(error) from None
        plan_lines = []
        if result.plan is not None:
            plan_lines = terminal_plan(result.plan, folder, environment, interruption)
        return conclude(result, plan_lines, url)


def _result(client: PlannerClient, folder: RunFolder) -> DemoResult:
    trained = folder.trained_steps()
    plan = newest_plan(client)
    measured_plan = None if plan is None else measure(planned_steps(client, plan.version))
    return DemoResult(
        job=demo_job(client),
        plan=plan,
        measured_baseline=measure(baseline_steps(client)),
        measured_plan=measured_plan,
        witnessed={
            rank: read_witnessed_clocks(folder.rank_clocks(rank)) for rank in range(NUM_STAGES)
        },
        planned_steps=[step.step for step in trained if step.plan_version is not None],
        losses=[step.loss for step in trained],
    )


_DEFAULTS = DemoOptions()


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Starts a planner and four ranks that train a small language model through DeepSpeed on"
        " the CPU, each with an emulated A100; measures some steps at the highest clocks, then"
        " on the plan, and compares both with the prediction. Exit status 0: everything held."
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=_DEFAULTS.num_steps,
        metavar="N",
        help="steps measured without and with the plan (default: %(default)s)",
    )
    parser.add_argument(
        "--microbatches",
        type=int,
        default=_DEFAULTS.num_microbatches,
        metavar="M",
        help="microbatches of an iteration (default: %(default)s)",
    )
    parser.add_argument(
        "--time-scale",
        type=float,
        default=_DEFAULTS.time_scale,
        metavar="X",
        help="wall seconds per emulated second; more on a busy computer (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON, alone")
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
            return _run_in(folder, options, as_json=arguments.json, keep=arguments.keep is not None)
        except DemoFailedError as error:
            if error.log_tail:
                print(error.log_tail, file=sys.stderr)
            print(f"flyball demo: failed: {error}", file=sys.stderr)
            return 1


def _run_in(folder: RunFolder, options: DemoOptions, *, as_json: bool, keep: bool) -> int:
    # rich is in the demo's extra only, and is known to be there by now.
    from rich.console import Console  # noqa: PLC0415

    from flyball_lab.demo.child_process import Interruption  # noqa: PLC0415
    from flyball_lab.demo.command import DemoProgress  # noqa: PLC0415
    from flyball_lab.demo.report import print_report, result_document  # noqa: PLC0415

    def conclude(result: DemoResult, plan_lines: list[str], url: str) -> int:
        failed = failed_condition(result, num_steps=options.num_steps)
        if as_json:
            print(json.dumps(result_document(result, failed=failed)))
        elif result.comparison is not None:
            print_report(
                Console(),
                result.comparison,
                result.losses,
                plan_lines=plan_lines,
                where_to_look=_where_to_look(url, folder, keep=keep),
            )
        if failed is not None:
            print(f"flyball demo: failed: {failed}", file=sys.stderr)
        return 0 if failed is None else 1

    with Interruption() as interruption:
        return run_demo(
            folder,
            options,
            interruption=interruption,
            progress=DemoProgress(Console(stderr=True)),
            conclude=conclude,
        )


def _where_to_look(url: str, folder: RunFolder, *, keep: bool) -> list[str]:
    ended = f"The planner's API was at {url}/docs; it ends with this command."
    if not keep:
        return [
            ended,
            "`flyball demo --keep DIR` keeps its files; `flyball serve` starts a planner.",
        ]
    again = f"flyball serve --database sqlite:///{folder.database}"
    return [
        f"{ended} Start it again on this run with",
        f"    {again}",
        "and look at http://127.0.0.1:7787/docs",
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
        used = any(keep.iterdir())
    except OSError as error:
        raise CommandError(f"--keep {keep}: {error.strerror}") from None
    if used:
        raise CommandError(f"--keep {keep}: the folder is not empty; name a new one")
    yield RunFolder(keep.resolve())


COMMAND = Command(
    summary="planner, emulated GPUs and a real training run on this machine",
    configure=_configure,
    run=_run,
)
