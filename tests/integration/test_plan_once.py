"""A plan is made once: `flyball plan` builds each pipeline's DAG one time."""

from __future__ import annotations

from pathlib import Path

import pytest

from flyball_client.__main__ import main
from flyball_profiles.stage_profile import InstructionKind, OperatingPoint, StageProfile
from flyball_profiles.stage_profile_csv import write_stage_profile
from flyball_server.planning.model.dag import DependencyDag


@pytest.fixture
def num_dags(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of each DAG that was built, how many nodes it has."""
    built: list[int] = []
    build = DependencyDag.__init__

    def count(dag: DependencyDag, **fields: object) -> None:
        build(dag, **fields)  # type: ignore[arg-type]
        built.append(dag.num_nodes)

    monkeypatch.setattr(DependencyDag, "__init__", count)
    return built


def profile_file(path: Path, factor: float) -> Path:
    """Two stages, and points that no other test has: pipelines are kept between plans."""
    points = tuple(
        OperatingPoint(frequency_mhz=mhz, time_s=factor * time_s, energy_j=energy_j)
        for mhz, time_s, energy_j in ((1410, 1.0173, 4.0), (1200, 1.21, 3.0))
    )
    kinds = (InstructionKind.FORWARD, InstructionKind.BACKWARD)
    profile = StageProfile(
        points={(stage, kind): points for stage in range(2) for kind in kinds},
        num_ranks_per_stage=(1, 1),
    )
    path.write_text(write_stage_profile(profile))
    return path


@pytest.mark.parametrize("arguments", [["--json"], []])
def test_one_pipeline_is_built_once(
    tmp_path: Path, num_dags: list[int], arguments: list[str]
) -> None:
    csv = profile_file(tmp_path / "one.csv", 1.0 + len(arguments))
    command = ["plan", str(csv), "--microbatches", "3", "--blocking-power", "1"]
    assert main([*command, "--policy", "envelope", *arguments]) == 0
    assert num_dags == [12]  # 2 stages x 3 microbatches x 2 kinds


def test_separate_pipelines_are_built_once_each_and_joined_once(
    tmp_path: Path, num_dags: list[int]
) -> None:
    rows = [
        f"{dp_rank},{stage},{kind},{mhz},{time_s * (1.31 + dp_rank / 10)},{energy_j}"
        for dp_rank in range(2)
        for stage in range(2)
        for kind in ("forward", "backward")
        for mhz, time_s, energy_j in ((1410, 1.0, 4.0), (1200, 1.2, 3.0))
    ]
    csv = tmp_path / "two.csv"
    csv.write_text("\n".join(["dp_rank,stage,instruction,frequency,time,energy", *rows, ""]))
    command = ["plan", str(csv), "--microbatches", "3", "--blocking-power", "1"]
    assert main([*command, "--policy", "envelope", "--data-parallel", "separate"]) == 0
    assert num_dags == [12, 12, 24]
