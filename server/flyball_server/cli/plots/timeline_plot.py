"""Plot of the timeline: a row for each stage, a box for each instruction, baseline above plan.

Needs matplotlib. Clocks have the colours of the planner's page, of rising lightness. Boxes can be
read without colour too: height and hatching show the kind, vertical position the model chunk, and
the letter both, if there is room.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import Colormap, ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from flyball_pipeline.instruction import InstructionKind
from flyball_server.cli.plots.plot_file import save_figure
from flyball_server.planning.documents.plan_text import LETTERS, instruction_label
from flyball_server.planning.model.pipeline_model import Assignment, PipelineModel
from flyball_server.planning.model.simulator import Simulation
from flyball_server.planning.simulated_plan import SimulatedPlan

Point = tuple[float, float]

ROW_HEIGHT = 0.86  # of the distance between two rows
# Of viridis, from the slowest clock to the fastest: as in the page's clock_scale.js.
CLOCK_SHARES = (0.12, 0.98)
# Of these colours: from here on black text contrasts more than white.
_LIGHT_FROM = 0.36
_CRITICAL = "#c4005f"
_CHUNK_SHIFT = 0.2  # of the row's height, from the first chunk to the last


@dataclass(frozen=True, kw_only=True)
class BoxStyle:
    """Colourless marks of a kind: its share of the row's height, hatching, and words."""

    height: float
    hatch: str
    words: str


