"""`flyball demo`: the whole loop on this machine, checked against the prediction."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from flyball_client.api.errors import PlannerError
from flyball_client.api.planner_client import PlannerClient
from flyball_client.profiling.arguments import add_option, count, quantity
from flyball_lab.demo.lengths import ComparedSteps, LengthsResult
from flyball_lab.demo.options import (
    JOB_ID,
    NUM_STAGES,
    DemoOptions,
    child_environment,
    demo_profile,
    missing_prerequisites,
)
from flyball_lab.demo.processes import (
    ChildProcess,
    Interruption,
    check_planner,
    check_training,
    start_planner,
    started_ranks,
    wait_for_planner,
)
from flyball_lab.demo.report import print_report, result_document
from flyball_lab.demo.run_folder import (
    DemoFailedError,
    RunFolder,
    TrainedStep,
    read_witnessed_clocks,
)
from flyball_lab.demo.verdict import DemoResult, failed_condition, measure, unjudged_time
from flyball_profiles.stage_profile_csv import write_stage_profile
from flyball_wire.command.command import Command, CommandError

_POLL_S = 0.25
_ALL_STEPS = 10_000
_MOST_STEPS, _MOST_MICROBATCHES = 1000, 256
# A planner that died is noticed by its process; a slow one, on a busy computer, is waited for.
_PLANNER_TIMEOUT_S = 30.0


class DemoRun:
    """One run of the demo, in its folder; phases and steps are shown on stderr."""

    def __init__(
        self, folder: RunFolder, options: DemoOptions, environment: Mapping[str, str]
    ) -> None:
        self.folder = folder
        self._options = options
        self._environment = environment
        self._console = Console(stderr=True)
        self._status = self._console.status("")
        self._phase = ""

    def begin(self, phase: str) -> None:
        """Print the phase, once."""
        if phase != self._phase:
            self._phase = phase
            self._console.print(phase, highlight=False, soft_wrap=True)

    def result(
        self, planner: ChildProcess, url: str, interruption: Interruption
    ) -> DemoResult | LengthsResult:
        """Train on the planner's plan, and return the result.

        Raises:
            DemoFailedError: a part ended or failed.
            KeyboardInterrupt: a signal came meanwhile.
        """
        compared = ComparedSteps(num_pairs=self._options.num_steps)
        training = started_ranks(self.folder, self._environment, self._options, planner_url=url)
        try:
            with PlannerClient(url, timeout_s=_PLANNER_TIMEOUT_S) as client:
                with training as ranks, self._status:
                    self._wait_for(ranks, planner, client, interruption, compared)
                if self._options.lengths:
                    return compared.result(client)
                return self._measured(client)
        except PlannerError as error:
            # A planner that died has the reason in its log; give its process time to end.
            planner.wait(interruption, timeout_s=1.0)
            check_planner(planner)
            raise DemoFailedError(f"a call of the planner failed: {error}") from None

    def _wait_for(
        self,
        ranks: Sequence[ChildProcess],
        planner: ChildProcess,
        client: PlannerClient,
        interruption: Interruption,
        compared: ComparedSteps,
    ) -> None:
        """Put the profile once the baseline is measured, and return when training has ended."""
        self.begin("starting 4 ranks (DeepSpeed over gloo on the CPU)")
        # Where steps differ, the baseline is measured in turn with the plans.
        num_baseline = 0 if self._options.lengths else self._options.num_steps + 1
        is_profiled = False
        while not check_training(ranks):
            check_planner(planner)
            steps = self.folder.trained_steps()
            self._show(steps)
            if len(steps) > num_baseline and not is_profiled:
                client.put_profile_csv(JOB_ID, self.folder.profile_csv.read_text())
                is_profiled = True
            elif is_profiled and self._options.lengths and compared.follow(client):
                self.folder.end_file.touch()
            interruption.sleep(_POLL_S)
        check_planner(planner)

    def _show(self, steps: Sequence[TrainedStep]) -> None:
        if not steps:
            return
        newest, num_phase = steps[-1], self._options.num_steps + 1
        if self._options.lengths:
            self.begin("training: lengths are fitted, then plans compared with the highest clocks")
            self._status.update(f"step {len(steps)}, loss {newest.loss:.2f}")
            return
        first = next((step.step for step in steps if step.plan_version is not None), num_phase)
        phase = "training at the highest clocks"
        if newest.plan_version is not None:
            phase = f"training on plan {newest.plan_version}, received over HTTP, from step {first}"
        self.begin(phase)
        num_in_all = max(first + num_phase, len(steps))
        self._status.update(f"step {len(steps)} of {num_in_all}, loss {newest.loss:.2f}")

    def _measured(self, client: PlannerClient) -> DemoResult:
        trained, job = self.folder.trained_steps(), client.get_job(JOB_ID)
        if job.newest_version is None:
            raise DemoFailedError("no plan came from the planner")
        plan = client.get_plan(JOB_ID, job.newest_version)
        self.folder.plan_json.write_text(json.dumps(plan.plan))
        steps = client.list_steps(JOB_ID, limit=_ALL_STEPS)
        at_highest, on_plan = (
            measure(
                steps,
                plan_version=version,
                num_ranks=NUM_STAGES,
                num_steps=self._options.num_steps,
            )
            for version in (None, plan.version)
        )
        return DemoResult(
            job=job,
            plan=plan,
            timeline=client.get_timeline(JOB_ID).plan,
            measured_baseline=at_highest,
            measured_plan=on_plan,
            witnessed={
                rank: read_witnessed_clocks(self.folder.rank_clocks(rank))
                for rank in range(NUM_STAGES)
            },
            planned_steps=[step.step for step in trained if step.plan_version is not None],
            losses=[step.loss for step in trained],
        )


# ------------------------------------------------------------------ the command


def _configure(parser: argparse.ArgumentParser) -> None:
    defaults = DemoOptions()
    parser.description = (
        "Starts a planner and four ranks that train a small language model through DeepSpeed on"
        " the CPU, each with an emulated A100; measures some steps at the highest clocks, then"
        " on the plan, and compares both with the prediction. Exit status 0: everything held; on a"
        " busy computer times are not judged."
    )
    for flag, parse, metavar, text, default in (
        (
            "--steps",
            count(2, _MOST_STEPS),
            "N",
            f"number of measured steps without the plan, and with it, 2 to {_MOST_STEPS}",
            defaults.num_steps,
        ),
        (
            "--microbatches",
            count(1, _MOST_MICROBATCHES),
            "M",
            f"microbatches per iteration, 1 to {_MOST_MICROBATCHES}",
            defaults.num_microbatches,
        ),
        (
            "--time-scale",
            quantity(0.5, 100.0),
            "X",
            "wall-clock seconds per emulated second, 0.5 to 100; raise it on a busy computer",
            defaults.time_scale,
        ),
    ):
        add_option(parser, flag, parse, metavar, text, default=default)
    parser.add_argument(
        "--lengths",
        action="store_true",
        help="train on sequences that differ in length, each step on a plan of its own, in turn"
        " with --steps steps at the highest clocks",
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
    options = DemoOptions(
        num_steps=arguments.steps,
        num_microbatches=arguments.microbatches,
        time_scale=arguments.time_scale,
        lengths=arguments.lengths,
    )
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
        run = DemoRun(folder, options, environment)
        url = wait_for_planner(planner, interruption)
        run.begin(f"planner at {url}")
        result = run.result(planner, url, interruption)
    further_lines = _further_lines(url, folder, keep=arguments.keep is not None)
    if isinstance(result, LengthsResult):
        failed, unjudged = result.failed_condition(), result.unjudged_time(options)
        document = result.document(failed=failed, unjudged=unjudged)
    else:
        failed, unjudged = failed_condition(result, options), unjudged_time(result, options)
        document = result_document(result, failed=failed, unjudged=unjudged)
    if arguments.json:
        print(json.dumps(document))
    elif isinstance(result, LengthsResult):
        print("\n".join((*result.lines(), "", *further_lines)))
    else:
        print_report(Console(), result, further_lines)
    if unjudged is not None:
        print(f"flyball demo: {unjudged}", file=sys.stderr)
    return failed


def _further_lines(url: str, folder: RunFolder, *, keep: bool) -> list[str]:
    ended = f"The planner's API was at {url}/docs; it has ended."
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
        raise CommandError(f"--keep {keep}: the folder is not empty; name a new folder")
    yield RunFolder(keep.resolve())


COMMAND = Command(
    configure=_configure,
    run=_run,
)
