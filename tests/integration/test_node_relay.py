"""Ranks of a node behind a real relay process, and what becomes of their calls without it."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from tests.planner.live import LivePlanner, live_planner
from tests.planner.patience import PATIENCE_S, wait_until
from tests.planner.samples import rank_registration

from flyball_client.api.errors import PlannerRefusedError, PlannerUnavailableError
from flyball_client.api.planner_client import PlannerClient, Retries
from flyball_client.relay.meeting_place import MeetingPlace, meeting_place
from flyball_client.relay.messages import PING
from flyball_client.relay.relay_transport import RelayTransport, start_relay
from flyball_wire import routes
from flyball_wire.codec import decode
from flyball_wire.messages import (
    Acknowledgement,
    MeasurementBatch,
    RankRegistration,
    StepMeasurement,
)

IDLE_S = 0.5


@pytest.fixture
def planner() -> Iterator[LivePlanner]:
    with live_planner() as live:
        live.put_job()
        live.put_profile().raise_for_status()
        yield live


@pytest.fixture(autouse=True)
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of the test's own, whose relays have ended when it is over."""
    monkeypatch.setenv("FLYBALL_STATE_DIR", str(tmp_path))
    yield tmp_path
    for lock in (tmp_path / "relays").glob("*.lock"):
        wait_until(functools.partial(_is_free, lock))


