"""A planner that is killed, starved and corrupted under four ranks that train.

Training never stops, nothing that was measured is lost, and afterwards all go on from what was
stored.
"""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from tests.acceptance.killed_planners import (
    JOB,
    NUM_RANKS,
    PROFILE,
    SLOWER,
    Planner,
    assert_all_is_measured,
    in_mounts_of_its_own,
    planner_on,
    registration,
    training_ranks,
)
from tests.planner.live import NO_AUTHORITIES, SERVE, serve_environment
from tests.planner.patience import PATIENCE_S, wait_until

from flyball_client.api.errors import PlannerError
from flyball_wire import routes

NUM_REGISTRATION_KILLS = 2
# So many that a planning takes a second.
MANY_MICROBATCHES = 48


@pytest.fixture
def database_file(tmp_path: Path) -> Path:
    return tmp_path / "planner.sqlite"


@pytest.fixture
def planner(database_file: Path) -> Iterator[Planner]:
    with planner_on(f"sqlite:///{database_file}") as made:
        yield made


# ------------------------------------------------------------------ killed


def test_a_planner_that_is_killed_while_ranks_register_has_them_all_afterwards(
    planner: Planner,
) -> None:
    moments = random.Random(1)
    planner.start()
    planner.put_job()
    planner.kill()
    with training_ranks([planner.url]) as ranks:
        ranks.go_on(1)
        for _ in range(NUM_REGISTRATION_KILLS):
            planner.start()
            time.sleep(moments.uniform(0.0, 0.3))
            planner.kill()
        ranks.go_on()
        planner.start()
        wait_until(lambda: len(planner.job().ranks) == NUM_RANKS)
        wait_until(lambda: ranks.versions() == {planner.job().newest_version})
        assert_all_is_measured(planner, ranks)


def test_a_planner_that_is_killed_while_it_plans_plans_by_itself_when_it_is_back(
    planner: Planner,
) -> None:
    def put_profile() -> None:
        with suppress(PlannerError):
            planner.client.put_profile_csv(JOB, PROFILE)

    planner.start()
    with training_ranks([planner.url], num_microbatches=MANY_MICROBATCHES) as ranks:
        planner.client.put_job(JOB, registration(MANY_MICROBATCHES))
        wait_until(lambda: len(planner.job().ranks) == NUM_RANKS)
        putting = threading.Thread(target=put_profile)
        putting.start()
        wait_until(lambda: planner.status(routes.fill(routes.PROFILE, job_id=JOB)) == 200)
        assert planner.job().state == "awaiting-profile"
        planner.kill()
        ranks.go_on(5)
        planner.start()
        ranks.await_version(1)
        assert planner.job().state == "planned"
        putting.join(PATIENCE_S)
        assert_all_is_measured(planner, ranks)


# ------------------------------------------------------------------ starved and corrupted


def test_a_full_disk_is_told_of_and_nothing_is_lost_or_half_written(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    on_a_small_disk = in_mounts_of_its_own(f'mount -t tmpfs -o size=6m tmpfs "{folder}"')
    with planner_on(f"sqlite:///{folder}/planner.sqlite", *on_a_small_disk) as planner:
        planner.start()
        planner.put_job()
        with training_ranks([planner.url]) as ranks:
            ranks.await_version(1)
            filler = Path(f"/proc/{planner.pid}/root{folder}/filler")
            fill(filler)
            refused = wait_for_refusal(planner)
            assert refused == "The planner's job store is not available; see the planner's log"
            ranks.go_on()
            assert (planner.status(routes.HEALTH), planner.job().state) == (200, "planned")
            filler.unlink()
            planner.client.put_target(JOB, SLOWER)
            ranks.await_version(2)
            assert_all_is_measured(planner, ranks)
        log = planner.kill()
    assert "Traceback" not in log
    assert "planner.sqlite has no room" in log


def fill(filler: Path) -> None:
    """Leave no byte of its disk free."""
    with filler.open("wb", buffering=0) as opened, suppress(OSError):
        for size in (2**16, 1):
            with suppress(OSError):
                while True:
                    opened.write(bytes(size))


def wait_for_refusal(planner: Planner) -> str:
    """Return what a change is answered once the disk has no page left."""
    details: list[str] = []

    def is_refused() -> bool:
        path = routes.fill(routes.JOB, job_id=f"another-{len(details)}")
        answer = httpx.put(
            f"{planner.url}{path}",
            json={"num_stages": 2, "num_microbatches": 2, "blocking_power_w": [70.0]},
            timeout=PATIENCE_S,
            verify=NO_AUTHORITIES,
        )
        details.append(answer.json().get("detail", ""))
        return answer.status_code == 503

    wait_until(is_refused)
    return details[-1]


def test_a_corrupt_file_is_refused_and_left_as_it_is(
    planner: Planner, database_file: Path, tmp_path: Path
) -> None:
    planner.start()
    planner.put_job()
    with training_ranks([planner.url]) as ranks:
        ranks.await_version(1)
        planner.kill()
        for part in (database_file, *tmp_path.glob("planner.sqlite-*")):
            size = part.stat().st_size
            part.write_bytes(part.read_bytes()[:16] + bytes(max(size - 16, 0)))
        corrupt = database_file.read_bytes()
        refused = subprocess.run(
            (*SERVE, "serve", "--port", "0", "--database", f"sqlite:///{database_file}"),
            check=False,
            capture_output=True,
            text=True,
            env=serve_environment(),
            timeout=PATIENCE_S,
        )
        assert refused.returncode == 2
        (line,) = refused.stderr.splitlines()
        assert f"{database_file} is damaged" in line
        assert database_file.read_bytes() == corrupt
        ranks.go_on()
        assert ranks.versions() == {1}
        for part in tmp_path.glob("planner.sqlite*"):
            part.rename(f"{part}.damaged")
        planner.start()
        planner.put_job()
        # A planner that has forgotten them counts its versions from 1 again.
        wait_until(lambda: len(planner.job().ranks) == NUM_RANKS)
        wait_until(lambda: planner.job().active_version == planner.job().newest_version)
        ranks.go_on()
        ranks.stop()
