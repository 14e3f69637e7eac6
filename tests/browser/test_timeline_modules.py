"""Modules of the timeline in a browser: boxes, pixels, words, the visible part."""

from __future__ import annotations

from typing import Any

import pytest
from tests.browser.modules import Modules


def row(stage: int, boxes: list[tuple[Any, ...]], dp_rank: int = 0) -> dict[str, Any]:
    """A row from boxes: kind, microbatch, MHz, start and duration in s, and perhaps chunk."""
    return {
        "stage": stage,
        "dp_rank": dp_rank,
        "blocking_power_w": 70.0,
        "kinds": [box[0] for box in boxes],
        "microbatches": [box[1] for box in boxes],
        "chunks": [box[5] if len(box) > 5 else 0 for box in boxes],
        "clock_mhz": [box[2] for box in boxes],
        "start_s": [box[3] for box in boxes],
        "duration_s": [box[4] for box in boxes],
        "energy_j": [100 * box[4] for box in boxes],
        "float_s": [0.0 for _ in boxes],
    }


def iteration(rows: list[dict[str, Any]], path: list[tuple[int, int]]) -> dict[str, Any]:
    """An iteration of 6 s."""
    figures = {"iteration_time_s": 6.0, "energy_j": 1000.0, "bubble_fraction": 0.5}
    return {**figures, "rows": rows, "critical_path": path}


# One microbatch through two stages: 1 s forward and 2 s backward each, one after the other.
FIRST_STAGE = row(0, [("forward", 0, 1000, 0.0, 1.0), ("backward", 0, 1400, 4.0, 2.0)])
LAST_STAGE = row(1, [("forward", 0, 1400, 1.0, 1.0), ("backward", 0, 1200, 2.0, 2.0)])
TWO_STAGES = iteration([FIRST_STAGE, LAST_STAGE], [(0, 0), (1, 0), (1, 1), (0, 1)])


# ------------------------------------------------------------------ places of boxes


def laid_out(modules: Modules, timeline: dict[str, Any], code: str) -> Any:  # noqa: ANN401 - JSON
    """Return the value of an expression that sees the layout of a timeline as `layout`."""
    body = f"const layout = m.layOut(timeline); return {code};"
    return modules.run("timeline_layout", body, timeline=timeline)


LABELS = """layout.rows.map((row) =>
    row.start_s.map((_, at) => m.instructionLabel(layout, row, at)))"""


def test_boxes_have_the_labels_of_the_field_and_the_path_its_runs(modules: Modules) -> None:
    found = laid_out(modules, TWO_STAGES, "layout")
    assert laid_out(modules, TWO_STAGES, LABELS) == [["F0", "B0"]] * 2
    assert (found["slowest_mhz"], found["fastest_mhz"], found["shortest_s"]) == (1000, 1400, 1)
    assert found["criticalRuns"] == [
        {"row": 0, "start_s": 0, "end_s": 1},
        {"row": 1, "start_s": 1, "end_s": 4},
        {"row": 0, "start_s": 4, "end_s": 6},
    ]
    assert found["criticalLinks"] == [
        {"time_s": 1, "fromRow": 0, "toRow": 1},
        {"time_s": 4, "fromRow": 1, "toRow": 0},
    ]


def test_the_path_of_one_pipeline_does_not_go_on_in_the_next(modules: Modules) -> None:
    box = [("forward", 0, 1400, 0.0, 1.0)]
    timeline = iteration([row(0, box), row(0, box, dp_rank=1)], [(0, 0), (1, 0)])
    assert laid_out(modules, timeline, "layout.criticalLinks") == []
    names = ["dp 0, stage 0", "dp 1, stage 0"]
    assert laid_out(modules, timeline, "layout.rows.map((row) => row.name)") == names


def test_a_time_finds_the_box_that_runs_then_and_none_in_a_wait(modules: Modules) -> None:
    """Stage 0 runs from 0 to 1 s and from 4 to 6 s."""
    times = "[-1, 0, 0.99, 1, 3, 4, 5.9, 6, 9]"
    running = f"{times}.map((time) => m.positionAt(layout.rows[0], time))"
    assert laid_out(modules, TWO_STAGES, running) == [-1, 0, 0, -1, -1, 1, 1, -1, -1]
    nearest = f"{times}.map((time) => m.nearestPosition(layout.rows[0], time))"
    assert laid_out(modules, TWO_STAGES, nearest) == [0, 0, 0, 0, 1, 1, 1, 1, 1]