class NoWay(httpx.BaseTransport):
    """Where a call must not go straight to the planner."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("only the relay may be called", request=request)


@contextmanager
def rank_client(
    url: str, *, direct: httpx.BaseTransport | None = None, starts_first: bool = True
) -> Iterator[PlannerClient]:
    transport = RelayTransport(
        direct or httpx.HTTPTransport(),
        planner_url=url,
        starts_first=starts_first,
        start=functools.partial(start_relay, idle_s=IDLE_S),
    )
    retries = Retries(num_attempts=1)
    with PlannerClient(url, token="t", transport=transport, retries=retries) as client:  # noqa: S106
        yield client


def url_of(planner: LivePlanner) -> str:
    return str(planner.http.base_url).rstrip("/")


def register(client: PlannerClient, rank: int) -> None:
    client.put_rank("job", rank, decode(RankRegistration, rank_registration(rank)))


def post(client: PlannerClient, rank: int, step: int) -> int:
    measured = StepMeasurement(step=step, plan_version=1, time_s=1.0, energy_j=2.0)
    return client.post_measurements("job", rank, MeasurementBatch(steps=(measured,))).stored


def relay_pid(place: MeetingPlace) -> int:
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(place.socket))) as http:
        return int(http.get(f"http://relay{PING}").json()["pid"])


def stored_steps(planner: LivePlanner) -> dict[int, int]:
    """By step, of how many ranks."""
    path = routes.fill(routes.STEPS, job_id="job")
    return {step["step"]: step["num_ranks"] for step in planner.http.get(path).json()}


def _is_free(lock: Path) -> bool:
    probe = "import fcntl,sys; fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    done = subprocess.run(
        [sys.executable, "-c", probe, str(lock)], capture_output=True, check=False
    )
    return done.returncode == 0


def test_the_ranks_of_a_node_call_by_one_relay_from_registration_to_measurement(
    planner: LivePlanner,
) -> None:
    url = url_of(planner)

    def run(rank: int) -> tuple[int, int | None]:
        with rank_client(url, direct=NoWay(), starts_first=rank == 0) as client:
            register(client, rank)
            plan = client.get_rank_plan("job", rank, wait_s=30.0)
            assert plan is not None
            held = Acknowledgement(version=plan.version, current_step=0)
            client.acknowledge("job", rank, held)
            first_step = client.get_activation("job", plan.version, wait_s=30.0).first_step
            assert [post(client, rank, step) for step in range(3)] == [1, 1, 1]
            return plan.stage, first_step

    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(run, (0, 1), timeout=PATIENCE_S))
    assert [stage for stage, _ in outcomes] == [0, 1]
    assert outcomes[0][1] == outcomes[1][1] is not None
    assert stored_steps(planner) == {0: 2, 1: 2, 2: 2}
    assert len(list((Path(os.environ["FLYBALL_STATE_DIR"]) / "relays").glob("*.lock"))) == 1


def test_ranks_that_wait_hear_of_a_new_plan_by_the_relay(planner: LivePlanner) -> None:
    url = url_of(planner)
    with rank_client(url, direct=NoWay()) as client, ThreadPoolExecutor(2) as pool:
        for rank in (0, 1):
            register(client, rank)
        polls = [
            pool.submit(client.get_rank_plan, "job", rank, after_version=1, wait_s=50.0)
            for rank in (0, 1)
        ]
        # One call waits at the planner, for both.
        wait_until(lambda: planner.state.waiters.num_waiting == 1)
        path = routes.fill(routes.TARGET, job_id="job")
        planner.http.put(path, json={"policy": "uniform"}).raise_for_status()
        found = [poll.result(PATIENCE_S) for poll in polls]
    assert [plan.stage for plan in found if plan is not None] == [0, 1]


def test_what_the_planner_refuses_a_rank_it_is_told(planner: LivePlanner) -> None:
    with rank_client(url_of(planner), direct=NoWay()) as client:
        register(client, 0)
        with pytest.raises(PlannerRefusedError, match="Rank 1 of job job is not known") as caught:
            post(client, 1, 0)
    assert caught.value.status == 404


def test_a_relay_that_is_killed_costs_no_call_and_no_measurement(planner: LivePlanner) -> None:
    url = url_of(planner)
    place = meeting_place(url, "job")
    with rank_client(url) as client, ThreadPoolExecutor(1) as pool:
        for rank in (0, 1):
            register(client, rank)
        assert [post(client, rank, 0) for rank in (0, 1)] == [1, 1]
        poll = pool.submit(client.get_rank_plan, "job", 0, after_version=1, wait_s=50.0)
        wait_until(lambda: planner.state.waiters.num_waiting == 1)
        os.kill(relay_pid(place), signal.SIGKILL)
        assert [post(client, rank, 1) for rank in (0, 1)] == [1, 1]
        # The poll was broken off with the relay, and goes straight to the planner.
        path = routes.fill(routes.TARGET, job_id="job")
        wait_until(lambda: planner.state.waiters.num_waiting >= 1)
        planner.http.put(path, json={"policy": "uniform"}).raise_for_status()
        found = poll.result(PATIENCE_S)
        assert found is not None
        assert found.version == 2
    assert stored_steps(planner) == {0: 2, 1: 2}


def test_a_relay_that_hangs_costs_no_measurement_and_is_left_alone(planner: LivePlanner) -> None:
    url = url_of(planner)
    with rank_client(url) as client:
        register(client, 0)
        assert post(client, 0, 0) == 1
        pid = relay_pid(meeting_place(url, "job"))
        os.kill(pid, signal.SIGSTOP)
        try:
            assert [post(client, 0, step) for step in (1, 2, 3)] == [1, 1, 1]
        finally:
            os.kill(pid, signal.SIGCONT)
    assert stored_steps(planner) == {0: 1, 1: 1, 2: 1, 3: 1}


def test_a_new_relay_takes_the_place_of_one_that_was_killed(planner: LivePlanner) -> None:
    url = url_of(planner)
    place = meeting_place(url, "job")
    with rank_client(url) as client:
        register(client, 0)
        first = relay_pid(place)
        os.kill(first, signal.SIGKILL)
        with rank_client(url, direct=NoWay()) as another:
            register(another, 1)
            assert relay_pid(place) != first


def test_a_planner_that_is_away_is_told_through_the_relay() -> None:
    with live_planner() as planner:
        planner.put_job()
        url = url_of(planner)
        with rank_client(url) as client:
            register(client, 0)
            wait_until(meeting_place(url, "job").socket.exists)
    with rank_client(url) as client, pytest.raises(PlannerUnavailableError, match="cannot be"):
        register(client, 0)


def test_without_a_relay_calls_go_to_the_planner(planner: LivePlanner) -> None:
    def fail(place: MeetingPlace, planner_url: str, ca_file: str | None) -> None:
        raise OSError("no")

    transport = RelayTransport(httpx.HTTPTransport(), planner_url=url_of(planner), start=fail)
    with PlannerClient(url_of(planner), transport=transport) as client:
        register(client, 0)
        assert post(client, 0, 0) == 1
    assert stored_steps(planner) == {0: 1}


def test_a_folder_that_is_not_the_users_alone_means_no_relay(
    planner: LivePlanner, state_dir: Path
) -> None:
    (state_dir / "relays").mkdir()
    (state_dir / "relays").chmod(0o755)
    with rank_client(url_of(planner)) as client:
        register(client, 0)
    assert not list((state_dir / "relays").iterdir())


def test_the_relay_has_no_token_in_its_environment(
    planner: LivePlanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYBALL_TOKEN", "a-secret-of-this-test")
    url = url_of(planner)
    with rank_client(url, direct=NoWay()) as client:
        register(client, 0)
        process = Path(f"/proc/{relay_pid(meeting_place(url, 'job'))}")
        assert b"a-secret-of-this-test" not in (process / "environ").read_bytes()
        assert url.encode() not in (process / "cmdline").read_bytes()


def test_a_relay_ends_when_its_ranks_are_gone(planner: LivePlanner) -> None:
    url = url_of(planner)
    with rank_client(url, direct=NoWay()) as client:
        register(client, 0)
        pid = relay_pid(meeting_place(url, "job"))
    wait_until(lambda: not _is_running(pid))
    assert not meeting_place(url, "job").socket.exists()


def _is_running(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