BOX_STYLES = {
    InstructionKind.FORWARD: BoxStyle(height=0.7, hatch="", words="lower"),
    InstructionKind.BACKWARD: BoxStyle(height=1.0, hatch="", words="full height"),
    InstructionKind.BACKWARD_INPUT: BoxStyle(height=1.0, hatch="////", words="full height"),
    InstructionKind.BACKWARD_WEIGHT: BoxStyle(height=0.7, hatch="\\\\\\\\", words="lower"),
    InstructionKind.RECOMPUTE: BoxStyle(height=0.45, hatch="", words="lowest"),
    InstructionKind.STEP: BoxStyle(height=1.0, hatch="", words="full height"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Box:
    """Box of an instruction; `bottom` and `height` in rows."""

    start_s: float
    finish_s: float
    bottom: float
    height: float
    clock_mhz: int
    kind: InstructionKind
    label: str


def row_names(timeline: SimulatedPlan) -> list[str]:
    """Return the names of the stages, pipeline after pipeline."""
    return [
        f"dp {dp_rank}, stage {stage}" if timeline.plan.is_separate else f"stage {stage}"
        for dp_rank, model in enumerate(timeline.models)
        for stage in range(model.schedule.num_stages)
    ]


def num_chunks(timeline: SimulatedPlan) -> int:
    """Return the largest number of model chunks of a stage."""
    return 1 + max(item.chunk for model in timeline.models for item in model.dag.instruction)


def boxes_of(timeline: SimulatedPlan) -> Iterator[Box]:
    """Yield a box for each instruction; later chunks are higher."""
    chunks = num_chunks(timeline)
    shift = ROW_HEIGHT * _CHUNK_SHIFT / (chunks - 1) if chunks > 1 else 0.0
    tallest = ROW_HEIGHT * (1 - _CHUNK_SHIFT) if chunks > 1 else ROW_HEIGHT
    for first_row, model, assignment, simulation in _pipelines(timeline):
        for node, choice in enumerate(assignment):
            instruction = model.dag.instruction[node]
            row = first_row + model.dag.stage[node]
            yield Box(
                start_s=simulation.start_s[node],
                finish_s=simulation.finish_s[node],
                bottom=row + ROW_HEIGHT / 2 - instruction.chunk * shift,
                height=tallest * BOX_STYLES[instruction.kind].height,
                clock_mhz=model.points[node][choice].frequency_mhz,
                kind=instruction.kind,
                label=instruction_label(instruction),
            )


def critical_lines(timeline: SimulatedPlan) -> Iterator[list[Point]]:
    """Yield each pipeline's path: a frame around adjacent boxes, a line from stage to stage."""
    for first_row, model, _, simulation in _pipelines(timeline):
        by_stage = groupby(simulation.critical_path, key=model.dag.stage.__getitem__)
        runs = [(first_row + stage, list(nodes)) for stage, nodes in by_stage]
        for row, nodes in runs:
            left, right = simulation.start_s[nodes[0]], simulation.finish_s[nodes[-1]]
            top, bottom = row - ROW_HEIGHT / 2, row + ROW_HEIGHT / 2
            corners = _corners(left, right, top, bottom)
            yield [*corners, *corners[:2]]
        for (row, nodes), (next_row, _) in pairwise(runs):
            time_s = simulation.finish_s[nodes[-1]]
            yield [(time_s, row), (time_s, next_row)]


def _pipelines(
    timeline: SimulatedPlan,
) -> Iterator[tuple[int, PipelineModel, Assignment, Simulation]]:
    """Return each pipeline with the row of its first stage."""
    first_row = 0
    for model, assignment, simulation in zip(
        timeline.models, timeline.assignments, timeline.simulation.pipelines, strict=True
    ):
        yield first_row, model, assignment, simulation
        first_row += model.schedule.num_stages


_WAITING = "0.93"
_WIDTH_IN, _BESIDE_AXES_IN = 14.0, 1.9
_POINTS_PER_IN = 72
# Beyond it an SVG holds the boxes as an image, and boxes have no edges.
_MANY_BOXES = 6000
_MANY_ROWS = 24
_TITLE_LENGTH = 160
_DIGIT_WIDTH_EM = 0.66
_WIDTHS_EM = {".": 0.34, "W": 1.0}
_SMALLEST_FONT_PT, _LARGEST_FONT_PT = 4.5, 7.5


@dataclass(frozen=True, kw_only=True)
class _Scale:
    """Scales that both panels share: clocks to colours, and the inches of time and rows."""

    colors: Colormap
    clocks: Normalize
    end_s: float
    num_rows: int
    panel_height_in: float

    def width_pt(self, time_s: float) -> float:
        return time_s / self.end_s * (_WIDTH_IN - _BESIDE_AXES_IN) * _POINTS_PER_IN

    @property
    def row_height_pt(self) -> float:
        return self.panel_height_in / self.num_rows * _POINTS_PER_IN


def write_timeline_plot(timeline: SimulatedPlan, path: Path) -> None:
    """Draw the timeline into an .svg or .png file.

    Raises:
        CommandError: the file cannot be written.
    """
    # Without a date and with a fixed salt the same plan gives the same file.
    metadata = {"Date": None} if path.suffix == ".svg" else None
    with mpl.rc_context(
        {"hatch.linewidth": 0.4, "svg.fonttype": "none", "svg.hashsalt": "flyball"}
    ):
        save_figure(_draw(timeline), path, metadata)


def _draw(timeline: SimulatedPlan) -> Figure:
    shown = {"baseline, highest clocks": timeline.baseline(), "plan": timeline}
    boxes = {name: list(boxes_of(each)) for name, each in shown.items()}
    scale = _scale(shown, boxes)
    saving = f"; saves {_saving_percent(*shown.values()):.2f} %"
    figure = Figure(figsize=(_WIDTH_IN, 2 * scale.panel_height_in + 2.0), layout="constrained")
    panels = figure.subplots(2, 1, sharex=True)
    for axes, (name, each) in zip(panels, shown.items(), strict=True):
        _panel(axes, each, boxes[name], scale)
        title = f"{name}: {_figures(each)}" + (saving if each is timeline else "")
        axes.set_title(title, fontsize="medium", loc="left")
    panels[0].set_xlim(0, scale.end_s * 1.002)
    panels[1].set_xlabel("s from the iteration's begin (predicted)")
    _clock_bar(figure, panels, boxes, scale)
    kinds = {box.kind for each in boxes.values() for box in each}
    figure.legend(
        handles=_legend(timeline, kinds), loc="outside lower left", ncols=8,
        fontsize="small", frameon=False,
    )  # fmt: skip
    figure.suptitle(_title(timeline), parse_math=False)
    return figure


def _title(timeline: SimulatedPlan) -> str:
    plan = timeline.plan
    pipelines = f"{len(timeline.models)} pipelines of " if timeline.plan.is_separate else ""
    title = (
        f"Predicted iteration: {plan.schedule}, {pipelines}{plan.num_stages} stages,"
        f" {plan.num_microbatches} microbatches; policy {plan.policy}, target {plan.target}"
    )
    # Names are from the plan file and may be any text.
    drawable = "".join(c if c.isascii() and c.isprintable() else "?" for c in title)
    return textwrap.shorten(drawable, _TITLE_LENGTH)


def _scale(shown: dict[str, SimulatedPlan], boxes: dict[str, list[Box]]) -> _Scale:
    clocks_mhz = [box.clock_mhz for timeline in boxes.values() for box in timeline]
    num_rows = max(len(row_names(timeline)) for timeline in shown.values())
    return _Scale(
        colors=ListedColormap(mpl.colormaps["viridis"](np.linspace(*CLOCK_SHARES, 256))),
        # A single clock has the highest colour.
        clocks=Normalize(min(*clocks_mhz, max(clocks_mhz) - 1), max(clocks_mhz)),
        end_s=max(timeline.simulation.whole.iteration_time_s for timeline in shown.values()),
        num_rows=num_rows,
        panel_height_in=min(0.42 * num_rows + 0.2, max(5.0, 0.14 * num_rows), 20.0),
    )


def _figures(timeline: SimulatedPlan) -> str:
    whole = timeline.simulation.whole
    return (
        f"{whole.iteration_time_s:.4f} s, {whole.energy_j:.2f} J,"
        f" bubbles {100 * whole.bubble_fraction:.1f} % (predicted)"
    )


def _saving_percent(baseline: SimulatedPlan, plan: SimulatedPlan) -> float:
    return 100 * (1 - plan.simulation.whole.energy_j / baseline.simulation.whole.energy_j)


def _panel(axes: Axes, timeline: SimulatedPlan, boxes: Sequence[Box], scale: _Scale) -> None:
    rows = row_names(timeline)
    _waiting(axes, len(rows), timeline.simulation.whole.iteration_time_s)
    many = len(boxes) > _MANY_BOXES
    for kind, style in BOX_STYLES.items():
        of_kind = [box for box in boxes if box.kind is kind]
        if of_kind:
            _fill(axes, of_kind, scale, hatch="" if many else style.hatch, rasterized=many)
    _critical_paths(axes, timeline, width_pt=0.7 if len(rows) > _MANY_ROWS else 1.3)
    _write_labels(axes, boxes, scale)
    every = -(-len(rows) // 40)
    axes.set_yticks(range(0, len(rows), every), rows[::every], fontsize="small")
    axes.set_ylim(len(rows) - 0.5, -0.5)  # the first stage on top
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _corners(left: float, right: float, top: float, bottom: float) -> list[Point]:
    return [(left, bottom), (right, bottom), (right, top), (left, top)]


def _waiting(axes: Axes, num_rows: int, iteration_time_s: float) -> None:
    """Draw the background, of which the visible part is waiting."""
    whole_rows = [
        _corners(0.0, iteration_time_s, row - ROW_HEIGHT / 2, row + ROW_HEIGHT / 2)
        for row in range(num_rows)
    ]
    axes.add_collection(
        PolyCollection(whole_rows, facecolors=_WAITING, linewidths=0), autolim=False
    )


def _fill(axes: Axes, boxes: Sequence[Box], scale: _Scale, *, hatch: str, rasterized: bool) -> None:
    corners = [
        _corners(box.start_s, box.finish_s, box.bottom - box.height, box.bottom) for box in boxes
    ]
    collection = PolyCollection(
        corners,
        array=np.array([box.clock_mhz for box in boxes], dtype=np.float64),
        cmap=scale.colors,
        norm=scale.clocks,
        edgecolors="none" if rasterized else "0.35",
        linewidths=0 if rasterized else 0.35,
        hatch=hatch or None,
        rasterized=rasterized,
        zorder=2,
    )
    axes.add_collection(collection, autolim=False)


def _critical_paths(axes: Axes, timeline: SimulatedPlan, *, width_pt: float) -> None:
    lines = list(critical_lines(timeline))
    collection = LineCollection(lines, colors=_CRITICAL, linewidths=width_pt, zorder=3)
    axes.add_collection(collection, autolim=False)


def _write_labels(axes: Axes, boxes: Sequence[Box], scale: _Scale) -> None:
    """Write `F3` and below it the MHz, as far as the box has room."""
    font_pt = min(_LARGEST_FONT_PT, 0.3 * scale.row_height_pt)
    for box in boxes:
        width_pt = scale.width_pt(box.finish_s - box.start_s)
        label_pt = min(font_pt, width_pt / _width_em(box.label))
        clock = str(box.clock_mhz)
        clock_pt = min(0.8 * font_pt, width_pt / _width_em(clock))
        if label_pt < _SMALLEST_FONT_PT:
            continue
        is_tall = 2.1 * font_pt <= box.height * scale.row_height_pt
        has_both = is_tall and clock_pt >= _SMALLEST_FONT_PT
        ink = "black" if scale.clocks(box.clock_mhz) >= _LIGHT_FROM else "white"
        texts = [(box.label, label_pt, 0.7 if has_both else 0.5)]
        if has_both:
            texts.append((clock, clock_pt, 0.27))
        for text, size_pt, height in texts:
            axes.text(
                (box.start_s + box.finish_s) / 2, box.bottom - box.height * height, text,
                color=ink, fontsize=size_pt, ha="center", va="center", zorder=4, in_layout=False,
            )  # fmt: skip


def _width_em(text: str) -> float:
    """Return the approximate width of the text, in font sizes."""
    return sum(_WIDTHS_EM.get(character, _DIGIT_WIDTH_EM) for character in text)


def _clock_bar(
    figure: Figure, panels: Sequence[Axes], boxes: dict[str, list[Box]], scale: _Scale
) -> None:
    bar = figure.colorbar(
        ScalarMappable(norm=scale.clocks, cmap=scale.colors), ax=panels, pad=0.01, aspect=40
    )
    bar.set_label("planned SM clock, MHz")
    clocks_mhz = sorted({box.clock_mhz for timeline in boxes.values() for box in timeline})
    if len(clocks_mhz) <= 8:
        bar.set_ticks(clocks_mhz)


def _legend(timeline: SimulatedPlan, kinds: set[InstructionKind]) -> list[Patch]:
    handles = [
        Patch(
            facecolor="0.85",
            edgecolor="0.35",
            hatch=style.hatch or None,
            label=f"{LETTERS[kind]} {kind} ({style.words})",
        )
        for kind, style in BOX_STYLES.items()
        if kind in kinds
    ]
    path = "each pipeline's longest path" if timeline.plan.is_separate else "critical path"
    handles.append(Patch(facecolor="none", edgecolor=_CRITICAL, linewidth=1.3, label=path))
    handles.append(Patch(facecolor=_WAITING, label="waiting"))
    if num_chunks(timeline) > 1:
        note = "F3.1: of chunk 1; later chunks sit higher"
        handles.append(Patch(facecolor="none", edgecolor="none", label=note))
    return handles
