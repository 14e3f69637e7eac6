"""`flyball simulate --plot` from the command line: the file, what is printed, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.integration.command_in_process import flyball, run_apart, two_pipelines

ASKED = ("--microbatches", "3", "--blocking-power", "5", "--policy", "envelope")


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """Two pipelines of two equal stages."""
    return two_pipelines(tmp_path)


@pytest.fixture(params=["merged", "separate"])
def plan(request: pytest.FixtureRequest, profile: Path, tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    data_parallel = ("--data-parallel", request.param)
    done = flyball("plan", profile, *ASKED, *data_parallel, "-o", path)
    assert done.returncode == 0, done.stderr
    return path


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_the_picture_is_written_and_what_is_printed_stays_the_same(
    profile: Path, plan: Path, tmp_path: Path, suffix: str
) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    picture = tmp_path / f"timeline{suffix}"
    plain, plotted = (
        flyball("simulate", profile, plan, "--json", *options)
        for options in ((), ("--plot", picture))
    )
    assert (plotted.returncode, plotted.stderr) == (0, "")
    assert plotted.stdout == plain.stdout
    assert json.loads(plain.stdout)["iteration_time_s"] == 12.0
    if suffix == ".png":
        assert picture.read_bytes().startswith(b"\x89PNG\r\n")
        return
    text = "".join(ElementTree.parse(picture).getroot().itertext())  # noqa: S314 - ours
    rows = ["stage 0", "stage 1"]
    if "pipelines" in json.loads(plain.stdout):
        rows = [f"dp {dp_rank}, {row}" for dp_rank in range(2) for row in rows]
    assert all(text.count(row) >= 2 for row in rows)
    assert "12.0000 s" in text
    assert "(predicted)" in text


@pytest.mark.parametrize("plan", ["merged"], indirect=True)
def test_without_matplotlib_it_says_which_extra_draws_and_simulates_all_the_same(
    profile: Path, plan: Path, tmp_path: Path
) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "matplotlib.py").write_text("raise ImportError('hidden')\n", encoding="utf-8")
    picture = tmp_path / "timeline.svg"

    simulate, environment = ("simulate", profile, plan), {"PYTHONPATH": str(hidden)}
    refused = run_apart(*simulate, "--plot", picture, **environment)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == (
        "flyball simulate: --plot needs the extra 'plot': pip install '.[plot]' in a clone of"
        " Flyball\n"
    )
    assert not picture.exists()
    assert run_apart(*simulate, **environment).returncode == 0
