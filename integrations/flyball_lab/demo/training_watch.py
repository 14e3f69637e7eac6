"""Follows a training run of the demo to its end, and gives it its profile on the way."""

from __future__ import annotations

from dataclasses import dataclass

from flyball_client.api.errors import PlannerError, PlannerRefusedError
from flyball_client.api.planner_client import PlannerClient
from flyball_lab.demo.child_process import ChildProcess, DemoFailedError, Interruption
from flyball_lab.demo.options import JOB_ID, NUM_STAGES, DemoOptions
from flyball_lab.demo.progress import DemoProgress
from flyball_lab.demo.run_folder import RunFolder
from flyball_lab.demo.training_process import check_planner, check_training
from flyball_lab.demo.verdict import steps_of
from flyball_wire.messages import JobView, PlanView, StepView

_POLL_S = 0.25
_ALL_STEPS = 10_000


@dataclass(frozen=True, kw_only=True)
class TrainingWatch:
    """What is needed to watch one run.

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


def baseline_steps(client: PlannerClient) -> list[StepView]:
    """The steps measured at default clocks by all ranks; none before the job is known."""
    try:
        steps = client.list_steps(JOB_ID, limit=_ALL_STEPS)
    except PlannerRefusedError as error:
        if error.status == 404:
            return []
        raise
    return steps_of(steps, plan_version=None, num_ranks=NUM_STAGES)


def planned_steps(client: PlannerClient, version: int) -> list[StepView]:
    """The steps measured on this plan version by all ranks."""
    steps = client.list_steps(JOB_ID, limit=_ALL_STEPS)
    return steps_of(steps, plan_version=version, num_ranks=NUM_STAGES)


def planner_failed(error: PlannerError) -> DemoFailedError:
    """A planner call that failed, as the end of the demo."""
    return DemoFailedError(f"the planner did not do its part: {error}")
