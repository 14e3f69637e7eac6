"""The overview as its callers see it: joined once for operators, a job's own for its token."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import cast

from tests.planner.jobs_to_show import PLANNED
from tests.planner.patience import PATIENCE_S, wait_until

from flyball_server.http.overviews import Overviews
from flyball_server.views.job_figures import SharedReading
from flyball_wire.read_models import JobOverview


def overview(job_id: str) -> JobOverview:
    return replace(PLANNED, job_id=job_id)


class SlowReading:
    """Overviews of which the older are returned when newer ones are there already."""

    def __init__(self) -> None:
        self.num_asked = 0
        self.may_tell_older = threading.Event()

    def overviews(self) -> tuple[JobOverview, ...]:
        self.num_asked += 1
        is_newer = self.num_asked > 1
        assert is_newer or self.may_tell_older.wait(PATIENCE_S)
        return (overview("newer" if is_newer else "older"),)


def test_older_figures_are_not_rendered_after_newer_ones() -> None:
    reading = SlowReading()
    looking = Overviews(cast("SharedReading", reading))
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(looking.read)
        wait_until(lambda: reading.num_asked == 1)
        second = threads.submit(looking.read)
        time.sleep(0.05)  # the second, were it let in, would be through by then
        reading.may_tell_older.set()
        seen = [each.result().jobs[0][0] for each in (first, second)]
    assert seen == ["older", "newer"]
    assert looking.read().jobs[0][0] == "newer"
