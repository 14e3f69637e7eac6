"""PostgreSQL, and one of two planners on it, that end under four ranks that train."""

from __future__ import annotations

from tests.acceptance.killed_planners import (
    JOB,
    SLOWER,
    assert_all_is_measured,
    planner_on,
    training_ranks,
)
from tests.planner.patience import wait_until
from tests.postgres.server import PostgresServer

from flyball_wire import routes


def test_a_postgres_that_stops_under_load_is_waited_for(
    postgres_server: PostgresServer, postgres_database: str
) -> None:
    with planner_on(postgres_database) as planner:
        planner.start()
        planner.put_job()
        with training_ranks([planner.url]) as ranks:
            ranks.await_version(1)
            postgres_server.stop(kindly=False)
            try:
                ranks.go_on()
                assert ranks.versions() == {1}
                assert planner.status(routes.fill(routes.JOB, job_id=JOB)) == 503
                assert planner.status(routes.HEALTH) == 200
                assert planner.status("/readyz") == 503
            finally:
                postgres_server.start()
            wait_until(lambda: planner.status("/readyz") == 200)
            planner.client.put_target(JOB, SLOWER)
            ranks.await_version(2)
            assert_all_is_measured(planner, ranks)
        assert "Traceback" not in planner.kill()


def test_of_two_planners_one_is_killed_and_the_other_goes_on(postgres_database: str) -> None:
    with planner_on(postgres_database) as first, planner_on(postgres_database) as second:
        first.start()
        second.start()
        first.put_job()
        with training_ranks([first.url, second.url]) as ranks:
            ranks.await_version(1)
            first.kill()
            second.client.put_target(JOB, SLOWER)
            ranks.go_on(5)
            # Half of them cannot have heard of version 2, so none runs it.
            assert (second.job().newest_version, second.job().active_version) == (2, 1)
            assert ranks.versions() == {1}
            first.start()
            ranks.await_version(2)
            assert_all_is_measured(second, ranks)
