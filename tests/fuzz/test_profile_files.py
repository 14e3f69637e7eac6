"""Profiles of any bytes, over REST and as a file: planned, or refused by the line that is wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.integration.command_in_process import flyball
from tests.planner.live import LivePlanner, live_planner
from tests.planner.samples import HEADER, profile_csv

PROFILE = "/api/v1/jobs/job/profile"
ODD_CELLS = (
    "nan", "inf", "-inf", "1e999", "-1e999", "1e-999", "9" * 400, "1_000", "0x10", "\u0661", "-0",
    "", " ", "true", '"', '""', '"1', "'1'", "1,1", "1\r1", "1\n1", "\0", "\ufeff", "\u2028",
)  # fmt: skip
CELLS = tuple(profile_csv().replace("\n", ",").split(","))


@st.composite
def mangled(draw: st.DrawFn) -> bytes:
    """A good profile of which a few cells, lines or bytes are something else."""
    lines = [line.split(",") for line in profile_csv().splitlines()]
    for _ in range(draw(st.integers(0, 3))):
        row = draw(st.sampled_from(lines))
        row[draw(st.integers(0, len(row) - 1))] = draw(st.sampled_from(ODD_CELLS + CELLS))
    if draw(st.booleans()):
        lines = draw(st.permutations(lines))
    if draw(st.booleans()):
        lines += draw(st.lists(st.sampled_from(lines), max_size=2))
    ends = draw(st.sampled_from(["\n", "\r\n", "\r", "\n\n", "\n \n"]))
    text = draw(st.sampled_from(["", "\ufeff", " ", "\n"])) + ends.join(map(",".join, lines))
    content = text.encode(draw(st.sampled_from(["utf-8", "utf-16", "utf-8-sig"])))
    cut = draw(st.sampled_from([None, draw(st.integers(0, len(content)))]))
    return content[:cut] + draw(st.binary(max_size=3))


@pytest.fixture(scope="module")
def planner() -> Iterator[LivePlanner]:
    """A planner with a job of two stages, which plans quickly."""
    with live_planner() as live:
        live.put_job(policy="uniform").raise_for_status()
        yield live


@settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(content=mangled() | st.binary(max_size=200))
@example(content=b"")
@example(content=b"\0")
@example(content=b"\xef\xbb\xbf")
@example(content=HEADER.encode() + b"0,forward,1410,0.1,30\r0,forward,1200,0.1,30")
@example(content=HEADER.encode() + b'"' * 999_999)
@example(content=HEADER.encode() + b"0," + b"a" * 900_000)
@example(content=(",".join(f"c{i}" for i in range(50_000)) + "," + HEADER).encode())
@example(content=(",".join(["x"] * 50_000) + "\n").encode())
@example(content=(HEADER + "0,forward," + "9" * 100_000 + ",0.1,30\n").encode())
@example(content=(HEADER + "999999999999,forward,1410,0.1,30\n").encode())
@example(content=(HEADER + "0,forward,1410,1e308,1e308\n0,backward,1410,1e308,1e308\n").encode())
@example(content=profile_csv().replace("0.1,", "1e308,").encode())
@example(content=profile_csv().replace("0.1,", "1e-308,").encode())
@example(content=profile_csv().replace("1200", "1e300").encode())
def test_any_profile_is_taken_or_refused_in_one_line_by_rest_and_by_plan(
    planner: LivePlanner, tmp_path: Path, content: bytes
) -> None:
    answer = planner.http.put(PROFILE, content=content, headers={"Content-Type": "text/csv"})
    assert answer.status_code in {200, 422}, answer.text
    if answer.status_code == 422:
        refusal = answer.json()
        assert len(refusal["detail"].splitlines()) == 1
        assert len(refusal["detail"]) < 1000
        assert re.match(r"profile(:[1-9][0-9]*)?: ", refusal["detail"]), refusal
    file = tmp_path / "profile.csv"
    file.write_bytes(content)
    options = ("--microbatches", "2", "--blocking-power", "70", "--policy", "uniform")
    done = flyball("plan", file, *options)
    # One stage alone is a pipeline too, but not one of this job.
    assert done.returncode == 0 or answer.status_code == 422, (done.stderr, answer.text)
    assert len(done.stderr.splitlines()) <= 2, done.stderr
    assert done.returncode in {0, 2}
    assert (done.returncode == 2) == bool(done.stderr)
