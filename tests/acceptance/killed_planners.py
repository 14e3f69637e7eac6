"""Planners that are started and killed under ranks that train, and what has to hold afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import httpx
import pytest
from tests.planner.emulated_ranks import (
    BackgroundTraining,
    emulated_training,
    one_forward_one_backward,
)
from tests.planner.forked_command import ForkedCommand
from tests.planner.live import NO_AUTHORITIES, SERVE, serve_environment
from tests.planner.patience import PATIENCE_S
from tests.planner.ports import free_port

from flyball_client.api.planner_client import PlannerClient
from flyball_profiles.examples import load_example_profile
from flyball_profiles.stage_profile_csv import write_stage_profile
from flyball_wire.messages import JobRegistration, JobView
from flyball_wire.plan_options import TargetChange

JOB, NUM_RANKS, BLOCKING_POWER_W = "trained", 4, 83.64
# Before each step: what it takes is processor time.
PAUSE_S = 0.2
SLOWER = TargetChange(target="slowdown:0.1")
STAGES = load_example_profile().select_stages(tuple(range(NUM_RANKS)))
PROFILE = write_stage_profile(STAGES)


def registration(num_microbatches: int = 4) -> JobRegistration:
    return JobRegistration(
        num_stages=NUM_RANKS,
        num_microbatches=num_microbatches,
        blocking_power_w=(BLOCKING_POWER_W,),
        # Given: for what it measures itself a job would be planned again whenever that is.
        tail_ms=0.0,
        transfer_ms=(0.0,) * (NUM_RANKS - 1),
        reserve=0.0,
        emulated=True,
    )


class Planner:
    """A planner at one address on one database, started and killed as often as is wanted.

    Args:
        database: as `flyball serve --database` takes it.
        before: a command line that its command is put behind.
    """

    def __init__(self, database: str, *before: str) -> None:
        self._port = free_port()
        self._before = before
        self._command = ("serve", "--port", str(self._port), "--database", database)
        self._process: subprocess.Popen[str] | ForkedCommand | None = None
        self.url = f"http://127.0.0.1:{self._port}"
        self.client = PlannerClient(self.url, timeout_s=PATIENCE_S)

    def start(self) -> None:
        """It answers when this returns."""
        environment = serve_environment(FLYBALL_PLANNING_PROCESSES="0")
        self._process = (
            subprocess.Popen(
                (*self._before, *SERVE, *self._command),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
            if self._before
            else ForkedCommand(self._command, environment)
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert self.url in line, f"{line!r} {self._process.communicate(timeout=PATIENCE_S)}"

    def kill(self) -> str:
        """It ends at once; what it had written on stderr. Nothing where it does not run."""
        process, self._process = self._process, None
        if process is None:
            return ""
        process.kill()
        return process.communicate(timeout=PATIENCE_S)[1]

    @property
    def pid(self) -> int:
        """Of the process that runs."""
        assert self._process is not None
        return self._process.pid

    def job(self) -> JobView:
        """The job as it stands."""
        return self.client.get_job(JOB)

    def put_job(self) -> None:
        """Register the job and put its profile; it is planned when this returns."""
        self.client.put_job(JOB, registration())
        self.client.put_profile_csv(JOB, PROFILE)

    def status(self, path: str) -> int:
        """Return how a GET is answered."""
        url = f"{self.url}{path}"
        return httpx.get(url, timeout=PATIENCE_S, verify=NO_AUTHORITIES).status_code


@contextmanager
def planner_on(database: str, *before: str) -> Iterator[Planner]:
    made = Planner(database, *before)
    try:
        with made.client:
            yield made
    finally:
        made.kill()


def in_mounts_of_its_own(*commands: str) -> Sequence[str]:
    """A command line that gives what stands behind it mounts of its own, made by shell commands.

    Where that is not possible, a skip, with CI=true a failure.
    """
    script = " && ".join((*commands, 'exec "$@"'))
    command = ("unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh")
    is_possible = (
        shutil.which("unshare") is not None
        and not subprocess.run((*command, "true"), check=False, capture_output=True).returncode
    )
    if not is_possible:
        assert os.environ.get("CI") != "true", "no mount namespace can be had"
        pytest.skip("needs unshare and the right to make a mount namespace")
    return command


@contextmanager
def training_ranks(
    planner_urls: Sequence[str], *, num_microbatches: int = 4, pause_s: float = PAUSE_S
) -> Iterator[BackgroundTraining]:
    """Four emulated ranks that train with these planners, each with the next."""
    orders = one_forward_one_backward(NUM_RANKS, num_microbatches)
    with (
        emulated_training(
            planner_urls, JOB, STAGES, orders, blocking_power_w=BLOCKING_POWER_W
        ) as training,
        BackgroundTraining(training, lambda: pause_s) as ranks,
    ):
        yield ranks


def assert_all_is_measured(planner: Planner, ranks: BackgroundTraining) -> None:
    """Stop; every step of every rank is at the planner then, once."""
    num_steps = ranks.stop()
    ranks.training.await_measured()
    assert [rank.session.num_dropped_measurements for rank in ranks.training.ranks] == [0] * 4
    steps = planner.client.list_steps(JOB, limit=10_000)
    assert [step.step for step in steps] == list(range(num_steps))
    assert {step.num_ranks for step in steps} == {NUM_RANKS}
