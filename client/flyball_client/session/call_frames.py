"""Messages between a rank and the process that calls its planner: requests and bounded answers.

A request is a pickle, which the rank makes. An answer is never one, since the planner's bytes
have been in the process that writes it: it is a small JSON object, and for a plan arrays of
numbers. Reading the largest answer holds Python's lock for less than a millisecond at a time.
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
from dataclasses import asdict
from itertools import repeat
from typing import Any, cast

from flyball_client.api.errors import (
    PlannerBusyError,
    PlannerCutOffError,
    PlannerDistrustedError,
    PlannerRefusedError,
    PlannerUnavailableError,
)
from flyball_client.session.active_plan import (
    MAX_CYCLE_LENGTH,
    MAX_KINDS,
    MAX_PLAN_CLOCKS,
    MAX_TIMED_STEPS,
)
from flyball_client.session.plan_cursor import CompiledPlan
from flyball_client.session.planner_procedures import (
    MAX_COUNT,
    Answer,
    KnownPlan,
    UnusablePlanError,
)
from flyball_wire.errors import CodecError, FlyballError
from flyball_wire.messages import Accepted, MeasurementDetail, PlanVersion
from flyball_wire.rank_plan import MAX_INSTRUCTIONS

_LENGTH = struct.Struct("!Q")
_LENGTHS = struct.Struct("!II")
MAX_HEADER_BYTES = 16 * 2**10
_MAX_TEXT_CHARS = 1000
_INT_BYTES = 4
_FLOAT_BYTES = 8
# Another thread that waits for Python's lock has it after each array.
_YIELD_S = 0.0005

Receive = Callable[[int], bytes]
"""Returns exactly this number of bytes."""

_PLAIN_ERRORS: dict[str, type[FlyballError]] = {
    kind.__name__: kind
    for kind in (
        PlannerUnavailableError,
        PlannerCutOffError,
        PlannerDistrustedError,
        CodecError,
    )
}


def request_of(value: object) -> bytes:
    """Return a request of the rank."""
    content = pickle.dumps(value)
    return _LENGTH.pack(len(content)) + content


def read_request(receive: Receive) -> Any:  # noqa: ANN401 - what the rank has sent
    """Return the next request."""
    (length,) = _LENGTH.unpack(receive(_LENGTH.size))
    return pickle.loads(receive(length))  # noqa: S301 - the rank's own


def receive_from(connection: socket.socket, num_bytes: int, *, deadline_s: float | None) -> bytes:
    """Return exactly this number of bytes.

    Raises:
        EOFError: The other side has ended.
        TimeoutError: The deadline, of the monotonic clock in s, has passed.
    """
    received = bytearray(num_bytes)
    left = memoryview(received)
    while left:
        if deadline_s is not None:
            connection.settimeout(_until_s(deadline_s))
        num_received = connection.recv_into(left)
        if not num_received:
            raise EOFError
        left = left[num_received:]
    return bytes(received)


def _until_s(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def answer_of(answer: Answer) -> bytes:
    """Return an answer as it is sent to the rank."""
    if isinstance(answer, CompiledPlan):
        header, arrays = _plan_arrays(answer)
        return _framed({"plan": header}, b"".join(arrays))
    match answer:
        case PlanVersion():
            return _framed({"plan_version": asdict(answer)})
        case Accepted():
            return _framed({"accepted": asdict(answer)})
        case _:
            return _framed({"text": answer})


def failure_of(error: Exception) -> bytes:
    """Return a failed call as it is sent to the rank."""
    fields: dict[str, object] = {"kind": type(error).__name__, "text": str(error)[:_MAX_TEXT_CHARS]}
    match error:
        case PlannerRefusedError():
            fields["number"] = error.status
        case PlannerBusyError():
            fields["number"] = error.retry_after_s
        case UnusablePlanError():
            fields["number"], fields["plan_id"] = error.plan
        case _:
            pass
    return _framed({"error": fields})


def read_answer(receive: Receive) -> Answer:
    """Return the next answer, or raise the error of the failed call.

    Raises:
        ValueError, KeyError, TypeError: It is no answer.
        FlyballError: The call failed.
    """
    header_length, body_length = _LENGTHS.unpack(receive(_LENGTHS.size))
    if header_length > MAX_HEADER_BYTES:
        raise ValueError("the header is too long")
    header = cast("dict[str, Any]", json.loads(receive(header_length)))
    if "plan" in header:
        return _plan(header["plan"], body_length, receive)
    if body_length:
        raise ValueError("only a plan has arrays")
    if "error" in header:
        raise _error(**header["error"])
    if "plan_version" in header:
        fields = header["plan_version"]
        first_step = fields["first_step"]
        return PlanVersion(
            version=_count(fields["version"]),
            first_step=None if first_step is None else _count(first_step),
        )
    if "accepted" in header:
        fields = header["accepted"]
        return Accepted(stored=_count(fields["stored"]), next_post_s=float(fields["next_post_s"]))
    return _name(header["text"])


def _framed(header: dict[str, Any], body: bytes = b"") -> bytes:
    content = json.dumps(header).encode()
    return _LENGTHS.pack(len(content), len(body)) + content + body


def _error(kind: str, text: str, number: float = 0, plan_id: str | None = None) -> FlyballError:
    if kind == PlannerRefusedError.__name__:
        return PlannerRefusedError(text, status=int(number))
    if kind == PlannerBusyError.__name__:
        return PlannerBusyError(text, retry_after_s=float(number))
    if kind == UnusablePlanError.__name__:
        return UnusablePlanError(text, KnownPlan(_count(number), _name(plan_id)))
    return _PLAIN_ERRORS.get(kind, PlannerUnavailableError)(text)


def _name(value: object) -> str | None:
    return None if value is None else str(value)


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value <= MAX_COUNT:
        raise ValueError("a count is out of its bounds")
    return value


# ------------------------------------------------------------------ plans


def _plan_arrays(plan: CompiledPlan) -> tuple[dict[str, object], Iterable[bytes]]:
    """Return a plan's header and arrays; rows of its cycle that are equal are sent once."""
    kinds = tuple(dict.fromkeys(plan.kinds))
    rows = tuple(dict.fromkeys(plan.cycle_mhz or ()))
    index_of = {row: index for index, row in enumerate(rows)}
    header: dict[str, object] = {
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
    }
    number_of = {kind: number for number, kind in enumerate(kinds)}
    integers = (
        plan.microbatches,
        plan.chunks,
        plan.sm_clocks_mhz,
        *rows,
        tuple(index_of[row] for row in plan.cycle_mhz or ()),
        tuple(position for position, _, _ in plan.requests),
        tuple(after for _, after, _ in plan.requests),
    )
    return header, (
        bytes(map(number_of.__getitem__, plan.kinds)),
        *(array("i", numbers).tobytes() for numbers in integers),
        array("d", (offset_s for _, _, offset_s in plan.requests)).tobytes(),
    )


