"""`flyball unlock`: restores clocks that stayed locked."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

from flyball_client.governor.lock_record import (
    ClockHeldError,
    FoundRecord,
    LockRecord,
    find_all_records,
)
from flyball_client.governor.state_folder import StateRefusedError, all_state_dirs
from flyball_client.gpu._base import GpuError, GpuNotFoundError, SmClockRange
from flyball_client.gpu.registry import (
    find_gpu,
    gpu_argument,
    local_vendor,
    read_clock_settings,
    reset_clock,
)
from flyball_profiles.printable_text import printable
from flyball_wire.command.command import Command, CommandError

_UNKNOWN = (
    "no record says that a clock was left locked; a GPU's lock cannot be read:"
    " flyball unlock --all resets every GPU that no live rank uses"
)
_OWN_ONLY = "only root reads the records of other users"
_RESET_TOO = "a GPU that a live rank of another user uses was reset too"

# A record that cannot be held meanwhile; its clock is restored all the same.
_NOT_HELD = (ClockHeldError, StateRefusedError, OSError)

Outcome = Literal["restored", "in use", "refused", "failed"]


@dataclass(frozen=True, kw_only=True)
class Unlocked:
    """Outcome for one GPU's clock.

    Attributes:
        gpu: UUID, or the index where the UUID cannot be read.
        outcome: `restored`; `in use`: a live rank uses it, and the GPU was not named; `refused`:
            a live rank uses a named GPU; `failed`: it may still be locked.
        rank_name: Job and rank of the record; None: there is none.
        text: Description in one line.
    """

    gpu: str
    outcome: Outcome
    rank_name: str | None
    text: str


class Unlocker:
    """Restores clocks."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._to = environ.get("FLYBALL_RETURN_CLOCKS_MHZ")
        self._records: list[FoundRecord] = []
        self.refusals: list[str] = []
        for folder, owner in all_state_dirs(environ).items():
            try:
                self._records += find_all_records(folder, owner)
            except (StateRefusedError, OSError) as error:
                self.refusals.append(str(error))
        self.refusals += [record.refusal for record in self._records if record.refusal]

    def unlock_left(self) -> list[Unlocked]:
        """Restore every clock with a record whose rank or governor has ended."""
        unlocked: list[Unlocked] = []
        for found in self._records:
            if found.is_unattended and not found.is_taken(self._records):
                unlocked += self._unlock_left(found)
            elif found.holder is not None and not found.is_unattended:
                unlocked.append(_held(found, "in use"))
        return unlocked

    def _unlock_left(self, found: FoundRecord) -> list[Unlocked]:
        try:
            record = LockRecord.take_left(found)
        except _NOT_HELD:
            return [self._restore(found.uuid, [], found)]
        if record is None:  # restored a moment ago
            return []
        with contextlib.closing(record):
            return [self._restore(found.uuid, [record], found)]

    def unlock(self, uuid: str, *, force: bool) -> Unlocked:
        """Restore this GPU's clock, recorded or not.

        Args:
            uuid: UUID of the GPU.
            force: True: also where a live rank uses it, which may set it again.
        """
        records = [found for found in self._records if found.uuid == uuid]
        live = next((found for found in records if found.is_live), None)
        if live is not None and not force:
            return _held(live, "refused")
        left = [found for found in records if found.is_left]
        with contextlib.ExitStack() as stack:
            held: list[LockRecord] = []
            for found in left:
                with contextlib.suppress(*_NOT_HELD):
                    if (record := LockRecord.take_left(found)) is not None:
                        stack.callback(record.close)
                        held.append(record)
            return self._restore(uuid, held, live or (left[0] if left else None))

    def _restore(
        self,
        uuid: str,
        held: Sequence[LockRecord],
        found: FoundRecord | None,
    ) -> Unlocked:
        """Restore a clock, and clear the held records."""
        rank_name = None if found is None else found.rank_name
        try:
            reset_clock(uuid, self._environ)
        except (GpuError, ValueError) as error:
            text = f"{uuid}: its SM clock may still be locked: {error}"
            return Unlocked(gpu=uuid, outcome="failed", rank_name=rank_name, text=text)
        for record in held:
            record.clear()
        to = "the driver's default" if self._to is None else f"{self._to} MHz"
        text = f"{uuid}: its SM clock was restored to {to}"
        if rank_name is not None:
            text += f"; it was set for {rank_name}"
        if found is not None and found.is_live:
            text += f"; {found.process} is running and may set it again"
        return Unlocked(gpu=uuid, outcome="restored", rank_name=rank_name, text=text)


