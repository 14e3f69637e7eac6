"""`flyball clocks`: SM clocks that each GPU supports, also as a file for the GPU table."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from flyball_client.gpu._base import GpuError
from flyball_client.gpu.emulated.execution import profiled_clocks_mhz
from flyball_client.gpu.registry import find_gpu, gpu_argument, local_vendor, vendor_of
from flyball_client.gpu.vendor import ListedGpu
from flyball_client.gpu.window_draft import draft_window, window_toml
from flyball_client.profiling.arguments import add_force, emulated_profile
from flyball_wire.command.command import Command, CommandError
from flyball_wire.command.whole_file import write_result

# `--gpu NAME` is case-insensitive and finds the file with the lower-case name.
_TABLE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def describe_clocks(clocks_mhz: Sequence[int]) -> str:
    """Return clocks in rising order, with equal steps combined: `210..1980 step 15, 2000`."""
    rising = sorted(set(clocks_mhz))
    parts: list[str] = []
    while rising:
        num_even = _num_even_steps(rising)
        run, rising = rising[:num_even], rising[num_even:]
        if len(run) < 3:
            # Two clocks are not a range; the second may begin the next one.
            rising = run[1:] + rising
            parts.append(str(run[0]))
        else:
            parts.append(f"{run[0]}..{run[-1]} step {run[1] - run[0]}")
    return ", ".join(parts)


def _num_even_steps(rising: Sequence[int]) -> int:
    """Return the number of clocks from the first on with equal steps."""
    for i in range(2, len(rising)):
        if rising[i] - rising[i - 1] != rising[1] - rising[0]:
            return i
    return len(rising)


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--profile",
        type=Path,
        metavar="PROFILE.csv",
        help="list the emulated GPUs of this stage profile instead of this machine's GPUs",
    )
    parser.add_argument("--stage", type=int, metavar="N", help="only this stage of the profile")
    parser.add_argument(
        "--gpu", type=gpu_argument, metavar="INDEX|UUID", help="only this GPU of the machine"
    )
    parser.add_argument(
        "--toml", metavar="NAME", help="print a draft of gpus/NAME.toml, a file of the GPU table"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="write that draft to this file"
    )
    add_force(parser)


def _run(arguments: argparse.Namespace) -> int:
    _check_combination(arguments)
    profile: Path | None = arguments.profile
    if profile is not None:
        gpus = _emulated_gpus(profile, arguments.stage)
    else:
        gpus = _real_gpus(arguments.gpu)
    if arguments.toml is None:
        print(_as_json(gpus) if arguments.json else "\n".join(map(_gpu_lines, gpus)))
    elif arguments.output is None:
        print(_toml(arguments.toml, gpus), end="")
    else:
        write_result(arguments.output, _toml(arguments.toml, gpus), replaces=arguments.force)
    return 0


def _check_combination(arguments: argparse.Namespace) -> None:
    if arguments.profile is None and arguments.stage is not None:
        raise CommandError("--stage needs --profile PROFILE.csv; real GPUs have no stages")
    if arguments.profile is not None and (arguments.gpu or arguments.toml is not None):
        raise CommandError("--gpu and --toml are for real GPUs; remove --profile")
    if arguments.toml is None and (arguments.output is not None or arguments.force):
        raise CommandError("-o and --force need --toml NAME")
    if arguments.toml is not None and arguments.json:
        raise CommandError("--toml prints TOML; remove --json")
    if arguments.toml is not None and _TABLE_NAME.fullmatch(arguments.toml) is None:
        raise CommandError(
            f"--toml: {arguments.toml!r} cannot be a GPU's name in the table; use lower-case"
            " letters, digits, '.', '_' and '-', such as h200"
        )


def _toml(name: str, gpus: Sequence[ListedGpu]) -> str:
    gpu = gpus[0]
    if any((other.name, other.sm_clocks_mhz) != (gpu.name, gpu.sm_clocks_mhz) for other in gpus):
        raise CommandError("--toml: the GPUs of this machine differ; choose one with --gpu")
    vendor = vendor_of(gpu.uuid or "")
    try:
        driver = vendor.driver_version()
    except GpuError as error:
        raise CommandError(str(error)) from None
    today = datetime.now(UTC).date().isoformat()
    origin = f"read from the {gpu.name} itself through {vendor.library} (driver {driver}, {today})"
    try:
        return window_toml(draft_window(name, gpu.sm_clocks_mhz, origin=origin), gpu.name)
    except ValueError as error:
        raise CommandError(f"--toml: {gpu.name}: {error}") from None


def _real_gpus(named: str | None) -> list[ListedGpu]:
    vendor = local_vendor(os.environ)
    found: list[ListedGpu] = []
    try:
        if named is not None:
            vendor, index, _ = find_gpu(named, os.environ)
            return [vendor.describe(index)]
        with vendor.session():
            num_gpus = len(vendor.uuids())
            for index in range(num_gpus):
                try:
                    found.append(vendor.describe(index))
                except GpuError as error:
                    print(f"flyball clocks: GPU {index}: {error}", file=sys.stderr)
    except GpuError as error:
        raise CommandError(
            f"{error}; --profile PROFILE.csv shows the clocks of an emulated GPU"
        ) from None
    if not num_gpus:
        raise CommandError(
            f"{vendor.library} lists no GPU; --profile PROFILE.csv shows the clocks of an emulated"
            " GPU"
        )
    if not found:
        raise CommandError("no GPU can be read; see flyball doctor")
    return found


def _emulated_gpus(file: Path, stage: int | None) -> list[ListedGpu]:
    profile = emulated_profile(file, stage or 0)
    return [
        ListedGpu(
            index=stage,
            name=f"emulated GPU of stage {stage}",
            uuid=None,
            sm_clocks_mhz=profiled_clocks_mhz((profile,), stage),
        )
        for stage in (range(profile.num_stages) if stage is None else (stage,))
    ]


def _as_json(gpus: Sequence[ListedGpu]) -> str:
    documents = [{**asdict(gpu), "emulated": gpu.uuid is None} for gpu in gpus]
    return json.dumps({"gpus": documents}, indent=2)


def _gpu_lines(gpu: ListedGpu) -> str:
    lines = [gpu.name if gpu.uuid is None else f"GPU {gpu.index}  {gpu.name}  {gpu.uuid}"]
    if gpu.sm_clocks_mhz:
        clocks = describe_clocks(gpu.sm_clocks_mhz)
        lines.append(f"SM clocks, MHz: {clocks} ({len(gpu.sm_clocks_mhz)} clocks)")
    else:
        lines.append("SM clocks: this GPU lists none that can be locked")
    if gpu.conditions is not None and gpu.conditions.text:
        lines.append(f"Conditions: {gpu.conditions.text}")
    return "\n  ".join(lines)


COMMAND = Command(configure=_configure, run=_run)
