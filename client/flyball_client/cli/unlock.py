"""`flyball unlock`: restores clocks that stayed locked."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from flyball_client.governor.lock_record import (
    ClockHeldError,
    ClockHolder,
    LockRecord,
    default_state_dir,
    find_records,
)
from flyball_client.gpu._base import GpuError, GpuNotFoundError, SmClockRange
from flyball_client.gpu.clock_settings import ClockSettings
from flyball_client.gpu.nvml_facts import num_gpus, nvml_session, uuid_at
from flyball_client.gpu.open_gpu import gpu_argument, open_gpu_by_uuid, uuid_of
from flyball_wire.command import Command, CommandError

Outcome = Literal["restored", "in use", "refused", "failed"]


@dataclass(frozen=True, kw_only=True)
class Unlocked:
    """Outcome for one GPU's clock.

    Attributes:
        gpu: UUID, or the index where the UUID cannot be read.
        outcome: `restored`; `in use`: a running governor holds it, and the GPU was not named;
            `refused`: a running governor holds the clock of a named GPU; `failed`: it may still
            be locked.
        rank_name: Job and rank of the record; None: there is none.
        text: Description in one line.
    """

    gpu: str
    outcome: Outcome
    rank_name: str | None
    text: str


class Unlocker:
    """Restores clocks.

    Args:
        state_dir: Folder of the lock records.
        environ: Environment, with the settings of clocks.
    """

    def __init__(self, state_dir: Path, environ: Mapping[str, str]) -> None:
        self._state_dir = state_dir
        self._environ = environ
        self._to = environ.get("FLYBALL_RETURN_CLOCKS_MHZ")

    def unlock_left(self) -> list[Unlocked]:
        """Restore every clock with a record whose governors have ended."""
        unlocked: list[Unlocked] = []
        for found in find_records(self._state_dir):
            if found.is_held:
                unlocked.append(_held(found.holder.uuid, found.holder, "in use"))
            else:
                unlocked += self._unlock_record(found.holder)
        return unlocked

    def unlock(self, uuid: str, *, force: bool) -> Unlocked:
        """Restore this GPU's clock, recorded or not.

        Args:
            uuid: UUID of the GPU.
            force: True: also where a running governor holds it, which may set it again.
        """
        try:
            record = LockRecord.take(self._state_dir, uuid)
        except ClockHeldError:
            holder = self._holder_of(uuid)
            if not force:
                return _held(uuid, holder, "refused")
            return self._restore(uuid, holder, "its governor is running and may set it again")
        except OSError as error:
            if not force:
                return self._no_record(uuid, error)
            return self._restore(uuid, None, "its record could not be read")
        with contextlib.closing(record):
            return self._restore_recorded(uuid, record)

    def _unlock_record(self, found: ClockHolder) -> list[Unlocked]:
        try:
            record = LockRecord.take(self._state_dir, found.uuid)
        except ClockHeldError:  # a governor has just started, and restored it first
            return [_held(found.uuid, self._holder_of(found.uuid), "in use")]
        except OSError as error:
            return [self._no_record(found.uuid, error)]
        with contextlib.closing(record):
            if record.holder() is None:  # restored a moment ago
                return []
            return [self._restore_recorded(found.uuid, record)]

    def _restore_recorded(self, uuid: str, record: LockRecord) -> Unlocked:
        unlocked = self._restore(uuid, record.holder())
        if unlocked.outcome == "restored":
            record.clear()
        return unlocked

    def _restore(self, uuid: str, holder: ClockHolder | None, remark: str = "") -> Unlocked:
        rank_name = None if holder is None else _line(holder.rank_name)
        try:
            gpu = open_gpu_by_uuid(uuid, self._environ)
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
        text = f"{uuid}: its SM clock was restored to {to}{whose}"
        return Unlocked(
            gpu=uuid,
            outcome="restored",
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
            text=f"{_line(uuid)}: its record in {self._state_dir} cannot be locked:"
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
        text=f"{_line(uuid)}: {outcome}: the governor of {whose}{process} is running{advice}",
    )


def _line(text: str) -> str:
    """Return an untrusted text in one printable line."""
    return "".join(each if each.isprintable() else "?" for each in text)


def _clock_range(text: str) -> SmClockRange:
    try:
        return SmClockRange.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _configure(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--gpu",
        action="append",
        default=[],
        type=gpu_argument,
        metavar="INDEX|UUID",
        help="restore this GPU's clock, recorded as locked or not; may be repeated",
    )
    which.add_argument("--all", action="store_true", help="all GPUs, recorded as locked or not")
    parser.add_argument(
        "--force", action="store_true", help="also where a running governor holds the clock"
    )
    parser.add_argument(
        "--to",
        type=_clock_range,
        metavar="LOWEST:HIGHEST",
        help="restore this range, MHz (default: FLYBALL_RETURN_CLOCKS_MHZ, else the driver's)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def _run(arguments: argparse.Namespace) -> int:
    environ = _environment(arguments.to)
    unlocker = Unlocker(default_state_dir(environ), environ)
    if arguments.gpu or arguments.all:
        unlocked = list(_unlock_named(unlocker, arguments.gpu, force=arguments.force))
    elif arguments.force:
        raise CommandError("--force needs --gpu INDEX|UUID or --all; it takes clocks from ranks")
    else:
        unlocked = unlocker.unlock_left()
    if arguments.to is not None:
        # The range is passed as the variable; errors about it must name the option.
        unlocked = [
            replace(each, text=each.text.replace("FLYBALL_RETURN_CLOCKS_MHZ", "--to"))
            for each in unlocked
        ]
    print(_as_json(unlocked) if arguments.json else _as_text(unlocked))
    return 1 if any(each.outcome in {"refused", "failed"} for each in unlocked) else 0


def _environment(to: SmClockRange | None) -> Mapping[str, str]:
    environ = dict(os.environ)
    if to is not None:
        environ["FLYBALL_RETURN_CLOCKS_MHZ"] = str(to)
    try:
        ClockSettings.read(environ)
    except ValueError as error:
        raise CommandError(str(error)) from None
    return environ


def _unlock_named(unlocker: Unlocker, named: Sequence[str], *, force: bool) -> Iterator[Unlocked]:
    """Restore the clocks of the named GPUs; of all, if none is named."""
    try:
        with nvml_session():
            # All are found before the first is changed.
            targets = [uuid_of(each) for each in named] if named else _all_uuids()
            if not targets:
                raise GpuNotFoundError("NVML lists no GPU; see nvidia-smi -L")
            for target in dict.fromkeys(targets):
                yield (
                    target if isinstance(target, Unlocked) else unlocker.unlock(target, force=force)
                )
    except GpuError as error:
        raise CommandError(str(error)) from None


def _all_uuids() -> list[str | Unlocked]:
    """Return the UUID of every GPU; a failure for each that cannot be read."""
    uuids: list[str | Unlocked] = []
    for index in range(num_gpus()):
        try:
            uuids.append(uuid_at(index))
        except GpuError as error:
            text = f"GPU {index}: its SM clock may still be locked: {error}"
            uuids.append(Unlocked(gpu=str(index), outcome="failed", rank_name=None, text=text))
    return uuids


def _as_json(unlocked: Sequence[Unlocked]) -> str:
    return json.dumps({"gpus": [asdict(each) for each in unlocked]}, indent=2)


def _as_text(unlocked: Sequence[Unlocked]) -> str:
    lines = [each.text for each in unlocked]
    if not any(each.outcome != "in use" for each in unlocked):
        lines.append("no clock was left locked")
    return "\n".join(lines)


COMMAND = Command(summary="restore SM clocks that stayed locked", configure=_configure, run=_run)