def _held(found: FoundRecord, outcome: Outcome) -> Unlocked:
    rank = found.rank_name or "a rank whose clock is not locked now"
    advice = "; end that rank, or add --force" if outcome == "refused" else ""
    return Unlocked(
        gpu=found.uuid,
        outcome=outcome,
        rank_name=found.rank_name,
        text=f"{found.uuid}: {outcome}: it is used by {rank}; {found.process} of user"
        f" {found.owner} is running{advice}",
    )


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
        help="restore this GPU's clock even if no lock is recorded; repeatable",
    )
    which.add_argument(
        "--all", action="store_true", help="restore all GPUs, even if no lock is recorded"
    )
    parser.add_argument(
        "--force", action="store_true", help="restore a GPU even if a live rank uses it"
    )
    parser.add_argument(
        "--to",
        type=_clock_range,
        metavar="LOWEST:HIGHEST",
        help="clocks to restore, MHz (default: FLYBALL_RETURN_CLOCKS_MHZ, else the driver's)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def _run(arguments: argparse.Namespace) -> int:
    environ = _environment(arguments.to)
    unlocker = Unlocker(environ)
    note = ""
    if arguments.gpu or arguments.all:
        unlocked = list(_unlock_named(unlocker, arguments.gpu, force=arguments.force))
        note = "" if os.geteuid() == 0 else f"{_OWN_ONLY}: {_RESET_TOO}"
    elif arguments.force:
        raise CommandError("--force needs --gpu INDEX|UUID or --all; it takes clocks from ranks")
    else:
        unlocked = unlocker.unlock_left()
        if all(gpu.outcome == "in use" for gpu in unlocked):
            note = _UNKNOWN if os.geteuid() == 0 else f"{_UNKNOWN}; {_OWN_ONLY}"
    if arguments.to is not None:
        # The range is passed as the variable; errors about it must name the option.
        unlocked = [
            replace(gpu, text=gpu.text.replace("FLYBALL_RETURN_CLOCKS_MHZ", "--to"))
            for gpu in unlocked
        ]
    refusals = unlocker.refusals
    if arguments.json:
        gpus = [asdict(gpu) for gpu in unlocked]
        print(json.dumps({"gpus": gpus, "refusals": refusals, "note": note}, indent=2))
    else:
        lines = [*(gpu.text for gpu in unlocked), *refusals, note]
        print("\n".join(printable(line) for line in lines if line))
    # A refused record may be of a clock that is locked; a named GPU was reset all the same.
    is_unknown = bool(refusals) and not (arguments.gpu or arguments.all)
    return int(is_unknown or any(gpu.outcome in {"refused", "failed"} for gpu in unlocked))


def _environment(to: SmClockRange | None) -> Mapping[str, str]:
    environ = dict(os.environ)
    if to is not None:
        environ["FLYBALL_RETURN_CLOCKS_MHZ"] = str(to)
    try:
        read_clock_settings(environ)
    except ValueError as error:
        raise CommandError(str(error)) from None
    return environ


def _unlock_named(unlocker: Unlocker, named: Sequence[str], *, force: bool) -> Iterator[Unlocked]:
    """Restore the clocks of the named GPUs; of all, if none is named."""
    vendor = local_vendor(os.environ)
    try:
        with vendor.session():
            # All are found before the first is changed.
            found = [find_gpu(each, os.environ)[2] for each in named] if named else vendor.uuids()
            if not found:
                raise GpuNotFoundError(f"{vendor.library} lists no GPU; see {vendor.lister}")
            for index, uuid in enumerate(dict.fromkeys(found)):
                if isinstance(uuid, GpuError):
                    text = f"GPU {index}: its SM clock may still be locked: {uuid}"
                    yield Unlocked(gpu=str(index), outcome="failed", rank_name=None, text=text)
                else:
                    yield unlocker.unlock(uuid, force=force)
    except GpuError as error:
        raise CommandError(str(error)) from None


COMMAND = Command(configure=_configure, run=_run)
