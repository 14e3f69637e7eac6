"""The picture itself, read back as SVG: what is written in it, its colours, its size."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from docs.scripts import draw_plan_picture
from tests.documentation.blocks import ROOT
from tests.unit.planning.tiny_pipelines import B, F, profile_of

from flyball_server.planning.documents.recorded_plan import model_of_plan
from flyball_server.planning.planner import PlanRequest, make_plan
from flyball_server.planning.simulated_plan import SimulatedPlan, simulated_plan
from flyball_wire.command.command import CommandError
from flyball_wire.plan_options import PlanOptions, Policy

pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")

import matplotlib as mpl
from matplotlib.colors import to_hex

from flyball_server.cli.plots.timeline_plot import (
    CLOCK_SHARES,
    ROW_HEIGHT,
    boxes_of,
    write_timeline_plot,
)

pytestmark = pytest.mark.slow

SVG = "{http://www.w3.org/2000/svg}"
CLOCKS_MHZ = (1410, 1300, 1200, 1100, 1000, 900)


def timeline_of(num_stages: int, num_microbatches: int) -> SimulatedPlan:
    """The baseline of equal stages, but with the clocks above on stage 0, one after the other."""
    stage = {
        kind: [(mhz, time_s * 1410 / mhz, mhz / 100) for mhz in CLOCKS_MHZ]
        for kind, time_s in ((F, 1.0), (B, 2.0))
    }
    profile = profile_of([stage] * num_stages)
    request = PlanRequest(
        profile=profile,
        num_microbatches=num_microbatches,
        options=PlanOptions(blocking_power_w=(5.0,), policy=Policy.BASELINE),
    )
    plan = make_plan(request).plan
    model, assignment = model_of_plan(profile, plan)
    of_stage_0 = [node for node, stage in enumerate(model.dag.stage) if stage == 0]
    for index, node in enumerate(of_stage_0):
        assignment[node] = index % len(CLOCKS_MHZ)
    return simulated_plan(plan, [(model, assignment)])


def drawn(timeline: SimulatedPlan, path: Path) -> ElementTree.Element:
    write_timeline_plot(timeline, path)
    return ElementTree.parse(path).getroot()  # noqa: S314 - made by the line above


@pytest.mark.parametrize("name", ["$\\frac{", "a\x00b", "\ud800", "名", "x" * 10_000])
def test_whatever_text_a_plan_file_has_as_a_name_is_drawn(tmp_path: Path, name: str) -> None:
    timeline = timeline_of(1, 1)
    odd = replace(timeline, plan=replace(timeline.plan, policy=name, schedule=name))
    assert drawn(odd, tmp_path / "timeline.svg").tag == f"{SVG}svg"


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"--plot: .*missing.* cannot be written \(No such file"):
        write_timeline_plot(timeline_of(1, 1), tmp_path / "missing" / "timeline.svg")


def test_the_boxes_are_those_worked_out_by_hand() -> None:
    """Two stages, one microbatch: F 0-1 and 1-2, B 2-4 and 4-6 s; stage 0 at other clocks."""
    boxes = list(boxes_of(timeline_of(2, 1)))
    shown = [(box.label, box.start_s, round(box.finish_s, 6), box.clock_mhz) for box in boxes]
    assert shown == [
        ("F0", 0, 1, 1410),
        ("B0", 4, round(4 + 2 * 1410 / 1300, 6), 1300),
        ("F0", 1, 2, 1410),
        ("B0", 2, 4, 1410),
    ]
    assert [round(box.bottom - ROW_HEIGHT / 2) for box in boxes] == [0, 0, 1, 1]


def test_the_page_the_plots_and_the_picture_of_the_readme_colour_clocks_alike() -> None:
    first, last = CLOCK_SHARES
    script = ROOT / "server/flyball_server/dashboard/scripts/clock_scale.js"
    stops = re.findall(r'^  "(#[0-9a-f]{6})",$', script.read_text(), flags=re.MULTILINE)
    shares = [first + (last - first) * at / (len(stops) - 1) for at in range(len(stops))]
    assert stops == [to_hex(mpl.colormaps["viridis"](share)) for share in shares]
    picture = draw_plan_picture.PICTURE.read_text(encoding="utf-8")
    assert {stops[0], stops[-1]} <= set(re.findall(r"fill=\"(#[0-9a-f]{6})\"", picture))


def test_labels_are_white_on_the_dark_colours_of_slow_clocks(tmp_path: Path) -> None:
    root = drawn(timeline_of(1, 3), tmp_path / "timeline.svg")
    texts = root.iter(f"{SVG}text")
    assert {text.text for text in texts if "#ffffff" in text.get("style", "")} >= {"1000", "900"}
