"""`flyball clocks`: which SM clocks each GPU supports, real or emulated from a profile."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from flyball_client.command import Command, CommandError
from flyball_client.gpu._base import GpuError
from flyball_client.gpu.emulated import profiled_clocks_mhz
from flyball_client.gpu.nvml import list_nvml_gpus
from flyball_profiles.stage_profile import ProfileError
from flyball_profiles.stage_profile_csv import read_stage_profile


@dataclass(frozen=True, kw_only=True)
class GpuClocks:
    """One GPU of the list; an emulated one's index is its stage, and it has no UUID."""

    index: int
    name: str
    uuid: str | None
    emulated: bool
    sm_clocks_mhz: tuple[int, ...]


def describe_clocks(clocks_mhz: Sequence[int]) -> str:
    """Clocks in rising order, equal steps drawn together: `210..1980 step 15, 2000`."""
    rising = sorted(set(clocks_mhz))
    parts: list[str] = []
    while rising:
        num_even = _num_even_steps(rising)
        run, rising = rising[:num_even], rising[num_even:]
        if len(run) < 3:
            # Two clocks are no range; the second may begin the next one.
            rising = run[1:] + rising
            parts.append(str(run[0]))
        else:
            parts.append(f"{run[0]}..{run[-1]} step {run[1] - run[0]}")
    return ", ".join(parts)


def _num_even_steps(rising: Sequence[int]) -> int:
    """How many clocks from the first on lie equally far apart."""
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
        help="show the emulated GPUs of this stage profile instead of the machine's own",
    )
    parser.add_argument("--stage", type=int, metavar="N", help="only this stage of the profile")


def _run(arguments: argparse.Namespace) -> int:
    profile: Path | None = arguments.profile
    stage: int | None = arguments.stage
    if profile is not None:
        gpus = _emulated_gpus(profile, stage)
    elif stage is not None:
        raise CommandError("--stage needs --profile PROFILE.csv; real GPUs have no stages")
    else:
        gpus = _real_gpus()
    print(_as_json(gpus) if arguments.json else _as_text(gpus))
    return 0


def _real_gpus() -> list[GpuClocks]:
    try:
        found = list_nvml_gpus()
    except GpuError as error:
        raise CommandError(
            f"{error}; --profile PROFILE.csv shows the clocks of an emulated GPU"
        ) from None
    if not found:
        raise CommandError(
            "NVML sees no GPU; --profile PROFILE.csv shows the clocks of an emulated GPU"
        )
    return [
        GpuClocks(
            index=gpu.index,
            name=gpu.name,
            uuid=gpu.uuid,
            emulated=False,
            sm_clocks_mhz=gpu.sm_clocks_mhz,
        )
        for gpu in found
    ]


def _emulated_gpus(file: Path, stage: int | None) -> list[GpuClocks]:
    try:
        profile = read_stage_profile(file)
    except ProfileError as error:
        raise CommandError(error.located(str(file))) from None
    stages = range(profile.num_stages) if stage is None else (stage,)
    if stage is not None and not 0 <= stage < profile.num_stages:
        raise CommandError(f"{file}: no stage {stage}; it has 0 to {profile.num_stages - 1}")
    return [
        GpuClocks(
            index=stage,
            name=f"emulated GPU of stage {stage}",
            uuid=None,
            emulated=True,
            sm_clocks_mhz=profiled_clocks_mhz(profile, stage),
        )
        for stage in stages
    ]


def _as_json(gpus: Sequence[GpuClocks]) -> str:
    return json.dumps({"gpus": [asdict(gpu) for gpu in gpus]}, indent=2)


def _as_text(gpus: Sequence[GpuClocks]) -> str:
    return "\n".join(_gpu_lines(gpu) for gpu in gpus)


def _gpu_lines(gpu: GpuClocks) -> str:
    head = gpu.name if gpu.uuid is None else f"GPU {gpu.index}  {gpu.name}  {gpu.uuid}"
    if not gpu.sm_clocks_mhz:
        return f"{head}\n  SM clocks: this GPU does not list any that can be locked"
    clocks = describe_clocks(gpu.sm_clocks_mhz)
    return f"{head}\n  SM clocks, MHz: {clocks} ({len(gpu.sm_clocks_mhz)} clocks)"


COMMAND = Command(
    summary="list the SM clocks that each GPU supports", configure=_configure, run=_run
)
