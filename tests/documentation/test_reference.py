"""The generated pages are those of today's commands, settings and API."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import pytest
from docs.scripts.command_reference import command_part
from docs.scripts.rest_reference import rest_part
from docs.scripts.tables import attributes_of
from docs.scripts.write_reference import DOCS, PAGES, TEMPLATES, reference

from flyball_client.__main__ import main
from flyball_profiles.examples import example_profile_path
from flyball_wire.command.command import Command
from flyball_wire.predictions import PredictedFigures
from flyball_wire.savings import MeasuredSavings


@pytest.mark.parametrize("page", PAGES)
def test_a_generated_page_is_up_to_date(page: str) -> None:
    written = (DOCS / page).read_text(encoding="utf-8")
    assert written == reference(page), "run: python -m docs.scripts.write_reference"


@pytest.mark.parametrize("base", [MeasuredSavings, PredictedFigures])
def test_a_field_of_a_base_has_its_meaning_in_the_types_that_extend_it(base: type) -> None:
    written = rest_part("types")
    meanings = attributes_of(base.__doc__ or "").values()
    assert meanings
    assert [meaning for meaning in meanings if meaning.rstrip(".") not in written] == []


def test_every_argument_has_a_row_with_its_default_and_each_action_a_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def configure(parser: argparse.ArgumentParser) -> None:
        actions = parser.add_subparsers(required=True)
        added = actions.add_parser("add", help="add one")
        added.add_argument("job", metavar="JOB", help="name")
        added.add_argument("--price", type=float, default=2.5, help="price, `a|b`")
        added.add_argument("-o", "--output", metavar="FILE", required=True, help="file")
        added.add_argument("--hidden", help=argparse.SUPPRESS)

    made = {"jobs": Command(configure=configure, run=lambda _: 0)}
    monkeypatch.setattr("docs.scripts.command_reference.commands", lambda: made)
    assert command_part("jobs").splitlines()[2:] == [
        "### `flyball jobs add`",
        "",
        "Add one.",
        "",
        "| argument | meaning |",
        "| --- | --- |",
        "| `JOB` | name |",
        r"| `--price PRICE` | price, `a\|b` (default: 2.5) |",
        "| `-o`, `--output FILE` | file (required) |",
    ]


def test_every_key_of_a_json_answer_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (TEMPLATES / "commands.md.in").read_text(encoding="utf-8")
    profile, plan = str(example_profile_path()), str(tmp_path / "plan.json")
    pipeline = [profile, "--microbatches", "2", "--gpu", "a100", "--effort", "low"]
    trace = str(tmp_path / "trace.json")
    for arguments in (
        ["plan", *pipeline, "-o", plan],
        ["frontier", *pipeline, "--points", "2"],
        ["simulate", profile, plan],
        ["export", profile, plan, "--chrome-trace", trace],
        ["clocks", "--profile", profile, "--stage", "0"],
    ):
        assert main([*arguments, "--json"]) == 0
        printed = json.loads(capsys.readouterr().out)
        row = re.search(rf"^\| `{arguments[0]}` \|(.*)$", page, re.MULTILINE)
        assert row is not None
        told = page if arguments[0] == "plan" else row[1]
        assert {key for key in printed if f"`{key}`" not in told} == set(), arguments[0]
