"""The JobStore contract as far as the REST API shows it, over a live server."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.planner.live import serve_environment, serve_process
from tests.planner.patience import PATIENCE_S
from tests.planner.samples import profile, profile_csv, rank_registration, registration

from flyball_profiles.stage_profile_csv import parse_stage_profile
from flyball_server.jobs.bounds import MAX_COUNT
from flyball_wire import routes
from flyball_wire.messages import TOKEN_HEADER

pytestmark = pytest.mark.slow
TOKEN = "the-operators"  # noqa: S105 - of this planner only
CSV = {"Content-Type": "text/csv"}
_NUMBERS = itertools.count(1)


@dataclass(frozen=True, kw_only=True)
class VisibleJob:
    """A job of a planner, by its name."""

    http: httpx.Client
    job_id: str

    def path(self, route: str, **parts: str | int) -> str:
        """The address of something of the job."""
        return routes.fill(route, job_id=self.job_id, **parts)

    def get(self, route: str, **parts: str | int) -> Any:  # noqa: ANN401 - JSON
        """Return what is there."""
        return self.http.get(self.path(route, **parts)).raise_for_status().json()

    def register(self, **changes: object) -> Any:  # noqa: ANN401 - JSON
        """Make it known: two stages, a rank each."""
        # A plan of this policy takes no time.
        body = registration(**{"policy": "uniform", **changes})
        answer = self.http.put(self.path(routes.JOB), json=body)
        return answer.raise_for_status().json()

    def register_rank(self, rank: int, stage: int | None = None, **changes: object) -> Any:  # noqa: ANN401 - JSON
        """On the stage of its own number, or another one."""
        body = rank_registration(rank if stage is None else stage, **changes)
        return self.http.put(self.path(routes.RANK, rank=rank), json=body).raise_for_status().json()

    def put_profile(self, text: str | None = None) -> Any:  # noqa: ANN401 - JSON
        """Of two stages."""
        path, content = self.path(routes.PROFILE), profile_csv() if text is None else text
        return self.http.put(path, content=content, headers=CSV).raise_for_status().json()

    def fill(self) -> None:
        """Register it, its two ranks, and its profile, of which version 1 is made."""
        self.register()
        for rank in (0, 1):
            self.register_rank(rank)
        self.put_profile()

    def measure(self, rank: int, *steps: dict[str, Any]) -> httpx.Response:
        """A rank has measured steps."""
        path = self.path(routes.RANK_MEASUREMENTS, rank=rank)
        return self.http.post(path, json={"steps": steps})

    def leave(self) -> None:
        """Its two ranks have."""
        for rank in (0, 1):
            self.http.post(self.path(routes.RANK_DEPARTURE, rank=rank), json={}).raise_for_status()

    def everything(self) -> dict[str, Any]:
        """All that is shown of what is stored of it."""
        routes_of_records = (
            routes.JOB,
            routes.PLANS,
            routes.STEPS,
            routes.STAGES_OF_STEPS,
            routes.STRAGGLERS,
            routes.TIMETABLE,
        )
        found = {route: self.get(route) for route in routes_of_records}
        answer = self.http.get(self.path(routes.PROFILE))
        return {**found, routes.PROFILE: answer.text if answer.is_success else None}


@contextmanager
def serving(database: Path) -> Generator[httpx.Client]:
    """A client of `flyball serve`, through which alone the store is seen; killed at the end."""
    environment = serve_environment(FLYBALL_TOKEN=TOKEN, FLYBALL_PLANNING_PROCESSES="0")
    with serve_process(database, environment=environment) as served:
        served.http.headers[TOKEN_HEADER] = TOKEN
        yield served.http


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of one planner for all tests of this file: each has jobs of its own."""
    with serving(tmp_path_factory.mktemp("visible") / "served.sqlite") as client:
        yield client


def new_job(http: httpx.Client) -> VisibleJob:
    """One that nobody has registered."""
    return VisibleJob(http=http, job_id=f"job-{next(_NUMBERS)}")


@pytest.fixture
def job(http: httpx.Client) -> VisibleJob:
    """A job that nobody has registered yet."""
    return new_job(http)


