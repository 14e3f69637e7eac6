"""Memory shared by a rank and its governor: request, lease, state and counters.

One page of 64-bit words in an anonymous file that the processes inherit. Each word has one
writer, and an aligned word is stored atomically, so there is no lock: the rank overwrites its
request, and the governor serves the newest. A timed request has words of its own, since the
request before it may not have been served yet. A text follows the words.
"""

from __future__ import annotations

import mmap
import os
from typing import Final

# ------------------------------------------------------------------ written by the rank
REQUEST: Final = 0
"""Number of the request times 2**32, plus its MHz, or RESTORE or QUIT."""
HOOK_NS: Final = 1
"""CLOCK_MONOTONIC of the last hook without a request, ns."""
REQUESTED_NS: Final = 2
"""CLOCK_MONOTONIC of the last request, ns."""

TIMED_REQUEST: Final = 3
"""Last timed request, as REQUEST; dropped once that or SERVED has a higher number. 0: none."""
NOT_BEFORE_NS: Final = 4
"""CLOCK_MONOTONIC at which it is made, ns; see `tagged_ns`."""
PLAN_NUMBER: Final = 5
"""Number of plans that have taken effect, from 1: with a new plan a yielded clock is set again."""

# ------------------------------------------------------------------ written by the governor
STATE: Final = 8
"""STARTING, READY, ENDED or GIVEN_UP."""
IN_FORCE_MHZ: Final = 9
"""Locked clock in MHz; 0: none."""
MAY_BE_LOCKED: Final = 10
"""1 from before the first lock until the clock is restored."""
SERVED: Final = 11
"""Last served request."""
DELIVERED_NS: Final = 12
"""CLOCK_MONOTONIC before the GPU call of that request, ns."""
ACTIVE_PID: Final = 13
STANDBY_PID: Final = 14
NUM_SWITCHES: Final = 15
NUM_FAILURES: Final = 16
NUM_READS: Final = 17
NUM_MISSES: Final = 18
NUM_POWER_CAPPED: Final = 19
NUM_THERMALLY_CAPPED: Final = 20
SM_CLOCK_MHZ: Final = 21
NUM_TAKEOVERS: Final = 22
"""Number of takeovers by a standby."""
SAMPLES: Final = 23
"""Readings of the clock, settled and under load: the sum of their MHz times 2**27, plus their
number; see `with_sample` and `samples_of`. One word, so that both are read consistently. At five
readings a second it overflows after 150 days."""

RETURNED_NS: Final = 24
"""CLOCK_MONOTONIC after the last GPU call that set a clock, ns."""
NEXT_TRY_NS: Final = 25
"""CLOCK_MONOTONIC before which a GPU that fails is not called again, ns; 0: it does not fail."""
NUM_ASSERTED: Final = 26
"""Number of times that a clock was set again, since another program had changed it."""
YIELDED_PLAN: Final = 27
"""PLAN_NUMBER plus 1 of the plan whose clocks do not come to be in force; 0: none."""
YIELD_REASON: Final = 28
"""Why they do not: OTHERS, NO_EFFECT or APPLICATION; written before YIELDED_PLAN."""
HELD_MHZ: Final = 29
"""Clock that the GPU has in their place, MHz; written before YIELDED_PLAN."""

STARTING: Final = 0
READY: Final = 1
ENDED: Final = 2
"""The clock was restored on request, or because the rank has ended."""
GIVEN_UP: Final = 3
"""Clocks can no longer be set; the text has the reason."""

OTHERS: Final = 0
"""Another program has set its clock again."""
NO_EFFECT: Final = 1
"""The driver accepts clocks, and the GPU runs another clock."""
APPLICATION: Final = 2
"""The GPU runs its application clock, whatever is locked."""

MHZ_MASK: Final = 0xFFFF_FFFF
RESTORE: Final = 0
QUIT: Final = MHZ_MASK

_NUM_SAMPLES_BITS = 27
_WORD_MASK = 2**64 - 1
_NUMBER_SHIFT = 32
_NUMBER_MASK = 2**32 - 1
_TAG_MASK = 0xFF

_SIZE = 4096
_TEXT_BEGIN = 2048
_LENGTH_BYTES = 2


class SharedState:
    """Mapped page; `words[REQUEST]` and so on.

    Args:
        fd: Descriptor of the anonymous file; closed with the object.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map = mmap.mmap(fd, _SIZE)
        self.words = memoryview(self._map)[:_TEXT_BEGIN].cast("Q")

    @classmethod
    def create(cls) -> SharedState:
        """Create a page of zeros."""
        fd = os.memfd_create("flyball-clock-state")
        try:
            os.ftruncate(fd, _SIZE)
            return cls(fd)
        except BaseException:
            os.close(fd)
            raise

    @property
    def text(self) -> str:
        """Text of the governor, in one line."""
        begin = _TEXT_BEGIN + _LENGTH_BYTES
        length = int.from_bytes(self._map[_TEXT_BEGIN:begin], "little")
        return self._map[begin : begin + length].decode("utf-8", errors="replace")

    def write_text(self, text: str) -> None:
        """Write a text, truncated to the space."""
        begin = _TEXT_BEGIN + _LENGTH_BYTES
        line = " ".join(text.split()).encode()[: _SIZE - begin]
        self._map[begin : begin + len(line)] = line
        self._map[_TEXT_BEGIN:begin] = len(line).to_bytes(_LENGTH_BYTES, "little")

    def close(self) -> None:
        """Unmap and close the page in this process."""
        self.words.release()
        self._map.close()
        os.close(self.fd)


def is_newer(request: int, other: int) -> bool:
    """Return whether a request was made after another request; numbers start again after 2**32."""
    later_by = (request >> _NUMBER_SHIFT) - (other >> _NUMBER_SHIFT) & _NUMBER_MASK
    return 0 < later_by <= _NUMBER_MASK // 2


def yields(words: memoryview) -> bool:
    """Return whether the plan in force sets no clock, since none came to be in force."""
    return words[YIELDED_PLAN] == words[PLAN_NUMBER] + 1


def tagged_ns(moment_ns: int, request: int) -> int:
    """Return the first moment that ends with the last 8 bits of a request's number.

    By them a reader sees that NOT_BEFORE_NS and TIMED_REQUEST belong together.
    """
    return moment_ns + ((request >> _NUMBER_SHIFT) - moment_ns & _TAG_MASK)


def timed_request(words: memoryview) -> tuple[int, int] | None:
    """Return the timed request and its moment in ns; None: there is none, or it was dropped."""
    request, not_before_ns = words[TIMED_REQUEST], words[NOT_BEFORE_NS]
    if not request or not is_newer(request, words[SERVED]) or not is_newer(request, words[REQUEST]):
        return None
    # Otherwise it is being written, and the rank wakes the governor afterwards.
    is_whole = (request >> _NUMBER_SHIFT) & _TAG_MASK == not_before_ns & _TAG_MASK
    return (request, not_before_ns) if is_whole else None


def with_sample(samples: int, sm_clock_mhz: int) -> int:
    """Return the word SAMPLES with one more reading; a full part starts again at 0."""
    return samples + (sm_clock_mhz << _NUM_SAMPLES_BITS) + 1 & _WORD_MASK


def samples_of(samples: int) -> tuple[int, int]:
    """Return number and sum in MHz of the readings in the word SAMPLES."""
    return samples & (1 << _NUM_SAMPLES_BITS) - 1, samples >> _NUM_SAMPLES_BITS
