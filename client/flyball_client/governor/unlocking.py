"""Gives clocks back that a governor left locked, or that whoever asks wants back.

While a clock is given back its record is held, so that no governor starts on that GPU meanwhile;
where one lives already, it is left alone unless forced.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from flyball_client.governor.lock_record import (
    ClockHeldError,
    ClockHolder,
    LockRecord,
    find_records,
)
from flyball_client.gpu._base import GpuError
from flyball_client.gpu.open_gpu import open_by_uuid

Outcome = Literal["given back", "left alone", "refused", "failed"]


@dataclass(frozen=True, kw_only=True)
class Unlocked:
    """Outcome for one GPU's clock.

    Attributes:
        gpu: its UUID, or its index where it does not tell that.
        outcome: `left alone`: a living governor holds it, and nobody asked for this GPU;
            `refused`: a living governor holds a clock that was asked for; `failed`: it may
            still be locked.
        rank_name: whom the record names; None: there was none.
        text: one line for people.
    """

    gpu: str
    outcome: Outcome
    rank_name: str | None
    text: str


class Unlocker:
    """Gives clocks back.

    Args:
        state_dir: where the records are.
        environ: says who sets clocks, and to what they are given back.
    """

    def __init__(self, state_dir: Path, environ: Mapping[str, str]) -> None:
        self._state_dir = state_dir
        self._environ = environ
        self._to = environ.get("FLYBALL_RETURN_CLOCKS_MHZ")

    def unlock_left(self) -> list[Unlocked]:
        """Give back every clock whose record says locked and whose governors are dead."""
        unlocked: list[Unlocked] = []
        for found in find_records(self._state_dir):
            if found.is_held:
                unlocked.append(_held(found.holder.uuid, found.holder, "left alone"))
            else:
                unlocked += self._unlock_record(found.holder)
        return unlocked

    def unlock(self, uuid: str, *, force: bool) -> Unlocked:
        """Give this GPU's clock back, recorded or not.

        Args:
            uuid: of the GPU.
            force: also where a living governor holds it, which may set it again at any time.
        """
        try:
            record = LockRecord.take(self._state_dir, uuid)
        except ClockHeldError:
            holder = self._holder_of(uuid)
            if not force:
                return _held(uuid, holder, "refused")
            return self._restore(uuid, holder, "its governor lives and may set it again")
        except OSError as error:
            if not force:
                return self._no_record(uuid, error)
            return self._restore(uuid, None, "its record could not be looked at")
        with contextlib.closing(record):
            return self._restore_recorded(uuid, record)

    def _unlock_record(self, found: ClockHolder) -> list[Unlocked]:
        try:
            record = LockRecord.take(self._state_dir, found.uuid)
        except ClockHeldError:  # a governor has just started, and given it back first
            return [_held(found.uuid, self._holder_of(found.uuid), "left alone")]
        except OSError as error:
            return [self._no_record(found.uuid, error)]
        with contextlib.closing(record):
            if record.holder() is None:  # given back a moment ago
                return []
            return [self._restore_recorded(found.uuid, record)]

    def _restore_recorded(self, uuid: str, record: LockRecord) -> Unlocked:
        unlocked = self._restore(uuid, record.holder())
        if unlocked.outcome == "given back":
            record.clear()
        return unlocked

    def _restore(self, uuid: str, holder: ClockHolder | None, remark: str = "") -> Unlocked:
        rank_name = None if holder is None else _line(holder.rank_name)
        try:
            gpu = open_by_uuid(uuid, self._environ)
            try:
                gpu.reset_sm_clock()
            finally:
                with contextlib.suppress(GpuError):
                    gpu.close()
        except (GpuError, ValueError) as error:
            return Unlocked(
                gpu=uuid,
                outcome="failed",
                rank_name=rank_name,
                text=f"{_line(uuid)}: its SM clock may still be locked: {error}",
            )
        to = "the driver's default" if self._to is None else f"{self._to} MHz"
        whose = "" if rank_name is None else f"; it was set for {rank_name}"
        text = f"{uuid}: its SM clock was given back to {to}{whose}"
        return Unlocked(
            gpu=uuid,
            outcome="given back",
            rank_name=rank_name,
            text=f"{text}; {remark}" if remark else text,
        )

    def _holder_of(self, uuid: str) -> ClockHolder | None:
        for found in find_records(self._state_dir):
            if found.holder.uuid == uuid:
                return found.holder
        return None

    def _no_record(self, uuid: str, error: OSError) -> Unlocked:
        return Unlocked(
            gpu=uuid,
            outcome="failed",
            rank_name=None,
            text=f"{_line(uuid)}: its record in {self._state_dir} cannot be held:"
            f" {error.strerror or error}; run this as the user whose rank it was, or as root",
        )


def _held(uuid: str, holder: ClockHolder | None, outcome: Outcome) -> Unlocked:
    whose = "another rank" if holder is None else _line(holder.rank_name)
    process = "" if holder is None else f" (process {holder.rank_pid})"
    advice = "; end that rank, or add --force" if outcome == "refused" else ""
    return Unlocked(
        gpu=uuid,
        outcome=outcome,
        rank_name=None if holder is None else whose,
        text=f"{_line(uuid)}: {outcome}: the governor of {whose}{process} lives{advice}",
    )


def _line(text: str) -> str:
    """A text from a file that anybody may have written, in one harmless line."""
    return "".join(each if each.isprintable() else "?" for each in text)