def _plan(header: dict[str, Any], num_bytes: int, receive: Receive) -> CompiledPlan:
    num = _bounded(header["num_instructions"], MAX_INSTRUCTIONS)
    num_rows = _bounded(header["num_rows"], MAX_PLAN_CLOCKS // max(num, 1))
    cycle_length = _bounded(header["cycle_length"], MAX_CYCLE_LENGTH)
    num_requests = _bounded(header["num_requests"], num)
    num_integers = (3 + num_rows) * num + cycle_length + 2 * num_requests
    if num_bytes != num + _INT_BYTES * num_integers + _FLOAT_BYTES * num_requests:
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
    return CompiledPlan(
        version=_count(header["version"]),
        kinds=tuple(map(kinds.__getitem__, numbers_of_kinds)),
        microbatches=microbatches,
        chunks=chunks,
        sm_clocks_mhz=sm_clocks_mhz,
        highest_sm_clock_mhz=_count(header["highest_sm_clock_mhz"]),
        num_raised=_count(header["num_raised"]),
        cycle_mhz=tuple(map(rows.__getitem__, cycle)) if cycle else None,
        requests=tuple(map(_request, positions, afters, offsets_s, repeat(num, num_requests))),
        plan_id=_name(header["plan_id"]),
        measurement_detail=MeasurementDetail(header["measurement_detail"]),
        num_timed_steps=_bounded(header["num_timed_steps"], MAX_TIMED_STEPS),
    )


def _request(position: int, after: int, offset_s: float, num: int) -> tuple[int, int, float]:
    if not (0 <= after < position <= num and 0 <= offset_s < math.inf):
        raise ValueError("a request of a plan is out of its bounds")
    return position, after, offset_s


def _bounded(value: object, most: int) -> int:
    count = _count(value)
    if count > most:
        raise ValueError("a plan is larger than its bounds")
    return count
