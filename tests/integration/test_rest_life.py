"""The life of a job as real sessions live it, against a real planner."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.planner.live import LivePlanner, live_planner
from tests.planner.patience import wait_until
from tests.planner.samples import profile_csv

from flyball_client.api.errors import PlannerRefusedError
from flyball_client.api.planner_client import PlannerClient
from flyball_client.gpu.emulated import EmulatedGpu
from flyball_client.helper.rank_agent import LinkTimes
from flyball_client.session.rank_session import RankSession
from flyball_client.session.registration import JobRegistrar
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
def session(planner: LivePlanner, rank: int, start_id: str | None = None) -> Iterator[RankSession]:
    gpu = EmulatedGpu(
        parse_stage_profile(profile_csv()), rank, blocking_power_w=70.0, time_scale=1e-4
    )
    with (
        PlannerClient(str(planner.http.base_url)) as client,
        RankSession(
            gpu=gpu,
            planner=client,
            job_id="job",
            rank=rank,
            stage=rank,
            times=TIMES,
            start_id=start_id,
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


def put_start(client: PlannerClient, start_id: str, *, num_stages: int = 2) -> None:
    registration = JobRegistration(
        num_stages=num_stages,
        num_microbatches=2,
        blocking_power_w=(70.0,),
        emulated=True,
        start_id=start_id,
        host="node-0",
    )
    client.put_job("job", registration)


def test_a_rank_of_another_start_waits_until_that_has_begun_and_holds_nothing_up() -> None:
    with live_planner() as planner, PlannerClient(str(planner.http.base_url)) as client:
        put_start(client, "first")
        planner.put_profile().raise_for_status()
        with session(planner, 0, "first"), session(planner, 1, "first"):
            wait_until(lambda: len(ranks(planner)) == 2)
            # This rank is quicker than the one that registers its start.
            with session(planner, 1, "second") as early:
                with pytest.raises(PlannerRefusedError, match="another start on"):
                    put_start(client, "second", num_stages=3)
                notes = planner.http.get(JOB).json()["notes"]
                assert any("refused a registration from node-0" in note for note in notes)
                overview = client.get_overview().jobs[0]
                assert overview.condition is not None
                assert overview.condition.name == "refused"
                assert (overview.condition.action or "").startswith("refused a registration from")
                assert early.active_version is None
                assert [rank.has_left for rank in ranks(planner)] == [False, False]
        with session(planner, 1, "second"):
            wait_until(lambda: all(rank.has_left for rank in ranks(planner)))
            put_start(client, "second", num_stages=3)
            wait_until(lambda: [rank.rank for rank in ranks(planner)] == [1])
            assert state(planner) == "awaiting-profile"
            assert planner.http.get(JOB).json()["notes"] == ["waits for ranks 0 and 2 to register"]
        kept = planner.http.get(routes.fill(routes.JOB, job_id="job@1")).json()
        assert (kept["state"], kept["newest_version"]) == ("ended", 1)
        # Nobody else can take the name of a run that is kept.
        assert planner.put_job("job@2").status_code == 422


def test_a_start_whose_count_is_lower_begins_once_the_ranks_before_it_have_left() -> None:
    """Agents of torchrun count restarts each for themselves, and a pod made anew begins at 0."""
    with live_planner() as planner, PlannerClient(str(planner.http.base_url)) as client:
        planner.put_job().raise_for_status()
        planner.put_profile().raise_for_status()
        for number, count in enumerate((0, 1, 0)):
            start = f"start-{number}"
            planner.put_job(start_id=start, run="train", restart_count=count).raise_for_status()
            with session(planner, 0, start), session(planner, 1, start):
                wait_until(lambda: [each.has_left for each in ranks(planner)] == [False, False])
            wait_until(lambda: [each.has_left for each in ranks(planner)] == [True, True])
        assert client.get_job("job").newest_version == 1


# Of two stages, by the number of microbatches: what each stage runs.
_ORDERS = {
    1: ("F0 B0", "F0 B0"),
    2: ("F0 F1 B0 B1", "F0 B0 F1 B1"),
}


def run_step(sessions: tuple[RankSession, RankSession], num_microbatches: int) -> set[int | None]:
    """Run a step on both ranks; return the plan versions that were in force in it."""
    versions: set[int | None] = set()
    for opened, order in zip(sessions, _ORDERS[num_microbatches], strict=True):
        opened.on_step_begin()
        versions.add(opened.active_version)
        for kind, microbatch in map(tuple, order.split()):
            name = {"F": "forward", "B": "backward"}[kind]
            opened.on_instruction_begin(name, microbatch=int(microbatch))
            opened.on_instruction_end(name)
        opened.on_step_end()
    return versions


def test_a_training_that_changes_its_microbatches_is_planned_for_each_number() -> None:
    with live_planner() as planner, PlannerClient(str(planner.http.base_url)) as client:
        registration = JobRegistration(
            num_stages=2, num_microbatches=2, blocking_power_w=(70.0,), emulated=True
        )
        registrar = JobRegistrar(client, job_id="job", registration=registration, start_id="a1")
        wait_until(lambda: planner.http.get(JOB).is_success)
        planner.put_profile().raise_for_status()
        with session(planner, 0, "a1") as first, session(planner, 1, "a1") as second:
            first.watch_shape(registrar.take_microbatches)
            both = (first, second)
            wait_until(lambda: run_step(both, 2) == {1})
            # The first steps of another number leave the plan, and the next ones have none.
            assert [run_step(both, 1) for _ in range(3)] == [{1}, {1}, {None}]
            wait_until(lambda: run_step(both, 1) == {2})
            options = planner.http.get(JOB).json()["registration"]
            assert (options["num_microbatches"], state(planner)) == (1, "planned")
            # The plan for two is kept, and replaced by a version of its own.
            assert [run_step(both, 2) for _ in range(3)] == [{2}, {2}, {1}]
            wait_until(lambda: run_step(both, 2) == {3})
        registrar.close()
        steps = planner.http.get(routes.fill(routes.STEPS, job_id="job")).json()
        assert not any(step["num_unplanned"] for step in steps if step["plan_versions"] == [3])
