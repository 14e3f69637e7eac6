"""Typed calls to the planner, one method per route, over httpx.

Every call has a finite timeout and is safe to repeat, so each is repeated a few times when the
connection fails or a proxy says that the planner is away for a moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

import httpx

from flyball_client import routes
from flyball_client.codec import decode, decode_list, encode
from flyball_client.errors import CodecError, PlannerError, PlannerUnavailableError
from flyball_client.planner_errors import (
    CONNECTION_ERRORS,
    PASSING_STATUSES,
    error_from_exception,
    error_from_response,
    nonsense,
    parse_json,
)
from flyball_client.wire import (
    TOKEN_HEADER,
    Accepted,
    Acknowledgement,
    Activation,
    FrontierView,
    Health,
    JobRegistration,
    JobView,
    JsonProfile,
    MeasurementBatch,
    PlanView,
    ProfileRow,
    RankPlan,
    RankRegistration,
    RankView,
    StepView,
    TargetChange,
)

T = TypeVar("T")

MAX_WAIT_S = 60.0
# Calls that make a plan are answered when it is made; on a large pipeline that takes a while.
_PLANNING_WAIT_S = MAX_WAIT_S
_LONG_POLL_MARGIN_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Retries:
    """How often a call is repeated, and how long it pauses before, doubling each time.

    Attributes:
        num_attempts: calls in all, at least 1.
        first_pause_s: s, not negative.
    """

    num_attempts: int = 3
    first_pause_s: float = 0.1

    def __post_init__(self) -> None:
        if self.num_attempts < 1:
            raise ValueError(f"num_attempts must be at least 1, not {self.num_attempts}")
        if not self.first_pause_s >= 0:
            raise ValueError(f"first_pause_s must not be negative, as {self.first_pause_s} is")


class PlannerClient:
    """Calls to one planner; may be used from several threads at once.

    Redirects are not followed and proxies of the environment are not used: a planner stands
    close to its ranks, and its token is for nobody else. The token appears in no error text.

    Args:
        base_url: where the planner is, `http://127.0.0.1:7787`.
        token: sent with every call, if the planner asks for one.
        timeout_s: for connecting, sending and receiving each, s; long polls add their wait.
        transport: what carries the requests instead of the network, for tests.
        retries: repetition of calls that fail to arrive.
        sleep: pauses between attempts, s.

    Every method raises PlannerUnavailableError when the planner is away, fails, or answers
    nonsense, and PlannerRefusedError when it says no.
    """

    def __init__(
        self,
        base_url: str,
        *,
        token: str | None = None,
        timeout_s: float = 5.0,
        transport: httpx.BaseTransport | None = None,
        retries: Retries | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not timeout_s > 0:
            raise ValueError(f"timeout_s must be positive, not {timeout_s}")
        self._base_url = _printable_url(base_url)
        self._timeout_s = timeout_s
        self._retries = Retries() if retries is None else retries
        self._sleep = sleep
        self._http = httpx.Client(
            base_url=base_url,
            headers=_token_headers(token),
            timeout=timeout_s,
            follow_redirects=False,
            trust_env=False,
            transport=transport,
        )

    def __repr__(self) -> str:
        return f"PlannerClient({self._base_url!r})"

    def __enter__(self) -> PlannerClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def base_url(self) -> str:
        """Where the planner is, without any user name or password."""
        return self._base_url

    def close(self) -> None:
        """Give up the connections; any number of times."""
        self._http.close()

    def health(self) -> Health:
        """The planner's state and version."""
        return self._one(Health, "GET", routes.HEALTH)

    def put_job(self, job_id: str, registration: JobRegistration) -> JobView:
        """Make a job known, or change it."""
        path = routes.fill(routes.JOB, job_id=job_id)
        return self._one(JobView, "PUT", path, body=registration, wait_s=_PLANNING_WAIT_S)

    def get_job(self, job_id: str) -> JobView:
        """One job."""
        return self._one(JobView, "GET", routes.fill(routes.JOB, job_id=job_id))

    def list_jobs(self) -> tuple[JobView, ...]:
        """All jobs."""
        return self._many(JobView, "GET", routes.JOBS)

    def put_profile_csv(self, job_id: str, text: str) -> JobView:
        """Give a job its stage profile, as the CSV that it is."""
        path = routes.fill(routes.PROFILE, job_id=job_id)
        response = self._send(
            "PUT",
            path,
            content=text.encode(),
            headers={"Content-Type": "text/csv; charset=utf-8"},
            wait_s=_PLANNING_WAIT_S,
        )
        return self._decoded(JobView, response)

    def put_profile_rows(self, job_id: str, rows: tuple[ProfileRow, ...]) -> JobView:
        """Give a job its stage profile, row by row."""
        path = routes.fill(routes.PROFILE, job_id=job_id)
        return self._one(JobView, "PUT", path, body=JsonProfile(rows=rows), wait_s=_PLANNING_WAIT_S)

    def put_target(self, job_id: str, change: TargetChange) -> JobView:
        """Change how a job is planned from now on."""
        path = routes.fill(routes.TARGET, job_id=job_id)
        return self._one(JobView, "PUT", path, body=change, wait_s=_PLANNING_WAIT_S)

    def put_rank(self, job_id: str, rank: int, registration: RankRegistration) -> RankView:
        """Make a rank of a job known, or known again."""
        path = routes.fill(routes.RANK, job_id=job_id, rank=rank)
        return self._one(RankView, "PUT", path, body=registration)

    def get_rank_plan(
        self, job_id: str, rank: int, *, after_version: int = 0, wait_s: float = 0.0
    ) -> RankPlan | None:
        """The newest plan of a rank, if newer than `after_version`; None: none in `wait_s`.

        Args:
            job_id: the job.
            rank: the rank within it.
            after_version: the newest version already known; 0: none.
            wait_s: how long the planner holds the call open, s, at most 60.
        """
        path = routes.fill(routes.RANK_PLAN, job_id=job_id, rank=rank)
        query = {"after_version": str(after_version), "wait_s": _wait_text(wait_s)}
        response = self._send("GET", path, query=query, wait_s=wait_s)
        return None if response.status_code == 204 else self._decoded(RankPlan, response)

    def acknowledge(self, job_id: str, rank: int, acknowledgement: Acknowledgement) -> Activation:
        """Tell that a rank has a plan version; the answer may name its first step already."""
        path = routes.fill(routes.RANK_ACKNOWLEDGEMENT, job_id=job_id, rank=rank)
        return self._one(Activation, "POST", path, body=acknowledgement)

    def get_activation(self, job_id: str, version: int, *, wait_s: float = 0.0) -> Activation:
        """From which step a version holds; waits up to `wait_s` (at most 60) for it."""
        path = routes.fill(routes.ACTIVATION, job_id=job_id, version=version)
        response = self._send("GET", path, query={"wait_s": _wait_text(wait_s)}, wait_s=wait_s)
        return self._decoded(Activation, response)

    def post_measurements(self, job_id: str, rank: int, batch: MeasurementBatch) -> Accepted:
        """Store what a rank measured."""
        path = routes.fill(routes.RANK_MEASUREMENTS, job_id=job_id, rank=rank)
        return self._one(Accepted, "POST", path, body=batch)

    def list_plans(self, job_id: str) -> tuple[PlanView, ...]:
        """All plan versions of a job."""
        return self._many(PlanView, "GET", routes.fill(routes.PLANS, job_id=job_id))

    def get_plan(self, job_id: str, version: int) -> PlanView:
        """One plan version of a job."""
        path = routes.fill(routes.PLAN, job_id=job_id, version=version)
        return self._one(PlanView, "GET", path)

    def get_frontier(
        self, job_id: str, *, points: int | None = None, wait_s: float = 60.0
    ) -> FrontierView:
        """A job's time-energy frontier, which the planner may take `wait_s` to find.

        None points: as many as the planner gives.
        """
        query = {} if points is None else {"points": str(points)}
        path = routes.fill(routes.FRONTIER, job_id=job_id)
        return self._decoded(FrontierView, self._send("GET", path, query=query, wait_s=wait_s))

    def list_steps(self, job_id: str, *, limit: int | None = None) -> tuple[StepView, ...]:
        """Measured steps of a job in rising order; None: as many as the planner gives."""
        query = {} if limit is None else {"limit": str(limit)}
        path = routes.fill(routes.STEPS, job_id=job_id)
        return self._many(StepView, "GET", path, query=query)

    # ------------------------------------------------------------------ how a call is made

    def _one(
        self,
        target: type[T],
        method: str,
        path: str,
        *,
        body: object = None,
        wait_s: float | None = None,
    ) -> T:
        json = None if body is None else encode(body)
        return self._decoded(target, self._send(method, path, json=json, wait_s=wait_s))

    def _many(
        self, target: type[T], method: str, path: str, *, query: dict[str, str] | None = None
    ) -> tuple[T, ...]:
        data = parse_json(self._base_url, self._send(method, path, query=query))
        try:
            return decode_list(target, data)
        except CodecError as error:
            raise nonsense(self._base_url, str(error)) from None

    def _decoded(self, target: type[T], response: httpx.Response) -> T:
        try:
            return decode(target, parse_json(self._base_url, response))
        except CodecError as error:
            raise nonsense(self._base_url, str(error)) from None

    def _send(
        self,
        method: str,
        path: str,
        *,
        json: object = None,
        content: bytes | None = None,
        headers: dict[str, str] | None = None,
        query: dict[str, str] | None = None,
        wait_s: float | None = None,
    ) -> httpx.Response:
        if self._http.is_closed:
            raise PlannerUnavailableError("this PlannerClient is closed; make another")
        timeout = self._timeout(wait_s)
        request = self._http.build_request(
            method, path, json=json, content=content, headers=headers, params=query, timeout=timeout
        )
        for pause_s in self._pauses_s():
            failure, is_passing = self._attempt(request)
            if isinstance(failure, httpx.Response):
                return failure
            if not is_passing or pause_s is None:
                raise failure
            self._sleep(pause_s)
        raise AssertionError("the last pause is None")

    def _attempt(self, request: httpx.Request) -> tuple[httpx.Response | PlannerError, bool]:
        """What came back, and where it is a failure whether it may pass by itself."""
        try:
            response = self._http.send(request)
        except (httpx.RequestError, httpx.InvalidURL) as error:
            is_passing = isinstance(error, CONNECTION_ERRORS)
            return error_from_exception(self._base_url, error), is_passing
        if response.status_code in {200, 201, 204}:
            return response, False
        is_passing = response.status_code in PASSING_STATUSES
        return error_from_response(self._base_url, response), is_passing

    def _pauses_s(self) -> list[float | None]:
        doubling = range(self._retries.num_attempts - 1)
        return [*(self._retries.first_pause_s * 2**i for i in doubling), None]

    def _timeout(self, wait_s: float | None) -> httpx.Timeout:
        if wait_s is None:
            return httpx.Timeout(self._timeout_s)
        if not 0 <= wait_s <= MAX_WAIT_S:
            raise ValueError(f"wait_s must be from 0 to {MAX_WAIT_S:g}, not {wait_s}")
        margin_s = max(_LONG_POLL_MARGIN_S, self._timeout_s)
        return httpx.Timeout(self._timeout_s, read=wait_s + margin_s)


def _wait_text(wait_s: float) -> str:
    return f"{wait_s:g}"


def _token_headers(token: str | None) -> dict[str, str]:
    if token is None:
        return {}
    # httpx would put an unsendable value into its own error text.
    if not token.isascii() or not token.isprintable():
        raise ValueError("the planner's token must be printable ASCII text")
    return {TOKEN_HEADER: token}


def _printable_url(base_url: str) -> str:
    wanted = "the planner's address must be like http://HOST:PORT"
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL:
        raise ValueError(wanted) from None
    if url.scheme not in {"http", "https"} or not url.host:
        raise ValueError(wanted)
    return str(url.copy_with(username=None, password=None)).rstrip("/")
