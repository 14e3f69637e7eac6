"""A planner that lives in a test: one job, its plans in memory."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable
from typing import Any

import httpx
from tests.unit.client.recording_gpu import SUPPORTED_MHZ

from flyball_client.api.planner_client import PlannerClient, Retries
from flyball_client.helper.rank_agent import LinkTimes
from flyball_client.session.active_plan import compile_plan
from flyball_client.session.plan_cursor import CompiledPlan
from flyball_client.session.rank_session import RankSession
from flyball_wire import messages
from flyball_wire.codec import decode, encode
from flyball_wire.measurements import MeasurementBatch, StepMeasurement
from flyball_wire.plans.rank_plan import RankPlan, rank_plan

JOB_ID = "gpt"
START_ID = "65f1c0"
_RANK_PATH = re.compile(rf"^/api/v1/jobs/{JOB_ID}/ranks/(\d+)(/\w+)?$")
QUICK_TIMES = LinkTimes(poll_wait_s=0.1, first_retry_s=0.01, longest_retry_s=0.05)
SessionMaker = Callable[..., RankSession]
# However long a client is ready to wait, a test is not.
_LONGEST_WAIT_S = 0.2


Instruction = tuple[str, int, int] | tuple[str, int, int, int]
"""Kind, microbatch, clock in MHz, and a chunk other than 0."""


def plan_of(*instructions: Instruction, **changes: Any) -> RankPlan:  # noqa: ANN401 - of rank_plan
    """Return version 1 of a plan with these instructions."""
    fields = {"version": 1, "stage": 0, "first_step": None, "predicted_iteration_time_s": 1.0}
    rows = [(*row, 0) if len(row) == 3 else row for row in instructions]
    return rank_plan(rows, job_id=JOB_ID, **fields | changes)


def compiled_plan(*instructions: Instruction, **changes: Any) -> CompiledPlan:  # noqa: ANN401
    """Return a plan with these instructions, ready to follow on a RecordingGpu."""
    plan = plan_of(*instructions, **changes)
    return compile_plan(plan, stage=0, supported_mhz=SUPPORTED_MHZ)


class MemoryPlanner:
    """Answers what a rank session asks, as the real planner does, but never for another rank."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.registrations: list[messages.RankRegistration] = []
        self.acknowledgements: list[messages.Acknowledgement] = []
        self.measurements: dict[int, StepMeasurement] = {}
        self.plans: list[RankPlan] = []
        self.first_steps: dict[int, int] = {}
        self.knows_rank = False
        self.posting_starts: set[str | None] = set()
        self.left_start: str | None = None

    def client(self) -> PlannerClient:
        """A client without a network between."""
        return PlannerClient(
            "http://planner.test",
            transport=httpx.MockTransport(self.handle),
            retries=Retries(num_attempts=1),
        )

    def publish(
        self,
        *instructions: Instruction,
        **changes: Any,  # noqa: ANN401 - of rank_plan
    ) -> int:
        """Make a new plan version of these instructions."""
        with self.changed:
            version = len(self.plans) + 1
            self.plans.append(plan_of(*instructions, version=version, **changes))
            self.changed.notify_all()
            return version

    def name_first_step(self, version: int, first_step: int) -> None:
        """Let a version hold from this step."""
        with self.changed:
            self.first_steps[version] = first_step
            self.changed.notify_all()

    def handle(self, request: httpx.Request) -> httpx.Response:
        """The answer to a request."""
        query = dict(request.url.params)
        status, body = self.answer(request.url.path, query, request.read())
        return httpx.Response(status) if body is None else httpx.Response(status, json=body)

    def answer(self, path: str, query: dict[str, str], content: bytes) -> tuple[int, object]:
        """Status and JSON body."""
        with self.changed:
            self.changed.notify_all()
            wait_s = min(float(query.get("wait_s", "0")), _LONGEST_WAIT_S)
            data: Any = json.loads(content) if content else None
            rank = _RANK_PATH.match(path)
            if rank is not None and rank[2] is None:
                return self._register(int(rank[1]), data)
            if rank is None or not self.knows_rank:
                return 404, {"detail": f"nothing is known of {path}"}
            if rank[2] == "/departure":
                self.left_start = decode(messages.Departure, data).start_id
                return 204, None
            if rank[2] == "/plan":
                return self._newest_plan(int(query["after_version"]), wait_s)
            return self._take(rank[2], data, wait_s)

    def _take(self, what: str, data: object, wait_s: float) -> tuple[int, object]:
        if what == "/acknowledgement":
            acknowledgement = decode(messages.Acknowledgement, data)
            self.acknowledgements.append(acknowledgement)
            return self._activation(acknowledgement.version, wait_s)
        batch = decode(MeasurementBatch, data)
        self.posting_starts.add(batch.start_id)
        self.measurements |= {step.step: step for step in batch.steps}
        return 200, {"stored": len(batch.steps), "next_post_s": 1.0}

    def _register(self, rank: int, data: object) -> tuple[int, object]:
        registration = decode(messages.RankRegistration, data)
        self.registrations.append(registration)
        self.knows_rank = True
        view = encode(registration) | {
            "rank": rank,
            "acknowledged_version": None,
            "current_step": None,
            "start_id": START_ID,
        }
        return 200, view

    def _newest_plan(self, after_version: int, wait_s: float) -> tuple[int, object]:
        self.changed.wait_for(lambda: len(self.plans) > after_version, wait_s)
        if len(self.plans) <= after_version:
            return 204, None
        return 200, encode(self.plans[-1])

    def _activation(self, version: int, wait_s: float) -> tuple[int, object]:
        self.changed.wait_for(lambda: version in self.first_steps, wait_s)
        return 200, {"version": version, "first_step": self.first_steps.get(version)}


def run_noting(
    session: RankSession, rows: Iterable[tuple[str, int, int]], note: Callable[[], None]
) -> None:
    """One step of instructions of this kind and microbatch; `note` is called after each end hook.

    It is called after each begin hook too, but for that of the step.
    """
    session.on_step_begin()
    for kind, microbatch, _ in rows:
        session.on_instruction_begin(kind, microbatch=microbatch)
        note()
        session.on_instruction_end(kind, microbatch=microbatch)
        note()
    session.on_step_end()
    note()
