"""What the timeline is made of, in a browser: colours, boxes, pixels, words."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from tests.browser.modules import Modules, modules

__all__ = ["modules"]


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
    """One of 6 s."""
    return {
        "iteration_time_s": 6.0,
        "energy_j": 1000.0,
        "bubble_fraction": 0.5,
        "rows": rows,
        "critical_path": path,
    }


# One microbatch through two stages: 1 s forward and 2 s backward each, one after the other.
FIRST_STAGE = row(0, [("forward", 0, 1000, 0.0, 1.0), ("backward", 0, 1400, 4.0, 2.0)])
LAST_STAGE = row(1, [("forward", 0, 1400, 1.0, 1.0), ("backward", 0, 1200, 2.0, 2.0)])
TWO_STAGES = iteration([FIRST_STAGE, LAST_STAGE], [(0, 0), (1, 0), (1, 1), (0, 1)])


# ------------------------------------------------------------------ colours of clocks


def test_the_slowest_clock_is_dark_and_the_fastest_light_and_none_is_beyond(
    modules: Modules,
) -> None:
    colors = modules.run(
        "clock_scale",
        "const s = m.createClockScale(800, 1400); return [700, 800, 1400, 1500].map(s.color);",
    )
    assert colors == ["#472a7a", "#472a7a", "#f1e51d", "#f1e51d"]


def test_a_single_clock_has_the_colour_of_the_fastest(modules: Modules) -> None:
    color = modules.run("clock_scale", "return m.createClockScale(1400, 1400).color(1400);")
    assert color == "#f1e51d"


def test_each_clock_is_lighter_than_the_one_below_and_its_text_can_be_read(
    modules: Modules,
) -> None:
    """Lightness alone tells the order; WCAG AA asks for a contrast of 4.5 to 1."""
    clocks = modules.run(
        "clock_scale",
        """
        const scale = m.createClockScale(210, 1980);
        return Array.from({length: 119}, (_, index) => {
          const mhz = 210 + 15 * index;
          const text = scale.textOn(mhz) === "#ffffff" ? 1 : 0;
          return [m.relativeLuminance(scale.rgb(mhz)), text];
        });
        """,
    )
    luminances = [luminance for luminance, _ in clocks]
    assert all(one < other for one, other in pairwise(luminances))
    contrasts = [
        (max(luminance, text) + 0.05) / (min(luminance, text) + 0.05) for luminance, text in clocks
    ]
    assert min(contrasts) >= 4.5


# ------------------------------------------------------------------ ticks


@pytest.mark.parametrize(
    ("low", "high", "most", "values", "decimals"),
    [
        (0, 1, 5, [0, 0.5, 1], 1),
        (0, 1, 6, [0, 0.2, 0.4, 0.6, 0.8, 1], 1),
        (2.8, 3.5, 4, [2.8, 3.0, 3.2, 3.4], 1),
        (-7, 24, 4, [0, 10, 20], 0),
        (0, 47.97, 10, [0, 5, 10, 15, 20, 25, 30, 35, 40, 45], 0),
        (1, 1, 5, [], 0),
    ],
)
def test_ticks_are_round_and_no_more_than_asked_for(
    modules: Modules, low: float, high: float, most: int, values: list[float], decimals: int
) -> None:
    ticks = modules.run(
        "axis_ticks", "return m.roundTicks(low, high, most);", low=low, high=high, most=most
    )
    assert ticks == {"values": values, "decimals": decimals}


# ------------------------------------------------------------------ where boxes lie


def test_boxes_have_the_labels_of_the_field_and_the_path_its_runs(modules: Modules) -> None:
    found = modules.run(
        "timeline_layout",
        """
        const layout = m.layOut(timeline);
        const labels = layout.rows.map((row) =>
          Array.from({length: row.count}, (_, at) => m.instructionLabel(layout, row, at)));
        return {...layout, rows: null, labels};
        """,
        timeline=TWO_STAGES,
    )
    assert found["labels"] == [["F0", "B0"], ["F0", "B0"]]
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
    found = modules.run(
        "timeline_layout",
        "const l = m.layOut(timeline); return [l.criticalLinks, l.rows.map((row) => row.name)];",
        timeline=iteration([row(0, box), row(0, box, dp_rank=1)], [(0, 0), (1, 0)]),
    )
    assert found == [[], ["dp 0, stage 0", "dp 1, stage 0"]]


def test_height_tells_the_kind_and_later_chunks_stand_higher(modules: Modules) -> None:
    boxes = [
        ("forward", 0, 1400, 0.0, 1.0, 0),
        ("forward", 0, 1400, 1.0, 1.0, 1),
        ("backward_input", 0, 1400, 2.0, 1.0, 1),
    ]
    found = modules.run(
        "timeline_layout",
        """
        const layout = m.layOut(timeline);
        return [layout.slots, m.instructionLabel(layout, layout.rows[0], 2)];
        """,
        timeline=iteration([row(0, boxes)], [(0, 0)]),
    )
    (first, second, backward), label = found
    assert label == "I0.1"
    assert second["bottom"] < first["bottom"]
    assert backward["bottom"] == second["bottom"]
    assert second["bottom"] - second["top"] == pytest.approx(
        0.7 * (backward["bottom"] - backward["top"])
    )
    assert all(0 <= slot["top"] < slot["bottom"] <= 1 for slot in found[0])


def test_a_time_finds_the_box_that_runs_then_and_none_in_a_wait(modules: Modules) -> None:
    """Stage 0 runs from 0 to 1 s and from 4 to 6 s."""
    found = modules.run(
        "timeline_layout",
        """
        const row = m.layOut(timeline).rows[0];
        return [-1, 0, 0.99, 1, 3, 4, 5.9, 6, 9].map((time) => [m.positionAt(row, time), m.nearestPosition(row, time)]);
        """,  # noqa: E501
        timeline=TWO_STAGES,
    )
    assert [running for running, _ in found] == [-1, 0, 0, -1, -1, 1, 1, -1, -1]
    assert [nearest for _, nearest in found] == [0, 0, 0, 0, 1, 1, 1, 1, 1]


# ------------------------------------------------------------------ pixels

AGGREGATE = """
const { layOut } = await import("/dashboard/scripts/timeline_layout.js");
const row = layOut(timeline).rows[0];
const into = m.emptyAggregate(columns.count);
m.addBoxes(row, new Uint8Array([1, 1]), columns, into);
return Array.from(into.busy, (busy, at) => [busy, busy ? into.clock[at] / busy : null]);
"""


def test_a_column_has_the_clock_of_what_runs_in_it(modules: Modules) -> None:
    """1.5 s in columns of half a second: two at 1000 MHz, one at 2000 MHz, one of waiting."""
    boxes = [("forward", 0, 1000, 0.0, 1.0), ("backward", 0, 2000, 1.0, 0.5)]
    found = modules.run(
        "timeline_raster",
        AGGREGATE,
        timeline=iteration([row(0, boxes)], []),
        columns={"start_s": 0, "span_s": 2, "count": 4},
    )
    assert found == [[1, 1000], [1, 1000], [1, 2000], [0, None]]


def test_boxes_narrower_than_a_column_are_merged_by_their_shares(modules: Modules) -> None:
    """In one column of 2 s: 1 s at 1000 MHz and 0.5 s at 2000 MHz, so 4/3 GHz on average."""
    boxes = [("forward", 0, 1000, 0.0, 1.0), ("backward", 0, 2000, 1.0, 0.5)]
    [[busy, clock_mhz]] = modules.run(
        "timeline_raster",
        AGGREGATE,
        timeline=iteration([row(0, boxes)], []),
        columns={"start_s": 0, "span_s": 2, "count": 1},
    )
    assert (busy, clock_mhz) == (pytest.approx(0.75), pytest.approx(4000 / 3))


@pytest.mark.parametrize("count", [1, 7, 100, 333])
def test_merging_loses_no_busy_time_at_any_width(modules: Modules, count: int) -> None:
    """A hundred boxes of 10 ms with 5 ms between them: 1 s of 1.5 s is busy."""
    boxes = [("forward", each, 1000 + each, 0.015 * each, 0.01) for each in range(100)]
    found = modules.run(
        "timeline_raster",
        AGGREGATE,
        timeline=iteration([row(0, boxes)], []),
        columns={"start_s": 0, "span_s": 1.5, "count": count},
    )
    assert sum(busy for busy, _ in found) * 1.5 / count == pytest.approx(1.0, rel=1e-4)


def test_wide_boxes_end_a_column_early_so_that_neighbours_stay_apart(modules: Modules) -> None:
    boxes = [("forward", 0, 1000, 0.0, 1.0), ("forward", 1, 1000, 1.0, 1.0)]
    found = modules.run(
        "timeline_raster",
        AGGREGATE,
        timeline=iteration([row(0, boxes)], []),
        columns={"start_s": 0, "span_s": 2, "count": 20},
    )
    assert [at for at, (busy, _) in enumerate(found) if busy == 0] == [9, 19]


def test_rows_are_drawn_with_waits_and_nothing_after_the_end(modules: Modules) -> None:
    """Columns of 1 s, rows of 10 lines: the forward lower than the backward, the end at 6 s."""
    lines = modules.run(
        "timeline_raster",
        """
        const { layOut } = await import("/dashboard/scripts/timeline_layout.js");
        const { createClockScale } = await import("/dashboard/scripts/clock_scale.js");
        const { createPalette } = await import("/dashboard/scripts/timeline_raster.js");
        const scale = createClockScale(1000, 1400);
        const pixels = new Uint32Array(8 * 20);
        const columns = {start_s: 0, span_s: 8, count: 8};
        m.rasterize(layOut(timeline), columns, {firstRow: 0, rowHeight: 10},
          createPalette(scale, [1, 2, 3]), pixels);
        const name = (pixel) => ({[0xff030201]: "-", 0: " "})[pixel] ?? "x";
        return Array.from({length: 20}, (_, line) =>
          Array.from(pixels.subarray(8 * line, 8 * line + 8), name).join(""));
        """,
        timeline=TWO_STAGES,
    )
    above, below = "----xx  ", "x---xx  "
    assert lines[:10] == ["        ", *[above] * 2, *[below] * 6, "        "]
    above, below = "--xx--  ", "-xxx--  "
    assert lines[10:] == ["        ", *[above] * 2, *[below] * 6, "        "]


def test_the_colour_of_a_busy_column_is_its_clocks(modules: Modules) -> None:
    pixels = modules.run(
        "timeline_raster",
        """
        const { createClockScale } = await import("/dashboard/scripts/clock_scale.js");
        const palette = m.createPalette(createClockScale(1000, 1400), [255, 255, 255]);
        const line = new Uint32Array(3);
        const from = {busy: [1, 0, 0.5], clock: [1400, 0, 500]};
        m.colorLine(from, palette, line);
        return Array.from(new Uint8Array(line.buffer));
        """,
    )
    assert pixels[:8] == [0xF1, 0xE5, 0x1D, 255, 255, 255, 255, 255]
    # Half of 1000 MHz (#472a7a), half of waiting.
    assert pixels[8:] == [(0x47 + 255) // 2, (0x2A + 255) // 2, (0x7A + 255) // 2, 255]


# ------------------------------------------------------------------ words


def test_a_box_is_told_in_words_beside_the_highest_clock(modules: Modules) -> None:
    lines = modules.run(
        "timeline_words",
        """
        const { layOut } = await import("/dashboard/scripts/timeline_layout.js");
        const plan = layOut(timeline);
        return [m.instructionWords(plan, 0, 0, layOut(highest)), m.waitWords(plan, 0, 1, 4)];
        """,
        timeline=TWO_STAGES,
        highest=iteration(
            [row(0, [("forward", 0, 1400, 0.0, 0.8), ("backward", 0, 1400, 3.8, 2.0)]), LAST_STAGE],
            [],
        ),
    )
    [box, wait] = [[line.replace("\u202f", " ") for line in each] for each in lines]
    assert box == [
        "stage 0: forward of microbatch 0",
        "1000 MHz, 1000.0 ms, 100.0 J",
        "starts at 0.000 ms; on the critical path",
        "at 1400 MHz: 800.0 ms, 80.00 J",
    ]
    assert wait == ["stage 0 waits for 3000.0 ms", "its GPUs draw 70.0 W together meanwhile"]


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
    told = modules.run(
        "timeline_words",
        """
        const { layOut } = await import("/dashboard/scripts/timeline_layout.js");
        return m.comparisonWords(layOut(plan), layOut(baseline));
        """,
        plan={**TWO_STAGES, "iteration_time_s": time_s, "energy_j": energy_j},
        baseline=TWO_STAGES,
    )
    assert words in told.replace("\u202f", " ")
    assert told.startswith("Predicted")


def test_a_stages_figures_are_weighted_by_time(modules: Modules) -> None:
    """Stage 0: 1 s at 1000 MHz and 2 s at 1400 MHz, of 6 s; 100 J a second."""
    figures = modules.run(
        "timeline_words",
        """
        const { layOut } = await import("/dashboard/scripts/timeline_layout.js");
        return m.stageFigures(layOut(timeline), 0);
        """,
        timeline=TWO_STAGES,
    )
    assert figures == {
        "busy_s": 3,
        "meanClock_mhz": pytest.approx(3800 / 3),
        "busyEnergy_j": 300,
        "bubble_percent": 50,
    }
