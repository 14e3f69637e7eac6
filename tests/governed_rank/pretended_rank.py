"""A rank and its governor in one process, which has a record locked and sets no clock.

Run as a script by `pretended_rank`: it says when it holds the record, and ends with its standard
input.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flyball_client.governor.lock_record import ClockHolder, LockRecord, RankLock, show_governor

RANK_NAME = "job 'llm' rank 0"
# Of a rank that has ended.
_ENDED_BYTE = 1 << 42


@contextmanager
def pretended_rank(
    state_dir: Path, uuid: str, *, rank_name: str = RANK_NAME, is_clean: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """Start one, and kill it at the end.

    Args:
        state_dir: Folder of the record.
        uuid: UUID of the GPU.
        rank_name: Job and rank in the record.
        is_clean: Leave the record empty, as a governor does that has set no clock.
    """
    arguments = [str(state_dir), uuid, "" if is_clean else rank_name]
    with subprocess.Popen(
        [sys.executable, __file__, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def leave_record(state_dir: Path, uuid: str) -> None:
    """Leave a record of a rank that has ended."""
    record = LockRecord.take(state_dir, uuid)
    _write(record, uuid, RANK_NAME, _ENDED_BYTE)
    record.close()


def _write(record: LockRecord, uuid: str, rank_name: str, rank_byte: int) -> None:
    record.write(ClockHolder(uuid=uuid, control="nvml", rank_name=rank_name, rank_byte=rank_byte))


def _hold(state_dir: Path, uuid: str, rank_name: str) -> None:
    rank_lock = RankLock(state_dir, uuid)
    record = LockRecord.take(state_dir, uuid)
    show_governor(record.fd, rank_lock.byte)
    if rank_name:
        _write(record, uuid, rank_name, rank_lock.byte)
    print("held", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    _hold(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
