"""`flyball unlock`: clocks that stayed locked, given back."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace

from flyball_client.governor.lock_record import default_state_dir
from flyball_client.governor.unlocking import Unlocked, Unlocker
from flyball_client.gpu._base import GpuError, GpuNotFoundError, SmClockRange
from flyball_client.gpu.clock_settings import ClockSettings
from flyball_client.gpu.nvml_facts import num_gpus, nvml_session, uuid_at
from flyball_client.gpu.open_gpu import gpu_argument, uuid_of
from flyball_wire.command import Command, CommandError


def _clock_range(text: str) -> SmClockRange:
    lowest, _, highest = text.partition(":")
    try:
        return SmClockRange(lowest_mhz=int(lowest), highest_mhz=int(highest))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be LOWEST:HIGHEST in MHz, as 210:1410, not {text!r}"
        ) from None


def _configure(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--gpu",
        action="append",
        default=[],
        type=gpu_argument,
        metavar="INDEX|UUID",
        help="this GPU, recorded as locked or not; may be given again",
    )
    which.add_argument("--all", action="store_true", help="all GPUs, recorded as locked or not")
    parser.add_argument(
        "--force", action="store_true", help="also where a living governor holds the clock"
    )
    parser.add_argument(
        "--to",
        type=_clock_range,
        metavar="LOWEST:HIGHEST",
        help="give back to this range, MHz (default: FLYBALL_RETURN_CLOCKS_MHZ, else the driver's)",
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
        # The range went in as the variable; a complaint about it names the option.
        unlocked = [
            replace(each, text=each.text.replace("FLYBALL_RETURN_CLOCKS_MHZ", "--to"))
            for each in unlocked
        ]
    print(_as_json(unlocked) if arguments.json else _as_text(unlocked))
    return 1 if any(each.outcome in {"refused", "failed"} for each in unlocked) else 0


def _environment(to: SmClockRange | None) -> Mapping[str, str]:
    environ = dict(os.environ)
    if to is not None:
        environ["FLYBALL_RETURN_CLOCKS_MHZ"] = f"{to.lowest_mhz}:{to.highest_mhz}"
    try:
        ClockSettings.read(environ)
    except ValueError as error:
        raise CommandError(str(error)) from None
    return environ


def _unlock_named(unlocker: Unlocker, named: Sequence[str], *, force: bool) -> Iterator[Unlocked]:
    """Those that were named; without any, all."""
    try:
        with nvml_session():
            # All are found before the first is touched.
            targets = [uuid_of(each) for each in named] if named else _all_uuids()
            if not targets:
                raise GpuNotFoundError("NVML sees no GPU; nvidia-smi -L lists what there is")
            for target in dict.fromkeys(targets):
                yield (
                    target if isinstance(target, Unlocked) else unlocker.unlock(target, force=force)
                )
    except GpuError as error:
        raise CommandError(str(error)) from None


def _all_uuids() -> list[str | Unlocked]:
    """Of every GPU; one that does not tell it, as a lost one, has failed already."""
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
    if not any(each.outcome != "left alone" for each in unlocked):
        lines.append("no clock was left locked")
    return "\n".join(lines)


COMMAND = Command(summary="give back SM clocks that stayed locked", configure=_configure, run=_run)