def step(number: int, **changes: object) -> dict[str, Any]:
    """A measured step."""
    return {"step": number, "plan_version": None, "time_s": 0.5, "energy_j": 10.0, **changes}


class TestJobStoreThroughRest:
    def test_a_job_comes_out_as_it_went_in(self, job: VisibleJob) -> None:
        body = registration(
            blocking_power_w=[70.1, 1 / 3],
            gpu="a100",
            activation_bytes=[1, MAX_COUNT],
            free_memory_bytes=[0, 7],
            reconfigure="greedy",
            effort="high",
            reserve=0.1 + 0.2,
            transitions={
                **dict.fromkeys(("up_p5_s", "up_p50_s", "up_p95_s"), 0.001 / 3),
                **dict.fromkeys(("down_p5_s", "down_p50_s", "down_p95_s"), 0.0),
                "call_p50_s": 0.001,
                "call_p95_s": 0.002,
                "queues_in_node": True,
                "starts_settled": True,
            },
            other_orders=[{"schedule": "envpipe", "line": "run ä"}],
            start_id="start ä",
            run="run ä",
            restart_count=3,
        )
        job.register(**body)
        told = job.get(routes.JOB)["registration"]
        assert {name: told[name] for name in body} == {**body, "num_ranks": 2}
        listed = [each for each in job.http.get(routes.JOBS).json() if each["job_id"] == job.job_id]
        assert [each["registration"] for each in listed] == [told]
        energy_j = 30 + 1 / 3
        for text in (profile_csv(), profile_csv(forward_energy_j=energy_j)):
            job.put_profile(text)
        told = job.http.get(job.path(routes.PROFILE)).raise_for_status().text
        assert parse_stage_profile(told) == profile(forward_energy_j=energy_j)
        job.register_rank(0, start_id="start ä")
        # Known from another database: the version is none of this job's.
        largest = step(MAX_COUNT, plan_version=MAX_COUNT, plan_id="other", num_overruns=MAX_COUNT)
        job.measure(0, largest).raise_for_status()
        (found,) = job.get(routes.STEPS)
        assert found["step"] == found["num_overruns"] == MAX_COUNT
        assert found["unknown_versions"] == [MAX_COUNT]

    def test_what_steers_a_job_comes_out_as_it_went_in_and_is_replaced(
        self, job: VisibleJob
    ) -> None:
        job.register(policy="frontier")
        job.register_rank(0)
        for slowdown in (2.0, 1 + 0.1 + 0.2):
            body = {"rank": 0, "slowdown": slowdown, "from_time": "2099-01-01T00:00:00.25+00:00"}
            job.http.post(job.path(routes.STRAGGLERS), json=body).raise_for_status()
        (straggler,) = job.get(routes.STRAGGLERS)
        assert straggler["slowdown"] == 1 + 0.1 + 0.2
        assert straggler["from_time"] == "2099-01-01T00:00:00.250000+00:00"
        window = {"from_time": "22:00", "until_time": "06:00", "target": "power:9"}
        timetable = {"windows": [{**window, "days": ["mon", "sun"]}], "timezone": "Europe/Vienna"}
        for put in ({"windows": [window]}, timetable):
            job.http.put(job.path(routes.TIMETABLE), json=put).raise_for_status()
        assert job.get(routes.TIMETABLE)["timetable"] == timetable

    def test_a_call_that_is_refused_stores_nothing(self, job: VisibleJob) -> None:
        def put(route: str, **content: Any) -> int:  # noqa: ANN401 - as httpx has it
            return job.http.put(job.path(route), **content).status_code

        assert job.measure(0, step(1)).status_code == 404
        assert put(routes.PROFILE, content=profile_csv(), headers=CSV) == 404
        job.register()
        assert job.measure(0, step(1)).status_code == 404
        job.fill()
        before = job.everything()
        assert job.measure(0, step(1), step(2, time_s=-1)).status_code == 422
        assert put(routes.TARGET, json={"target": "fastest", "what": 1}) == 422
        assert put(routes.PROFILE, content="no profile", headers=CSV) == 422
        assert put(routes.JOB, json=registration(num_stages=3)) == 409
        assert _without_times(job.everything()) == _without_times(before)

    def test_callers_at_once_lose_no_change(self, job: VisibleJob) -> None:
        # What steers a job is read, changed and stored whole: a lost change would be a straggler.
        job.register(num_ranks=8)
        with ThreadPoolExecutor(8) as threads:

            def announce(rank: int) -> int:
                body = {"rank": rank, "slowdown": 1.5 + rank}
                return job.http.post(job.path(routes.STRAGGLERS), json=body).status_code

            def measure(rank: int) -> list[int]:
                job.register_rank(rank, rank % 2, dp_rank=rank // 2)
                return [job.measure(rank, step(number)).status_code for number in range(5)]

            measured = [threads.submit(measure, rank) for rank in range(8)]
            assert [each.result(PATIENCE_S) for each in measured] == [[200] * 5] * 8
            told = list(threads.map(announce, range(8), timeout=PATIENCE_S))
        assert set(told) <= {200, 201}
        found = {each["rank"]: each["slowdown"] for each in job.get(routes.STRAGGLERS)}
        assert found == {rank: 1.5 + rank for rank in range(8)}
        assert [each["num_ranks"] for each in job.get(routes.STEPS)] == [8] * 5

    def test_a_job_is_forgotten_with_all_that_belongs_to_it_and_its_name_is_free(
        self, job: VisibleJob
    ) -> None:
        other = new_job(job.http)
        for each in (job, other):
            each.fill()
            each.measure(1, step(1)).raise_for_status()
        others = other.everything()
        path = job.path(routes.JOB)
        assert job.http.delete(path).status_code == 409
        job.leave()
        assert [job.http.delete(path).status_code for _ in range(2)] == [204, 404]
        assert job.http.get(job.path(routes.STEPS)).status_code == 404
        job.register()
        job.register_rank(1)
        found = job.everything()
        assert found[routes.PROFILE] is None
        assert found[routes.PLANS] == found[routes.STEPS] == []
        assert _without_times(other.everything()) == _without_times(others)

    def test_a_run_that_is_kept_under_another_name_keeps_all_that_belongs_to_it(
        self, job: VisibleJob
    ) -> None:
        job.fill()
        job.measure(0, step(3, plan_version=1)).raise_for_status()
        job.leave()
        before = _without_times(job.everything())
        job.register(num_microbatches=5)
        kept = replace(job, job_id=f"{job.job_id}@1")
        found = _without_times(kept.everything())
        for route in (routes.STEPS, routes.STAGES_OF_STEPS, routes.PROFILE):
            assert found[route] == before[route]
        (old_plan,), (kept_plan,) = before[routes.PLANS], found[routes.PLANS]
        assert kept_plan == {**old_plan, "job_id": kept.job_id}
        assert found[routes.JOB]["state"] == "ended"
        assert [each["rank"] for each in found[routes.JOB]["ranks"]] == [0, 1]
        assert job.get(routes.JOB)["ranks"] == job.get(routes.STEPS) == []


def test_a_planner_that_was_killed_and_starts_again_knows_everything(tmp_path: Path) -> None:
    with serving(tmp_path / "served.sqlite") as http:
        job = new_job(http)
        job.fill()
        held = {"version": 1, "current_step": 4}
        acknowledgement = job.path(routes.RANK_ACKNOWLEDGEMENT, rank=0)
        http.post(acknowledgement, json=held).raise_for_status()
        job.measure(0, step(1, time_s=1 / 3)).raise_for_status()
        before = _without_times(job.everything())
    with serving(tmp_path / "served.sqlite") as http:
        assert _without_times(replace(job, http=http).everything()) == before


def _without_times(found: Any) -> Any:  # noqa: ANN401 - JSON
    """The same without when ranks were heard of, which goes on, and what tells of that in words."""
    if isinstance(found, dict):
        left_out = {"last_seen_at", "notes", "condition"}
        return {name: _without_times(of) for name, of in found.items() if name not in left_out}
    return [_without_times(of) for of in found] if isinstance(found, list) else found
