"""Reconciler of the ranks' placement: GPUs of a node whose clock changes queue."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable

from flyball_server.jobs.errors import InvalidFieldError
from flyball_server.jobs.findings.noting import note_findings
from flyball_server.jobs.job_state import OVER
from flyball_server.jobs.loop_state import JobLoopState
from flyball_server.jobs.records import JobRecord, RankRecord
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.wanted.request import known_transitions

# Shortest period in s between reads, since a job may have thousands of ranks.
SHORTEST_PERIOD_S = 5.0


class PlacementReconciler:
    """Reconciler that finds which GPUs share a node, for the plan to count.

    The GPUs of a stage in one node change their clocks together. Where the calls that set them
    queue, the last GPU's clock comes later, and calls wait for those of other stages; the plan
    counts that once all ranks have registered.
    """

    runs_after_posts = None  # measurements move no rank

    def __init__(self) -> None:
        # By job, time of the last read, monotonic s.
        self._read_s: dict[str, float] = {}

    def __call__(self, services: JobServices, job_id: str) -> float | None:
        """Store where the job's ranks are, if they have moved; return the wait until a read."""
        with services.store.reading() as reader:
            job = reader.require_job(job_id)
            if job.state in OVER or not _is_queued(services, job):
                self._read_s.pop(job_id, None)
                return None
            wait_s = self._read_s.get(job_id, -SHORTEST_PERIOD_S) + SHORTEST_PERIOD_S
            wait_s -= time.monotonic()
            if wait_s > 0:
                return wait_s
            self._read_s[job_id] = time.monotonic()
            ranks = [rank for rank in reader.list_ranks(job_id) if not rank.has_left]
            loop_state = reader.find_loop_state(job_id)
        if len(ranks) < job.spec.num_expected_ranks:
            return None
        placed = (gpus_at_once(ranks), gpus_in_node(ranks))
        if placed == (loop_state.gpus_at_once, loop_state.gpus_in_node):
            return None

        def changed(now: JobRecord, current: JobLoopState) -> JobLoopState:
            if now.start_id != job.start_id:
                return current
            return current.evolve(gpus_at_once=placed[0], gpus_in_node=placed[1])

        why = f"has {placed[1]} GPUs in a node, {placed[0]} of a stage"
        note_findings(services, job_id, changed, why)
        return None


def gpus_at_once(ranks: Iterable[RankRecord]) -> int:
    """Return the largest number of GPUs that one stage has in one node."""
    return max(Counter((rank.stage, rank.node or rank.host) for rank in ranks).values())


def gpus_in_node(ranks: Iterable[RankRecord]) -> int:
    """Return the largest number of GPUs that the job has in one node."""
    return max(Counter(rank.node or rank.host for rank in ranks).values())


def _is_queued(services: JobServices, job: JobRecord) -> bool:
    if job.spec.gpus_at_once is not None and job.spec.gpus_in_node is not None:
        return False
    try:
        transitions = known_transitions(job.spec, services.gpu_window)
    except InvalidFieldError:  # which planning says
        return False
    return transitions is not None and transitions.is_queued
