"""How a rank's calls go by its node's relay, and straight to the planner where there is none.

A relay that ends, hangs or never comes up costs a call some seconds at most, on threads that
training does not wait for. Every call may be repeated, so what a relay did not answer is sent
to the planner itself.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from urllib.parse import unquote

import httpx

from flyball_client.api.connection import printable_url
from flyball_client.api.trust import trusted_context
from flyball_client.relay.meeting_place import MeetingPlace, NoRelayError, meeting_place
from flyball_client.relay.messages import PING
from flyball_client.relay.relay_connection import (
    RelayConnections,
    RelayGoneError,
    RelayHangsError,
)

_logger = logging.getLogger(__name__)

_RANK_CALL = re.compile(r"/api/v1/jobs/([^/]+)/(?:ranks/\d+(?:/|$)|plans/\d+/activation$)")
_REGISTRATION = re.compile(r"/ranks/\d+$")
# How long a rank waits for a relay to come up, once, before it registers; and for another rank
# of the node to start it.
_COME_UP_S = 3.0
_LOOK_EVERY_S = 0.02
_PING_S = 0.5
_MARGIN_S = 2.0
# A relay that has answered so lately is there.
_FRESH_S = 2.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 5.0, 300.0
_SPAWN_S = 10.0
IDLE_S = 10.0


class RelayTransport(httpx.BaseTransport):
    """Carries a rank's calls. May be used from several threads at once.

    Args:
        direct: carries calls straight to the planner; closed with this.
        planner_url: of the planner, without user and password.
        ca_file: as for PlannerConnection; handed to a relay that is started here.
        starts_first: whether this rank starts the relay, and others of its node wait for that.
        start: starts a relay at a place; it may have been started by another rank since.
    """

    def __init__(
        self,
        direct: httpx.BaseTransport,
        *,
        planner_url: str,
        ca_file: str | None = None,
        starts_first: bool = True,
        start: Callable[[MeetingPlace, str, str | None], None] | None = None,
    ) -> None:
        self._direct = direct
        self._planner_url = planner_url
        self._ca_file = ca_file
        self._starts_first = starts_first
        self._start = start_relay if start is None else start
        self._meeting = threading.Lock()
        self._starting = threading.Lock()
        self._place: MeetingPlace | None = None
        self._relay: RelayConnections | None = None
        self._heard_s = -_FRESH_S
        # A relay that failed is left alone until then, longer each time.
        self._away_until_s = 0.0
        self._pause_s = _FIRST_PAUSE_S

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """The planner's answer, by the relay if it can be."""
        found = _RANK_CALL.search(request.url.path)
        if found is not None and time.monotonic() >= self._away_until_s:
            is_registration = _REGISTRATION.search(request.url.path) is not None
            response = self._by_relay(request, unquote(found[1]), may_wait=is_registration)
            if response is not None:
                return response
        return self._direct.handle_request(request)

    def close(self) -> None:
        """Give up the connections."""
        self._direct.close()
        if self._relay is not None:
            self._relay.close()

    def _by_relay(
        self, request: httpx.Request, job_id: str, *, may_wait: bool
    ) -> httpx.Response | None:
        """Its answer; None: it gave none."""
        relay = self._meet(job_id)
        if relay is None or not self._is_there(relay, may_wait=may_wait):
            return None
        times: dict[str, float | None] = request.extensions.get("timeout", {})
        try:
            answer = relay.call(
                request.method,
                request.url.raw_path.decode("ascii"),
                headers=request.headers,
                body=request.read(),
                # The relay itself tells when the planner does not answer in time.
                answer_s=(times.get("read") or 0.0) + _MARGIN_S,
            )
        except (RelayGoneError, RelayHangsError) as error:
            self._leave_alone(f"the call failed ({error})")
            return None
        self._heard_s = time.monotonic()
        self._pause_s = _FIRST_PAUSE_S
        return httpx.Response(answer.status, headers=answer.headers, content=answer.body)

    def _meet(self, job_id: str) -> RelayConnections | None:
        with self._meeting:
            if self._relay is None:
                try:
                    self._place = meeting_place(self._planner_url, job_id)
                except NoRelayError as error:
                    self._away_until_s = float("inf")
                    _logger.warning("the ranks of this node call the planner singly: %s", error)
                    return None
                self._relay = RelayConnections(self._place.socket)
            return self._relay

    def _is_there(self, relay: RelayConnections, *, may_wait: bool) -> bool:
        if time.monotonic() - self._heard_s < _FRESH_S:
            return True
        try:
            relay.call("GET", PING, answer_s=_PING_S)
        except RelayHangsError:
            # Another one cannot be made: this one holds the meeting place.
            self._leave_alone("it hangs")
            return False
        except RelayGoneError:
            return self._come_up(relay, may_wait=may_wait)
        return True

    def _come_up(self, relay: RelayConnections, *, may_wait: bool) -> bool:
        """Whether a relay is there now, which somebody has to start."""
        wait_s = _COME_UP_S if may_wait else 0.0
        if not (self._starts_first or may_wait) or not self._starting.acquire(blocking=False):
            return False
        try:
            is_up = not self._starts_first and self._looks_for(relay, wait_s)
            if not is_up and self._try_to_start():
                is_up = self._looks_for(relay, wait_s)
        finally:
            self._starting.release()
        if not is_up:
            # It may still come up; calls go straight until then.
            self._away_until_s = time.monotonic() + _FIRST_PAUSE_S
        return is_up

    def _looks_for(self, relay: RelayConnections, wait_s: float) -> bool:
        give_up_s = time.monotonic() + wait_s
        while True:
            with contextlib.suppress(RelayGoneError, RelayHangsError):
                relay.call("GET", PING, answer_s=_PING_S)
                self._heard_s = time.monotonic()
                return True
            if time.monotonic() > give_up_s:
                return False
            time.sleep(_LOOK_EVERY_S)

    def _try_to_start(self) -> bool:
        assert self._place is not None  # noqa: S101 - our own order of calls
        try:
            self._start(self._place, self._planner_url, self._ca_file)
        except (OSError, subprocess.SubprocessError) as error:
            self._leave_alone(f"it cannot be started ({error})")
            return False
        return True

    def _leave_alone(self, why: str) -> None:
        self._away_until_s = time.monotonic() + self._pause_s
        _logger.info("no relay for %g s, the planner is called itself: %s", self._pause_s, why)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        self._heard_s = -_FRESH_S


