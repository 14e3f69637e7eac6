"""The memory that a rank and its governor share: the request, signs of life, what came of it.

One page of 64-bit words in an anonymous file that the processes inherit. Each word has one
writer, and an aligned word is stored whole, so there is no lock: the rank overwrites its
request, and the governor serves whatever stands there when it looks. A text for people follows
the words.
"""

from __future__ import annotations

import mmap
import os
from typing import Final

# ------------------------------------------------------------------ written by the rank
REQUEST: Final = 0
"""The number of the request times 2**32, plus its MHz, or GIVE_BACK or QUIT."""
HOOK_NS: Final = 1
"""CLOCK_MONOTONIC of the rank's last sign of life without a request, ns."""
REQUESTED_NS: Final = 2
"""CLOCK_MONOTONIC of the last request, ns: another one."""

# ------------------------------------------------------------------ written by the governor
STATE: Final = 8
"""STARTING, READY, ENDED or GIVEN_UP."""
IN_FORCE_MHZ: Final = 9
"""The clock that is locked; 0: none."""
MAY_BE_LOCKED: Final = 10
"""1 from before the first lock until the clock has been given back."""
SERVED: Final = 11
"""The last request that was served."""
DELIVERED_NS: Final = 12
"""CLOCK_MONOTONIC when the governor saw that request, before it asked the GPU, ns."""
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
"""How often a standby had to take over from a governor that died."""
SAMPLES: Final = 23
"""Clocks that were read back settled and under load, with a clock set or without: the sum of their
MHz times 2**27, plus how many they are; `with_sample` and `samples_of`. In one word, since who
reads two may see one of them renewed and the other not yet. At five a second it lasts 150 days."""

STARTING: Final = 0
READY: Final = 1
ENDED: Final = 2
"""The clock was given back because the rank asked for it or is gone."""
GIVEN_UP: Final = 3
"""Clocks cannot be set any more; the text says why."""

MHZ_MASK: Final = 0xFFFF_FFFF
RESTORE: Final = 0
QUIT: Final = MHZ_MASK

_NUM_SAMPLES_BITS = 27
_WORD_MASK = 2**64 - 1

_SIZE = 4096
_TEXT_BEGIN = 2048
_LENGTH_BYTES = 2


class SharedState:
    """The mapped page; `words[REQUEST]` and so on.

    Args:
        fd: of the anonymous file; closed with the board.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map = mmap.mmap(fd, _SIZE)
        self.words = memoryview(self._map)[:_TEXT_BEGIN].cast("Q")

    @classmethod
    def create(cls) -> SharedState:
        """A new board, all zero."""
        fd = os.memfd_create("flyball-clock-board")
        try:
            os.ftruncate(fd, _SIZE)
            return cls(fd)
        except BaseException:
            os.close(fd)
            raise

    @property
    def text(self) -> str:
        """The last words of the governor, in one line."""
        begin = _TEXT_BEGIN + _LENGTH_BYTES
        length = int.from_bytes(self._map[_TEXT_BEGIN:begin], "little")
        return self._map[begin : begin + length].decode("utf-8", errors="replace")

    def write_text(self, text: str) -> None:
        """Leave a text; what does not fit is cut off."""
        begin = _TEXT_BEGIN + _LENGTH_BYTES
        line = " ".join(text.split()).encode()[: _SIZE - begin]
        self._map[begin : begin + len(line)] = line
        self._map[_TEXT_BEGIN:begin] = len(line).to_bytes(_LENGTH_BYTES, "little")

    def close(self) -> None:
        """Unmap and close; the other processes keep theirs."""
        self.words.release()
        self._map.close()
        os.close(self.fd)


def with_sample(samples: int, sm_clock_mhz: int) -> int:
    """The word SAMPLES with one more; where one of its parts is full, that begins again."""
    return samples + (sm_clock_mhz << _NUM_SAMPLES_BITS) + 1 & _WORD_MASK


def samples_of(samples: int) -> tuple[int, int]:
    """Return how many clocks the word SAMPLES has, and the sum of their MHz."""
    return samples & (1 << _NUM_SAMPLES_BITS) - 1, samples >> _NUM_SAMPLES_BITS
