"""Frames between a rank and its helper, which name an agent and an event, and have a body.

A frame of the rank is a pickle. One of the helper never is, since the planner's bytes have been
there: it is a small JSON object and the arrays of a plan or of times, whose sizes the rank checks
before it reads them. Reading the largest plan holds Python's lock for less than a millisecond at a
time.
"""

from __future__ import annotations

import json
import math
import pickle
import socket
import struct
import time
from array import array
from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any, cast

from flyball_client.session.active_plan import (
    MAX_CYCLE_LENGTH,
    MAX_KINDS,
    MAX_PLAN_CLOCKS,
    MAX_TIMED_STEPS,
)
from flyball_client.session.plan_cursor import CompiledPlan
from flyball_wire.measurements import MeasurementDetail
from flyball_wire.plans.rank_plan import MAX_INSTRUCTIONS

MAX_COUNT = 2**53
"""Largest version, and largest number of a step, which JSON's numbers keep exactly."""

_LENGTH = struct.Struct("!I")
_LENGTHS = struct.Struct("!II")
_MAX_HEADER_BYTES = 16 * 2**10
_MOST_AT_ONCE_BYTES = 64 * 2**10
_INT_BYTES = 4
_FLOAT_BYTES = 8
# Another thread that waits for Python's lock has it after each array.
_YIELD_S = 0.0005

Header = dict[str, Any]
Receive = Callable[[int], bytes]
"""Returns exactly this number of bytes."""


def rank_frame(agent: int, event: str, body: object) -> bytes:
    """Return a frame of the rank as it is sent."""
    content = pickle.dumps((agent, event, body))
    return _LENGTH.pack(len(content)) + content


def read_rank_frame(receive: Receive) -> tuple[int, str, Any]:
    """Return the agent, the event and the body of the rank's next frame."""
    (length,) = _LENGTH.unpack(receive(_LENGTH.size))
    frame: tuple[int, str, Any] = pickle.loads(receive(length))  # noqa: S301 - the rank's own
    return frame


def helper_frame(header: Header, body: bytes = b"") -> bytes:
    """Return a frame of the helper as it is sent."""
    content = json.dumps(header).encode()
    return _LENGTHS.pack(len(content), len(body)) + content + body


def read_header(receive: Receive) -> tuple[Header, int]:
    """Return the header of the helper's next frame, and the size in bytes of its body after it.

    Raises:
        ValueError: It is no frame.
    """
    header_length, body_length = _LENGTHS.unpack(receive(_LENGTHS.size))
    if header_length > _MAX_HEADER_BYTES:
        raise ValueError("the header is too long")
    return cast("Header", json.loads(receive(header_length))), body_length


class Received:
    """Reader of a connection in few calls, since each one waits for Python's lock again.

    `socket.makefile` has a lock, of which a forked child would get a copy that stays locked.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._left = b""

    @property
    def has_more(self) -> bool:
        """Return whether bytes were received that nobody has read."""
        return bool(self._left)

    def __call__(self, num_bytes: int) -> bytes:
        """Return exactly this number of bytes.

        Raises:
            EOFError: The other side has ended.
        """
        parts, num_left = [self._left], num_bytes - len(self._left)
        while num_left > 0:
            part = self._connection.recv(_MOST_AT_ONCE_BYTES)
            if not part:
                raise EOFError
            parts.append(part)
            num_left -= len(part)
        self._left = b"".join(parts)
        found, self._left = self._left[:num_bytes], self._left[num_bytes:]
        return found


def count_of(value: object, most: int = MAX_COUNT) -> int:
    """Return a count of a header; ValueError: it is none, or above `most`."""
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError("a count is out of its bounds")
    return value


# ------------------------------------------------------------------ steps


def read_times(num_bytes: int, receive: Receive) -> tuple[float, ...]:
    """Receive the times of a step's segments, s.

    Raises:
        ValueError: There are too many.
    """
    return tuple(array("d", receive(_checked_size(num_bytes, _FLOAT_BYTES))))


def _checked_size(num_bytes: int, size: int) -> int:
    if num_bytes % size or not 0 <= num_bytes <= size * MAX_INSTRUCTIONS:
        raise ValueError("an array is out of its bounds")
    return num_bytes


# ------------------------------------------------------------------ plans


def plan_parts(plan: CompiledPlan) -> tuple[Header, bytes]:
    """Return a plan's header and body; rows of its cycle that are equal are sent once."""
    kinds = tuple(dict.fromkeys(plan.kinds))
    rows = tuple(dict.fromkeys(plan.cycle_mhz or ()))
    index_of = {row: index for index, row in enumerate(rows)}
    header: Header = {
        "version": plan.version,
        "kinds": kinds,
        "num_instructions": len(plan.kinds),
        "num_rows": len(rows),
        "num_requests": len(plan.requests),
        "cycle_length": len(plan.cycle_mhz or ()),
        "highest_sm_clock_mhz": plan.highest_sm_clock_mhz,
        "num_raised": plan.num_raised,
        "plan_id": plan.plan_id,
        "measurement_detail": str(plan.measurement_detail),
        "num_timed_steps": plan.num_timed_steps,
        "has_step_plans": plan.has_step_plans,
        "num_baseline": len(plan.baseline_cycle),
    }
    number_of = {kind: number for number, kind in enumerate(kinds)}
    integers: Iterable[Iterable[int]] = (
        plan.microbatches,
        plan.chunks,
        plan.sm_clocks_mhz,
        *rows,
        (index_of[row] for row in plan.cycle_mhz or ()),
        (position for position, _, _ in plan.requests),
        (after for _, after, _ in plan.requests),
    )
    arrays = (
        bytes(map(number_of.__getitem__, plan.kinds)),
        *(array("i", numbers).tobytes() for numbers in integers),
        array("d", (offset_s for _, _, offset_s in plan.requests)).tobytes(),
        bytes(plan.baseline_cycle),
    )
    return header, b"".join(arrays)


