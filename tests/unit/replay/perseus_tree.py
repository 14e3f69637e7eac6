"""Folders in the shape of the Perseus artifact, written from recorded runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.unit.replay.synthetic_runs import Document, one_f_one_b

# Of commands that compute nothing: read as an instruction's, it would be seen.
IDLE_MHZ = 333


def merak_commands(stage: int, num_stages: int, num_microbatches: int) -> list[str]:
    """One stage's commands by name, from Merak's rules for each step."""
    step_of = {2 * microbatch + stage: "forward" for microbatch in range(num_microbatches)} | {
        2 * microbatch + 2 * num_stages - 1 - stage: "backward"
        for microbatch in range(num_microbatches)
    }
    commands: list[str] = []
    for step in range(2 * (num_microbatches + num_stages - 1)):
        # Whole steps alternate between forwards and backwards.
        is_forward = step % 2 == stage % 2
        if (stage > 0) if is_forward else (stage < num_stages - 1):
            exchanges = [
                name for name, at in (("send", step - 1), ("receive", step)) if at in step_of
            ]
            if exchanges:
                commands.append("+".join(exchanges))
        if step_of.get(step) == "forward" and stage in (0, num_stages - 1):
            commands.append("load")
        if step in step_of:
            commands.append(step_of[step])
    return [*commands, "reduce tied gradients", "reduce gradients", "optimizer step"]


def write_perseus_tree(root: Path, document: Document) -> Path:
    """Write the runs of a document as an artifact's: the baseline, plans, and `envpipe`.

    Returns:
        The workload's folder.
    """
    layout = f"dp{document['dp']}+pp{document['pp']}+tp{document['tp']}"
    name = (
        f"merak+{document['model']}+{document['partition']}+{layout}"
        f"+mbs{document['microbatch_size']}+nmb{document['num_microbatches']}+PointSolution"
    )
    folders: dict[str, Path] = {
        method: root / method / document["gpu"] / layout / name for method in ("perseus", "envpipe")
    }
    plans = [run for run in document["runs"] if run["name"] != "envpipe"]
    # A run of warming up at the highest clocks is before the baseline.
    for number, run in enumerate([plans[0], *plans]):
        _write_run(folders["perseus"], number, document, run)
    for number, run in enumerate(
        [plans[0], plans[0], *(run for run in document["runs"] if run["name"] == "envpipe")]
    ):
        if len(plans) < len(document["runs"]):
            _write_run(folders["envpipe"], number, document, run)
    return folders["perseus"]


def _write_run(folder: Path, number: int, document: Document, run: Document) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    num_stages, num_microbatches = document["pp"], document["num_microbatches"]
    num_replicas = document["dp"] * document["tp"]
    ranks = range(num_stages * num_replicas)
    plan = [
        {
            "rank": rank,
            "power_states": _power_states(
                rank % num_stages, num_stages, num_microbatches, run["clocks_mhz"]
            ),
        }
        for rank in ranks
    ]
    profile = [
        _profile_of(rank, rank % num_stages, num_replicas, num_microbatches, num_stages, run)
        for rank in ranks
    ]
    for kind, content in (("sched", plan), ("prof", profile)):
        (folder / f"{number}.{kind}.json").write_text(json.dumps(content), encoding="utf-8")


def _power_states(
    stage: int, num_stages: int, num_microbatches: int, clocks_mhz: Sequence[Sequence[int]]
) -> list[int]:
    clocks = iter(clocks_mhz[stage])
    return [
        next(clocks) if command in ("forward", "backward") else IDLE_MHZ
        for command in merak_commands(stage, num_stages, num_microbatches)
    ]


def _profile_of(
    rank: int,
    stage: int,
    num_replicas: int,
    num_microbatches: int,
    num_stages: int,
    run: Document,
) -> dict[str, Any]:
    """Return what a rank measured, the first iteration of warming up with it."""
    time_s = {
        (times["stage"], times["instruction"], times["frequency_mhz"]): times["time_s_median"]
        for times in run["instruction_times"]
    }
    order = one_f_one_b(stage, num_stages, num_microbatches)
    instructions = {
        kind: [
            time_s[stage, kind, mhz]
            for microbatch in range(num_microbatches)
            for one, mhz in zip(order, run["clocks_mhz"][stage], strict=True)
            if one == (kind, microbatch)
        ]
        for kind in ("forward", "backward")
    }
    num_iterations = len(run["iteration_time_s"])
    return {
        "rank": rank,
        "iter_time": [99.0, *run["iteration_time_s"]],
        "iter_energy": [1.0, *[run["energy_j_per_stage"][stage] / num_replicas] * num_iterations],
        "time_breakdown": {
            "load": [[1e-5] * 3] * (1 + num_iterations),
            **{
                kind: [[99.0] * num_microbatches, *[times] * num_iterations]
                for kind, times in instructions.items()
            },
        },
        "energy_breakdown": {"load": [], "forward": [], "backward": []},
    }