# ------------------------------------------------------------------ pixels


def aggregated(
    modules: Modules, boxes: list[tuple[Any, ...]], span_s: float, count: int
) -> list[tuple[float, float | None]]:
    """Return the busy share and the mean clock of each column of a row from 0 s on."""
    body = """
        const { layOut } = await import("/dashboard/scripts/timeline_layout.js");
        const columns = { start_s: 0, span_s, count };
        const into = m.emptyAggregate(count);
        m.addBoxes(layOut(timeline).rows[0], new Uint8Array([1, 1]), columns, into);
        return Array.from(into.busy, (busy, at) => [busy, busy ? into.clock[at] / busy : null]);
    """
    timeline = iteration([row(0, boxes)], [])
    values = {"timeline": timeline, "span_s": span_s, "count": count}
    found: list[tuple[float, float | None]] = modules.run("timeline_raster", body, **values)
    return found


def test_a_column_has_the_mean_clock_of_what_runs_in_it(modules: Modules) -> None:
    """1.5 s in columns of 0.5 s, and in one of 2 s: 1 s at 1000 MHz, 0.5 s at 2000 MHz."""
    boxes = [("forward", 0, 1000, 0.0, 1.0), ("backward", 0, 2000, 1.0, 0.5)]
    assert aggregated(modules, boxes, 2, 4) == [[1, 1000], [1, 1000], [1, 2000], [0, None]]
    assert aggregated(modules, boxes, 2, 1) == [pytest.approx([0.75, 4000 / 3])]


def test_rows_are_drawn_with_waits_and_nothing_after_the_end(modules: Modules) -> None:
    """Columns of 1 s, rows of 10 lines: the forward lower than the backward, the end at 6 s."""
    body = """
        const { layOut } = await import("/dashboard/scripts/timeline_layout.js");
        const { createClockScale } = await import("/dashboard/scripts/clock_scale.js");
        const pixels = new Uint32Array(8 * 20);
        const columns = { start_s: 0, span_s: 8, count: 8 };
        const palette = m.createPalette(createClockScale(1000, 1400), [1, 2, 3]);
        m.rasterize(layOut(timeline), columns, { firstRow: 0, rowHeight: 10 }, palette, pixels);
        const name = (pixel) => ({ [0xff030201]: "-", 0: " " })[pixel] ?? "x";
        return Array.from({ length: 20 }, (_, line) =>
          Array.from(pixels.subarray(8 * line, 8 * line + 8), name).join(""));
    """
    lines = modules.run("timeline_raster", body, timeline=TWO_STAGES)
    blank = " " * 8
    assert lines[:10] == [blank, *["----xx  "] * 2, *["x---xx  "] * 6, blank]
    assert lines[10:] == [blank, *["--xx--  "] * 2, *["-xxx--  "] * 6, blank]


# ------------------------------------------------------------------ words