def read_plan(header: Header, num_bytes: int, receive: Receive) -> CompiledPlan:
    """Receive the plan of such a header.

    Raises:
        ValueError, KeyError, TypeError: It is none, or exceeds its bounds.
    """
    num = count_of(header["num_instructions"], MAX_INSTRUCTIONS)
    num_rows = count_of(header["num_rows"], MAX_PLAN_CLOCKS // max(num, 1))
    cycle_length = count_of(header["cycle_length"], MAX_CYCLE_LENGTH)
    num_requests = count_of(header["num_requests"], num)
    num_integers = (3 + num_rows) * num + cycle_length + 2 * num_requests
    num_baseline = count_of(header["num_baseline"], MAX_CYCLE_LENGTH)
    num_single = num + num_baseline
    if num_bytes != num_single + _INT_BYTES * num_integers + _FLOAT_BYTES * num_requests:
        raise ValueError("the arrays have another size")
    kinds = [str(kind) for kind in header["kinds"][:MAX_KINDS]]
    numbers_of_kinds = receive(num)
    shared: dict[int, int] = {}

    def integers(length: int) -> tuple[int, ...]:
        time.sleep(_YIELD_S)
        numbers = array("i", receive(_INT_BYTES * length))
        # Equal numbers become one object.
        return tuple(map(shared.setdefault, numbers, numbers))

    microbatches, chunks, sm_clocks_mhz = integers(num), integers(num), integers(num)
    rows = [integers(num) for _ in range(num_rows)]
    cycle = integers(cycle_length)
    positions, afters = integers(num_requests), integers(num_requests)
    offsets_s = array("d", receive(_FLOAT_BYTES * num_requests))
    plan_id = header["plan_id"]
    return CompiledPlan(
        version=count_of(header["version"]),
        kinds=tuple(map(kinds.__getitem__, numbers_of_kinds)),
        microbatches=microbatches,
        chunks=chunks,
        sm_clocks_mhz=sm_clocks_mhz,
        highest_sm_clock_mhz=count_of(header["highest_sm_clock_mhz"]),
        num_raised=count_of(header["num_raised"]),
        cycle_mhz=tuple(map(rows.__getitem__, cycle)) if cycle else None,
        requests=tuple(map(_request, positions, afters, offsets_s, repeat(num, num_requests))),
        plan_id=None if plan_id is None else str(plan_id),
        measurement_detail=MeasurementDetail(header["measurement_detail"]),
        num_timed_steps=count_of(header["num_timed_steps"], MAX_TIMED_STEPS),
        has_step_plans=header["has_step_plans"] is True,
        baseline_cycle=tuple(map(bool, receive(num_baseline))),
    )


def _request(position: int, after: int, offset_s: float, num: int) -> tuple[int, int, float]:
    if not (0 <= after < position <= num and 0 <= offset_s < math.inf):
        raise ValueError("a request of a plan is out of its bounds")
    return position, after, offset_s
