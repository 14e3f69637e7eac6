"""Planners that are started and killed under ranks that train, and what has to hold afterwards."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from tests.acceptance.training_ranks import (
    BLOCKING_POWER_W,
    JOB,
    NUM_RANKS,
    TrainingRanks,
    trained_profile,
)
from tests.planner.forked_command import ForkedCommand
from tests.planner.live import SERVE, serve_environment
from tests.planner.patience import PATIENCE_S, wait_until
from tests.planner.ports import free_port

from flyball_client.api.planner_client import PlannerClient
from flyball_profiles.stage_profile_csv import write_stage_profile
from flyball_wire.messages import JobRegistration, JobView
from flyball_wire.plan_options import TargetChange

SLOWER = TargetChange(target="slowdown:0.1")
PROFILE = write_stage_profile(trained_profile())


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
        self._process = (
            subprocess.Popen(
                (*self._before, *SERVE, *self._command),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=serve_environment(),
            )
            if self._before
            else ForkedCommand(self._command, serve_environment())
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

    def put_job(self, num_microbatches: int = 4) -> None:
        """Register the job and put its profile; it is planned when this returns."""
        self.client.put_job(JOB, registration(num_microbatches))
        self.client.put_profile_csv(JOB, PROFILE)

    def status(self, path: str) -> int:
        """Return how a GET is answered."""
        return httpx.get(f"{self.url}{path}", timeout=PATIENCE_S).status_code


@contextmanager
def planner_on(database: str, *before: str) -> Iterator[Planner]:
    made = Planner(database, *before)
    try:
        with made.client:
            yield made
    finally:
        made.kill()


def await_version(ranks: TrainingRanks, version: int) -> None:
    wait_until(lambda: ranks.versions() == {version})


def await_measured(planner: Planner, step: int) -> None:
    """Wait until all ranks have posted up to this step: at their end they post for seconds only."""

    def is_there() -> bool:
        steps = planner.client.list_steps(JOB, limit=100)
        return any(one.step >= step and one.num_ranks == NUM_RANKS for one in steps)

    wait_until(is_there)


def assert_all_is_measured(planner: Planner, ranks: TrainingRanks) -> None:
    """Every step of every rank is at the planner, once."""
    await_measured(planner, min(ranks.num_steps()) - 1)
    trained = ranks.stop()
    assert ranks.num_dropped() == 0
    (num_steps,) = set(trained)
    steps = planner.client.list_steps(JOB, limit=10_000)
    assert [step.step for step in steps] == list(range(num_steps))
    assert {step.num_ranks for step in steps} == {NUM_RANKS}
