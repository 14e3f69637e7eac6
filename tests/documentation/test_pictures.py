"""The pictures of the documentation are those that their scripts draw."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from docs.scripts import draw_architecture
from docs.scripts.draw_plan_picture import PICTURE, main

_TITLE = re.compile(r"<title>(.*)</title>")


def test_the_picture_tells_the_figures_of_todays_plan(tmp_path: Path) -> None:
    drawn = tmp_path / "plan.svg"
    main([str(drawn)])
    titles = [_TITLE.findall(file.read_text(encoding="utf-8")) for file in (drawn, PICTURE)]
    assert titles[0] == titles[1], "draw it again: python docs/scripts/draw_plan_picture.py"
    assert re.fullmatch(
        r"Predicted timelines of one iteration, 4 stages and 6 microbatches: \d+ J at the highest"
        r" clocks, \d+ J on the plan \(\d+\.\d % less\), both in \d\.\d{3} s\.",
        titles[0][0],
    )


@pytest.mark.parametrize("name", ["architecture.svg", "plan-life.svg"])
def test_a_picture_is_the_one_that_its_script_draws(name: str, tmp_path: Path) -> None:
    draw_architecture.main([str(tmp_path)])
    shown = (draw_architecture.IMAGES / name).read_text(encoding="utf-8")
    assert (tmp_path / name).read_text(encoding="utf-8") == shown, (
        "draw it again: python docs/scripts/draw_architecture.py"
    )
