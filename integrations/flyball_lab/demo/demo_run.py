"""One demo run from the first process to the result; every process ends with it."""

from __future__ import annotations

import os
from collections.abc import Callable

from flyball_client.api.errors import PlannerError
from flyball_client.api.planner_client import PlannerClient
from flyball_lab.demo.child_process import Interruption
from flyball_lab.demo.options import NUM_STAGES, DemoOptions, child_environment, demo_profile
from flyball_lab.demo.progress import DemoProgress
from flyball_lab.demo.report import terminal_plan
from flyball_lab.demo.run_folder import RunFolder, read_witnessed_clocks
from flyball_lab.demo.training_process import (
    check_planner,
    start_planner,
    start_training,
    wait_for_planner,
)
from flyball_lab.demo.training_watch import (
    TrainingWatch,
    baseline_steps,
    demo_job,
    newest_plan,
    planned_steps,
    planner_failed,
)
from flyball_lab.demo.verdict import DemoResult, measure
from flyball_profiles.stage_profile_csv import write_stage_profile

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
