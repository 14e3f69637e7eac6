"""Folders of the Perseus artifact: `perseus/GPU/LAYOUT/MODEL` with two files a run."""

from __future__ import annotations

import json
import re
from pathlib import Path

from flyball_profiles.limited_file import read_text
from flyball_server.replay.perseus_artifact import (
    ArtifactWorkload,
    RankClocks,
    RankMeasurements,
    measured_run,
    plan_clocks,
)
from flyball_server.replay.recorded_runs import RecordedRun, Recording, RecordingError
from flyball_wire.codec import decode_list
from flyball_wire.command.command import CommandError
from flyball_wire.errors import CodecError

_FILE = re.compile(r"(0|[1-9]\d{0,5})\.(?:prof|sched)\.json")
# File 0 is a run of warming up; the folder's plans follow the baseline, in the order they ran.
_BASELINE, _FIRST_PLAN = 1, 2


def workload_folders(root: Path) -> list[Path]:
    """Return all workloads' folders, `perseus/GPU/LAYOUT/MODEL` below the artifact's data.

    Raises:
        CommandError: there is none.
    """
    found = sorted(folder for folder in root.glob("perseus/*/*/*") if folder.is_dir())
    if not found:
        raise CommandError(
            f"{root}: has no folder perseus/GPU/LAYOUT/MODEL; --from-perseus takes the folder"
            " sosp24_data of the Perseus artifact"
        )
    return found


def read_workload(folder: Path) -> Recording:
    """Read one workload's baseline and plans, and EnvPipe's plan where there is one.

    Raises:
        CommandError: a file is missing, or cannot be right; names file, run and stage.
    """
    layout = folder.parent
    try:
        workload = ArtifactWorkload.of_folder(folder.name, layout.parent.name)
    except RecordingError as error:
        raise CommandError(f"{folder}: {error}") from None
    numbers = _run_numbers(folder)
    if _BASELINE not in numbers:
        raise CommandError(f"{folder}: has no {_BASELINE}.prof.json, the baseline")
    if max(numbers) < _FIRST_PLAN:
        raise CommandError(
            f"{folder}: has no runs besides the baseline; plans are from 2.prof.json on"
        )
    runs = [
        _read_run(folder, number, _run_name(number, "perseus"), workload)
        for number in numbers
        if number >= _BASELINE
    ]
    envpipe = _envpipe_folder(folder)
    if envpipe.is_dir():
        if _FIRST_PLAN not in _run_numbers(envpipe):
            raise CommandError(f"{envpipe}: has no {_FIRST_PLAN}.prof.json, EnvPipe's plan")
        name = _run_name(_FIRST_PLAN, "envpipe")
        runs.append(_read_run(envpipe, _FIRST_PLAN, name, workload))
    return workload.recording(runs)


def _envpipe_folder(folder: Path) -> Path:
    layout, gpu = folder.parent, folder.parent.parent
    return gpu.parent.parent / "envpipe" / gpu.name / layout.name / folder.name


def _run_numbers(folder: Path) -> list[int]:
    """Return the numbers of the folder's runs, rising."""
    try:
        names = {path.name for path in folder.iterdir()}
    except OSError as error:
        raise CommandError(f"{folder}: {error.strerror or error}") from None
    numbers = sorted({int(match[1]) for name in names if (match := _FILE.fullmatch(name))})
    if not numbers:
        raise CommandError(f"{folder}: has no runs, which are files N.prof.json and N.sched.json")
    return numbers


def _run_name(number: int, method: str) -> str:
    """Return a run's name, by whose plans the folder holds: `perseus` or `envpipe`."""
    if number < _FIRST_PLAN:
        return "baseline" if number == _BASELINE else "warm-up"
    plan = number - _FIRST_PLAN
    return method if method == "envpipe" and plan == 0 else f"{method}-{plan}"


def _read_run(folder: Path, number: int, name: str, workload: ArtifactWorkload) -> RecordedRun:
    path = folder / f"{number}.sched.json"
    try:
        clocks_mhz = plan_clocks(decode_list(RankClocks, json.loads(read_text(path))), workload)
        path = folder / f"{number}.prof.json"
        ranks = decode_list(RankMeasurements, json.loads(read_text(path)))
        return measured_run(ranks, workload, name, clocks_mhz)
    except OSError as error:
        raise CommandError(f"{path}: run {name}: {error.strerror or error}") from None
    except (RecordingError, CodecError) as error:
        raise CommandError(f"{path}: run {name}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{path}: run {name}: not complete JSON ({error})") from None