def open_relay_transport(planner_url: str, *, starts_first: bool) -> RelayTransport:
    """What carries a rank's calls to this planner; `starts_first` as in RelayTransport.

    Raises:
        ValueError: the address cannot be a planner's, or `FLYBALL_CA_FILE` cannot be used.
    """
    shown_url = printable_url(planner_url)
    direct = httpx.HTTPTransport(verify=trusted_context(shown_url, None), trust_env=False)
    return RelayTransport(direct, planner_url=shown_url, starts_first=starts_first)


def start_relay(
    place: MeetingPlace, planner_url: str, ca_file: str | None, *, idle_s: float = IDLE_S
) -> None:
    """Start a relay there, unless there is one; it is a process of its own at once.

    It ends by itself when no rank has been connected for `idle_s` seconds.

    Raises:
        OSError, subprocess.SubprocessError: it cannot be started.
    """
    charge = {
        "planner": planner_url,
        "socket": str(place.socket),
        "lock": str(place.lock),
        "ca_file": ca_file,
        "idle_s": idle_s,
    }
    # Each rank sends its token with its calls: the relay has none in its environment.
    environment = {name: text for name, text in os.environ.items() if name != "FLYBALL_TOKEN"}
    subprocess.run(
        [sys.executable, "-m", "flyball_client.relay"],
        input=json.dumps(charge).encode(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        timeout=_SPAWN_S,
        check=True,
    )
