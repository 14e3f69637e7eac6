"""Reading an answer whole, but no more of it than a planner would send, and not for ever."""

from __future__ import annotations

import time
from collections.abc import Callable

import httpx

# A list of jobs with thousands of ranks each has some tens of MiB.
MAX_ANSWER_BYTES = 256 * 2**20
# httpx's timeout is for each piece: one byte a second would never end.
MAX_ANSWER_S = 60.0


class EndlessAnswerError(Exception):
    """An answer is larger, or comes more slowly, than any planner's; its text says which."""


def whole_answer(
    response: httpx.Response,
    *,
    max_bytes: int = MAX_ANSWER_BYTES,
    max_s: float = MAX_ANSWER_S,
    now_s: Callable[[], float] = time.monotonic,
) -> httpx.Response:
    """The answer with its body, decompressed; closes the one that is read from.

    Args:
        response: of which nothing but the head has been read.
        max_bytes: of the body after decompression.
        max_s: from now to the body's end, s.
        now_s: a clock that only goes forward, s.

    Raises:
        EndlessAnswerError: it is beyond a limit.
        httpx.RequestError: it breaks off, or cannot be decompressed.
    """
    body = bytearray()
    deadline_s = now_s() + max_s
    try:
        for piece in response.iter_bytes():
            body += piece
            if len(body) > max_bytes:
                raise EndlessAnswerError(f"its body is larger than {max_bytes} bytes")
            if now_s() > deadline_s:
                raise EndlessAnswerError(f"its body has not come to an end within {max_s:g} s")
    finally:
        response.close()
    # Its length and encoding were those of what came; the body is now what it stands for.
    headers = [
        (name, value)
        for name, value in response.headers.multi_items()
        if name.lower() not in {"content-encoding", "content-length", "transfer-encoding"}
    ]
    return httpx.Response(
        response.status_code, headers=headers, content=bytes(body), request=response.request
    )
