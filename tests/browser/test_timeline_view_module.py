"""The visible part of a timeline, in a browser: zooming and panning end at its edges."""

from __future__ import annotations

from typing import Any

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


def test_rows_grow_until_they_are_readable_and_then_time_alone(modules: Modules) -> None:
    body = """
        return [1, 1.5, 2, 8].map((by) => m.rowHeight_px(m.zoomed(m.fitted(bounds), by)));
    """
    assert modules.run("timeline_view", body, bounds=BOUNDS) == [10, 15, 20, 20]


def test_zooming_ends_at_the_whole_and_at_the_shortest_span(modules: Modules) -> None:
    [nearest, farthest] = views(modules, "[m.zoomed(all, 1e9), m.zoomed(near, 1e-9)]")
    assert nearest[1] == 0.1
    assert farthest == [0, 10, 0]


def test_panning_ends_at_the_edges(modules: Modules) -> None:
    found = views(modules, "[[0.1], [9, 9], [-9, -9]].map((by) => m.panned(near, ...by))")
    assert found == [[3, 5, 1], [5, 5, 2], [0, 5, 0]]


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
