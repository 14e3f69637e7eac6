"""The life of a job as real sessions live it, against a real planner."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.planner.live import LivePlanner, live_planner
from tests.planner.patience import wait_until
from tests.planner.samples import profile_csv

from flyball_client.api.planner_client import PlannerClient
from flyball_client.gpu.emulated import EmulatedGpu
from flyball_client.helper.rank_agent import LinkTimes
from flyball_client.session.rank_session import RankSession
from flyball_profiles.stage_profile_csv import parse_stage_profile
from flyball_wire import routes
from flyball_wire.messages import JobRegistration, RankView

TIMES = LinkTimes(poll_wait_s=0.2, gather_s=0.01, first_retry_s=0.01, longest_retry_s=0.05)
JOB = routes.fill(routes.JOB, job_id="job")


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)


@contextmanager
def session(planner: LivePlanner, rank: int) -> Iterator[RankSession]:
    gpu = EmulatedGpu(
        parse_stage_profile(profile_csv()), rank, blocking_power_w=70.0, time_scale=1e-4
    )
    with (
        PlannerClient(str(planner.http.base_url)) as client,
        RankSession(
            gpu=gpu, planner=client, job_id="job", rank=rank, stage=rank, times=TIMES
        ) as opened,
    ):
        yield opened


def state(planner: LivePlanner) -> str:
    found: str = planner.http.get(JOB).raise_for_status().json()["state"]
    return found


def ranks(planner: LivePlanner) -> list[RankView]:
    return [RankView(**rank) for rank in planner.http.get(JOB).json()["ranks"]]


def test_a_job_ends_with_its_sessions_and_comes_back_with_the_next() -> None:
    with live_planner() as planner:
        planner.put_job().raise_for_status()
        planner.put_profile().raise_for_status()
        with session(planner, 0) as first, session(planner, 1) as second:
            # Each knows that it is registered, and so leaves at its end.
            wait_until(lambda: len(first.plans) == len(second.plans) == 1)
            assert all(rank.last_seen_at is not None for rank in ranks(planner))
            assert state(planner) == "planned"
        assert [rank.has_left for rank in ranks(planner)] == [True, True]
        wait_until(lambda: state(planner) == "ended")
        with session(planner, 0):
            wait_until(lambda: state(planner) == "planned")


def test_a_restart_with_other_stages_is_known_by_its_launcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "train")
    registration = JobRegistration(
        num_stages=2, num_microbatches=2, blocking_power_w=(70.0,), emulated=True
    )
    with live_planner() as planner, PlannerClient(str(planner.http.base_url)) as client:

        def register(num_stages: int, restart_count: int) -> None:
            told = {"run": "train", "restart_count": restart_count}
            client.put_job(
                "job", JobRegistration(**{**vars(registration), **told, "num_stages": num_stages})
            )

        register(2, 0)
        planner.put_profile().raise_for_status()
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
        with session(planner, 0):
            wait_until(lambda: len(ranks(planner)) == 1)
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
        # This rank is quicker than the one that registers the job.
        with session(planner, 1):
            register(3, 1)
            wait_until(lambda: [rank.rank for rank in ranks(planner)] == [1])
            assert state(planner) == "awaiting-profile"
        kept = planner.http.get(routes.fill(routes.JOB, job_id="job@1")).json()
        assert (kept["state"], kept["newest_version"]) == ("ended", 1)
        # Nobody else can take the name of a run that is kept.
        assert planner.put_job("job@2").status_code == 422