def described(modules: Modules, code: str, other: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
    """Return the value of an expression that sees TWO_STAGES as `plan`, and `other`."""
    body = f"""
        const {{ layOut }} = await import("/dashboard/scripts/timeline_layout.js");
        const [plan, other] = timelines.map(layOut);
        return {code};
    """
    return modules.run("timeline_words", body, timelines=[TWO_STAGES, other])


def test_a_box_is_described_beside_the_highest_clock(modules: Modules) -> None:
    first = row(0, [("forward", 0, 1400, 0.0, 0.8), ("backward", 0, 1400, 3.8, 2.0)])
    highest = iteration([first, LAST_STAGE], [])
    assert described(modules, "m.instructionWords(plan, 0, 0, other)", highest) == [
        "stage 0: forward of microbatch 0",
        "1000 MHz, 1000.0 ms, 100.0 J",
        "starts at 0.000 ms; on the critical path",
        "at 1400 MHz: 800.0 ms, 80.00 J",
    ]
    assert described(modules, "m.waitWords(plan, 0, 1, 4)", highest) == [
        "stage 0 waits for 3000.0 ms",
        "its GPUs draw 70.0 W together meanwhile",
    ]


@pytest.mark.parametrize(
    ("time_s", "energy_j", "words"),
    [
        (6.0, 900, "as long as at the highest clocks, 6.000 s, and needs 100.0 J less energy"),
        (6.3, 1000, "300.0 ms longer than at the highest clocks (+5.00 %) and needs the same"),
        (
            5.4,
            1100,
            "600.0 ms less than at the highest clocks (\u221210.00 %) and needs 100.0 J more",
        ),
    ],
)
def test_plan_and_baseline_are_compared_in_words(
    modules: Modules, time_s: float, energy_j: float, words: str
) -> None:
    other = {**TWO_STAGES, "iteration_time_s": time_s, "energy_j": energy_j}
    text = described(modules, "m.comparisonWords(other, plan)", other)
    assert words in text
    assert text.startswith("Predicted")


def test_a_stages_figures_are_weighted_by_time(modules: Modules) -> None:
    """Stage 0: 1 s at 1000 MHz and 2 s at 1400 MHz, of 6 s; 100 J a second."""
    assert described(modules, "m.stageFigures(plan, 0)", TWO_STAGES) == {
        "busy_s": 3,
        "meanClock_mhz": pytest.approx(3800 / 3),
        "busyEnergy_j": 300,
        "bubble_percent": 50,
    }


# ------------------------------------------------------------------ the visible part

# Four rows of 10 px when all is shown, of 20 px when zoomed in; 10 s.
BOUNDS = {
    "end_s": 10,
    "shortestSpan_s": 0.1,
    "numRows": 4,
    "paneHeight_px": 40,
    "readableRow_px": 20,
}


def views(modules: Modules, expression: str) -> Any:  # noqa: ANN401 - JSON
    """Return views as start, span and first row; `all` is the view of all, `near` half of it."""
    return modules.run(
        "timeline_view",
        f"""
        const all = m.fitted(bounds);
        const near = m.zoomed(all, 2);
        const found = {expression};
        return found.map(({{ start_s, span_s, firstRow }}) => [start_s, span_s, firstRow]);
        """,
        bounds=BOUNDS,
    )


def test_zooming_keeps_the_time_and_the_row_at_the_pointer(modules: Modules) -> None:
    """A quarter of 10 s is 2.5 s; in a span of 5 s it is at a quarter if that begins at 1.25 s."""
    assert views(modules, "[m.zoomed(all, 2, 0.25, 0.5)]") == [[1.25, 5, 1]]


def test_a_box_comes_into_view_with_the_smallest_move(modules: Modules) -> None:
    found = views(
        modules,
        """[[3, 4, 1], [6.5, 7.5, 3], [0.5, 1, 0], [1, 9, 1]].map(([start_s, end_s, row]) =>
            m.showing({ bounds, start_s: 2, span_s: 5, firstRow: 1 }, { start_s, end_s, row }))""",
    )
    assert found == [
        [2, 5, 1],  # in view
        [2.5, 5, 2],  # to the right, and below
        [0.5, 5, 0],  # to the left, and above
        [1, 5, 1],  # longer than the span: from its begin
    ]


def test_a_view_always_shows_a_part_of_the_iteration(modules: Modules) -> None:
    body = """
        let seed = 7;
        const chance = () => (seed = (seed * 16807) % 2147483647) / 2147483647;
        let view = m.fitted(bounds);
        return Array.from({ length: 2000 }, () => {
          view = chance() < 0.5
            ? m.zoomed(view, Math.exp(4 * chance() - 2), chance(), chance())
            : m.panned(view, 2 * chance() - 1, 4 * chance() - 2);
          return { ...view, rows: m.rowsShown(view) };
        });
    """
    for view in modules.run("timeline_view", body, bounds=BOUNDS):
        assert 0.1 <= view["span_s"] <= 10
        assert view["start_s"] >= 0
        assert view["start_s"] + view["span_s"] <= 10 + 1e-9
        assert view["firstRow"] >= 0
        assert view["firstRow"] + view["rows"] <= 4 + 1e-9
