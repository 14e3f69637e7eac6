"""What of a timeline is shown, in a browser: zooming and panning end at its edges."""

from __future__ import annotations

from tests.browser.modules import Modules, modules

__all__ = ["modules"]

# Four rows of 10 px when all is shown, of 20 px when zoomed in; 10 s.
BOUNDS = {
    "end_s": 10,
    "shortestSpan_s": 0.1,
    "numRows": 4,
    "paneHeight_px": 40,
    "readableRow_px": 20,
}


def test_zooming_keeps_the_time_and_the_row_that_are_pointed_at(modules: Modules) -> None:
    """At a quarter of 10 s is 2.5 s: of 5 s it is a quarter again from 1.25 s on."""
    view = modules.run(
        "timeline_view", "return m.zoomed(m.fitted(bounds), bounds, 2, 0.25, 0.5);", bounds=BOUNDS
    )
    assert view == {"start_s": 1.25, "span_s": 5, "firstRow": 1}


def test_rows_grow_until_they_are_readable_and_then_time_alone(modules: Modules) -> None:
    heights = modules.run(
        "timeline_view",
        """
        const near = (factor) => m.zoomed(m.fitted(bounds), bounds, factor);
        return [1, 1.5, 2, 8].map((factor) => m.rowHeight_px(near(factor), bounds));
        """,
        bounds=BOUNDS,
    )
    assert heights == [10, 15, 20, 20]


def test_zoom_ends_at_all_of_it_and_at_the_shortest_span(modules: Modules) -> None:
    spans = modules.run(
        "timeline_view",
        """
        const near = m.zoomed(m.fitted(bounds), bounds, 1e9);
        const far = m.zoomed(near, bounds, 1e-9);
        return [near.span_s, far, m.isFitted(near, bounds), m.isFitted(far, bounds)];
        """,
        bounds=BOUNDS,
    )
    assert spans == [0.1, {"start_s": 0, "span_s": 10, "firstRow": 0}, False, True]


def test_panning_ends_at_the_edges(modules: Modules) -> None:
    views = modules.run(
        "timeline_view",
        """
        const near = m.zoomed(m.fitted(bounds), bounds, 2);
        return [m.panned(near, bounds, 0.1), m.panned(near, bounds, 9, 9), m.panned(near, bounds, -9, -9)];
        """,  # noqa: E501
        bounds=BOUNDS,
    )
    assert views == [
        {"start_s": 3.0, "span_s": 5, "firstRow": 1},
        {"start_s": 5, "span_s": 5, "firstRow": 2},
        {"start_s": 0, "span_s": 5, "firstRow": 0},
    ]


def test_a_box_comes_into_view_with_the_smallest_move(modules: Modules) -> None:
    views = modules.run(
        "timeline_view",
        """
        const near = {start_s: 2, span_s: 5, firstRow: 1};
        return [[3, 4, 1], [6.5, 7.5, 3], [0.5, 1, 0], [1, 9, 1]].map(
          ([start_s, end_s, row]) => m.showing(near, bounds, {start_s, end_s, row}));
        """,
        bounds=BOUNDS,
    )
    assert [(view["start_s"], view["firstRow"]) for view in views] == [
        (2, 1),  # it is in view
        (2.5, 2),  # to the right, and below
        (0.5, 0),  # to the left, and above
        (1, 1),  # longer than what is shown: from its begin
    ]


def test_whatever_is_done_to_a_view_it_shows_a_part_of_the_iteration(modules: Modules) -> None:
    views = modules.run(
        "timeline_view",
        """
        let seed = 7;
        const chance = () => (seed = (seed * 16807) % 2147483647) / 2147483647;
        let view = m.fitted(bounds);
        return Array.from({length: 2000}, () => {
          view = chance() < 0.5
            ? m.zoomed(view, bounds, Math.exp(4 * chance() - 2), chance(), chance())
            : m.panned(view, bounds, 2 * chance() - 1, 4 * chance() - 2);
          return {...view, rows: m.rowsShown(view, bounds)};
        });
        """,
        bounds=BOUNDS,
    )
    for view in views:
        assert 0.1 <= view["span_s"] <= 10
        assert view["start_s"] >= 0
        assert view["start_s"] + view["span_s"] <= 10 + 1e-9
        assert view["firstRow"] >= 0
        assert view["firstRow"] + view["rows"] <= 4 + 1e-9
