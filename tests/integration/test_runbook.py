"""What docs/runbook.md promises of training: it goes on while it is switched off, or shut out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.integration.command_in_process import flyball
from tests.planner.emulated_ranks import (
    EmulatedTraining,
    emulated_training,
    one_forward_one_backward,
)
from tests.planner.live import LivePlanner, live_planner
from tests.planner.patience import wait_until
from tests.planner.samples import profile_csv

from flyball_profiles.stage_profile_csv import parse_stage_profile
from flyball_server.jobs.auth.access import create_token, revoke_token

_PROFILE = parse_stage_profile(profile_csv())
_HIGHEST_MHZ = 1410


@contextmanager
def trained(planner: LivePlanner, operator: str, job: str) -> Iterator[EmulatedTraining]:
    """Two ranks with the job's token."""
    with emulated_training(
        str(planner.http.base_url),
        "job",
        _PROFILE,
        one_forward_one_backward(2, 2),
        blocking_power_w=70.0,
        token=operator,
        rank_token=job,
    ) as ranks:
        yield ranks


def test_a_training_goes_on_at_its_highest_clocks_while_it_is_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with live_planner() as planner:
        store = planner.state.services.store
        (_, operator), (_, job) = (create_token(store, job_id=name) for name in (None, "job"))
        planner.http.headers["Flyball-Token"] = operator
        planner.put_job(target="slowdown:20%").raise_for_status()
        planner.put_profile().raise_for_status()
        monkeypatch.setenv("FLYBALL_PLANNER_URL", str(planner.http.base_url))
        monkeypatch.setenv("FLYBALL_TOKEN", operator)
        with trained(planner, operator, job) as ranks:
            ranks.train_until_in_force(1)
            assert min(mhz or 0 for mhz in ranks.steps[-1].clocks_mhz) < _HIGHEST_MHZ
            off = flyball("jobs", "off", "--all")
            ranks.train_until_in_force(2)
            assert ranks.steps[-1].clocks_mhz == {_HIGHEST_MHZ}
            undo = off.stdout.partition("undo: flyball ")[2].split()
            assert flyball(*undo).returncode == 0
            ranks.train_until_in_force(3)
            assert min(mhz or 0 for mhz in ranks.steps[-1].clocks_mhz) < _HIGHEST_MHZ


def test_ranks_whose_token_is_revoked_train_on_with_their_plan_and_the_next_start_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flyball_server.jobs.auth.access.REMEMBERED_S", 0.05)
    with live_planner() as planner:
        store = planner.state.services.store
        _, operator = create_token(store, job_id=None)
        old, old_token = create_token(store, job_id="job")
        planner.http.headers["Flyball-Token"] = operator
        planner.put_job().raise_for_status()
        planner.put_profile().raise_for_status()
        with trained(planner, operator, old_token) as ranks:
            ranks.train_until_in_force(1)
            _, new_token = create_token(store, job_id="job")
            revoke_token(store, old.token_id)
            refused = {"Flyball-Token": old_token}
            wait_until(lambda: planner.http.get("/api/v1/jobs/job", headers=refused).is_error)
            num_stored = len(ranks.planner.list_steps("job"))
            later = ranks.train(30)
            assert {version for step in later for version in step.versions} == {1}
            assert later[-1].clocks_mhz == ranks.steps[-31].clocks_mhz
            # What was on its way may still have been stored.
            assert len(ranks.planner.list_steps("job")) <= num_stored + 2
        with trained(planner, operator, new_token) as ranks:
            ranks.train_until_in_force(1)
            ranks.await_measured()
