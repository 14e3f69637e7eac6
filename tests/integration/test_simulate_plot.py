"""`flyball simulate --plot` from the command line: the file, what is printed, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.integration.command_in_process import flyball, refusal, run_apart, two_pipelines

ASKED = ("--microbatches", "3", "--blocking-power", "5", "--policy", "envelope")


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """Two pipelines of two equal stages."""
    return two_pipelines(tmp_path)


def planned(profile: Path, *options: str) -> Path:
    path = profile.with_name("plan.json")
    assert flyball("plan", profile, *ASKED, *options, "-o", path).returncode == 0
    return path


@pytest.mark.parametrize("data_parallel", ["merged", "separate"])
def test_the_picture_is_written_and_what_is_printed_stays_the_same(
    profile: Path, data_parallel: str
) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    plan, picture = planned(profile, "--data-parallel", data_parallel), profile.with_suffix(".svg")
    plain, plotted = (
        flyball("simulate", profile, plan, "--json", *options)
        for options in ((), ("--plot", picture))
    )
    assert (plotted.returncode, plotted.stderr) == (0, "")
    assert plotted.stdout == plain.stdout
    assert json.loads(plain.stdout)["iteration_time_s"] == 12.0
    text = "".join(ElementTree.parse(picture).getroot().itertext())  # noqa: S314 - ours
    rows = ["stage 0", "stage 1"]
    if data_parallel == "separate":
        rows = [f"dp {dp_rank}, {row}" for dp_rank in range(2) for row in rows]
    assert all(text.count(row) >= 2 for row in rows)
    assert "12.0000 s" in text
    assert "(predicted)" in text


def test_without_matplotlib_it_says_which_extra_draws_and_simulates_all_the_same(
    profile: Path, tmp_path: Path
) -> None:
    hidden = tmp_path / "matplotlib.py"
    hidden.write_text("raise ImportError('hidden')\n", encoding="utf-8")
    picture, simulate = profile.with_suffix(".svg"), ("simulate", profile, planned(profile))
    refused = run_apart(*simulate, "--plot", picture, PYTHONPATH=str(tmp_path))
    assert refusal(refused) == (
        "flyball simulate: --plot needs the extra 'plot': pip install '.[plot]' in a clone of"
        " Flyball"
    )
    assert not picture.exists()
    assert run_apart(*simulate, PYTHONPATH=str(tmp_path)).returncode == 0
