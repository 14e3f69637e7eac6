// A chart over steps: uPlot in the theme's colours; the page keeps cursor and range.

import uPlot from "../vendor/uplot/uPlot.esm.js";
import { fileButtons } from "./chart_files.js";
import { fontFamily, make, makeSvg, setChildren, watchLooks } from "./elements.js";
import { Pen } from "./step_marks.js";
import { themeColors } from "./theme.js";

/**
 * @import { CsvRow } from "./chart_files.js"
 * @import { Column } from "./step_series.js"
 */

// Width of the vertical axis in px, the same for all charts: their steps are in line.
const AXIS_WIDTH = 56;
const X_AXIS_HEIGHT = 26;
const X_LABEL_HEIGHT = 16;
const TOP = 8;
const STEP_INCREMENTS = [1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8].flatMap((unit) =>
  [1, 2, 5].map((factor) => factor * unit),
);

/**
 * @typedef {object} ChartLine
 * @property {string} label with `measured` or `predicted`
 * @property {number} color of `--series-N`
 * @property {number[]} [dash]
 * @property {boolean} [stepped] a value holds until the next
 * @property {number} [width] px
 * @typedef {object} ChartOptions
 * @property {string} title
 * @property {() => CsvRow[]} [rows] of its file; left out: the lines
 * @property {number} height px of the plot
 * @property {ChartLine[]} lines
 * @property {boolean} [hasSteps] labels at the axis of steps
 * @property {(columns: Column[]) => [number, number]} range of the axis
 * @property {(values: number[]) => string[]} ticks labels of the vertical axis
 * @property {() => number[]} [splits] ticks of the vertical axis; left out: chosen by uPlot
 * @property {boolean} [falling] the vertical axis begins at the top
 * @property {(pen: Pen) => void} [drawBelow] under the lines
 * @property {(pen: Pen) => void} [drawAbove]
 * @property {(index: number | null, y: number | null) => void} onCursor
 * @property {(from: number, to: number) => void} onSelect steps
 * @typedef {Record<string, string>} ChartColors
 * @typedef {uPlot} Plot
 */

const SERIES_COLORS = Array.from({ length: 8 }, (_, index) => `series-${index + 1}`);
const COLORS = ["text", "text-muted", "grid", "border", "surface", "warn", "bad", ...SERIES_COLORS];

export class StepChart {
  /** @param {HTMLElement} place gets the chart @param {ChartOptions} options */
  constructor(place, options) {
    this.options = options;
    this.colors = themeColors(...COLORS);
    this.title = make("h3.chart-title", options.title);
    this.legend = make("div.legend");
    this.frame = make("div.chart-frame");
    const files = fileButtons({
      title: options.title,
      rows: () => options.rows?.() ?? this.lineRows(),
      pictures: () => [this.plot.ctx.canvas],
      legend: () => this.lineNames(),
    });
    this.head = make("div.chart-head", this.title, this.legend, files);
    this.element = make("div.chart", this.head, this.frame);
    place.append(this.element);
    this.isQuiet = false;
    this.hasOwnLegend = false;
    this.plot = new uPlot(this.plotOptions(), [[], ...options.lines.map(() => [])], this.frame);
    this.showLegend();
    this.unwatch = watchLooks(this.frame, {
      onResize: () => this.fit(),
      onTheme: () => this.recolor(),
    });
  }

  destroy() {
    this.unwatch();
    this.plot.destroy();
    this.element.remove();
  }

  /** @param {number[]} steps rising @param {Column[]} columns one of each line */
  setData(steps, columns) {
    this.quietly(() => this.plot.setData([steps, ...columns]));
  }

  /** @param {number | null} step */
  setCursor(step) {
    this.isQuiet = true;
    const left = step === null ? -10 : this.plot.valToPos(step, "x");
    this.plot.setCursor({ left, top: step === null ? -10 : 1 });
    this.isQuiet = false;
  }

  fit() {
    const width = Math.floor(this.frame.clientWidth);
    const height = this.totalHeight();
    if (width > 0 && (width !== this.plot.width || height !== this.plot.height)) {
      this.quietly(() => this.plot.setSize({ width, height }));
    }
  }

  recolor() {
    this.colors = themeColors(...COLORS);
    this.showLegend();
    this.quietly(() => this.plot.redraw(true));
  }

  /**
   * Change and draw the plot without calling `onCursor`. A batch draws before it returns.
   * @param {() => void} change
   */
  quietly(change) {
    this.isQuiet = true;
    this.plot.batch(change);
    this.isQuiet = false;
  }

  /** Return the steps and the lines that are shown. */
  lineNames() {
    const { min, max } = this.plot.scales.x;
    const steps = `steps ${Math.ceil(min ?? 0)} to ${Math.floor(max ?? 0)}`;
    const lines = this.options.lines.filter(
      ({ label }, index) => label !== "" && this.plot.series[index + 1].show,
    );
    return [
      { label: steps, color: "", dash: [] },
      ...lines.map(({ label, color, dash = [] }) => ({
        ...{ label, dash },
        color: this.colors[`series-${color}`],
      })),
    ];
  }

  /** @returns {CsvRow[]} the lines by step */
  lineRows() {
    const [steps, ...columns] = /** @type {Column[]} */ (this.plot.data);
    const heads = ["step", ...this.options.lines.map(({ label }) => label)];
    return [heads, ...steps.map((step, index) => [step, ...columns.map((each) => each[index])])];
  }

  totalHeight() {
    return this.options.height + TOP + (this.options.hasSteps ? X_AXIS_HEIGHT + X_LABEL_HEIGHT : 8);
  }

  /** @returns {uPlot.Options} */
  plotOptions() {
    const { lines, drawBelow, drawAbove } = this.options;
    /** @type {(draw?: (pen: Pen) => void) => ((plot: Plot) => void)[]} */
    const drawing = (draw) =>
      draw ? [(plot) => clipped(plot, () => draw(new Pen(plot, this.colors)))] : [];
    return {
      width: Math.max(100, this.frame.clientWidth || 600),
      height: this.totalHeight(),
      padding: [TOP, 10, 0, 0],
      legend: { show: false },
      scales: {
        x: { time: false, range: (_plot, low, high) => [low - 0.5, high + 0.5] },
        y: {
          dir: this.options.falling ? -1 : 1,
          range: () => this.options.range(this.shownColumns()),
        },
      },
      axes: [this.stepAxis(), this.valueAxis()],
      series: [{}, ...lines.map((line) => this.series(line))],
      cursor: { y: false, points: { size: 7 }, drag: { x: true, y: false, setScale: false } },
      hooks: {
        drawClear: drawing(drawBelow),
        draw: drawing(drawAbove),
        setCursor: [(plot) => this.cursorMoved(plot)],
        setSelect: [(plot) => this.selected(plot)],
      },
    };
  }

  /** @param {ChartLine} line @returns {uPlot.Series} */
  series({ color, dash, stepped, width }) {
    const paths = stepped ? uPlot.paths.stepped?.({ align: 1 }) : undefined;
    return {
      stroke: () => this.colors[`series-${color}`],
      width: width ?? 1.5,
      dash,
      points: { show: stepped ? false : undefined, size: 4 },
      ...(paths ? { paths } : {}),
    };
  }

  /** @returns {uPlot.Axis} */
  axis() {
    return {
      stroke: () => this.colors["text-muted"],
      font: `11px ${fontFamily()}`,
      labelFont: `11px ${fontFamily()}`,
      grid: { stroke: () => this.colors.grid, width: 1 },
      ticks: { stroke: () => this.colors.border, width: 1, size: 4 },
    };
  }

  /** @returns {uPlot.Axis} */
  stepAxis() {
    const incrs = STEP_INCREMENTS;
    if (!this.options.hasSteps) {
      return { ...this.axis(), size: 8, incrs, values: (_plot, ticks) => ticks.map(() => "") };
    }
    const label = { label: "step", labelSize: X_LABEL_HEIGHT, labelGap: 0 };
    const values = (/** @type {Plot} */ _plot, /** @type {number[]} */ ticks) => ticks.map(String);
    return { ...this.axis(), ...label, size: X_AXIS_HEIGHT, incrs, values };
  }

  /** @returns {uPlot.Axis} */
  valueAxis() {
    const { ticks, splits } = this.options;
    const places = splits ? { splits } : {};
    const values = (/** @type {Plot} */ _plot, /** @type {number[]} */ shown) => ticks(shown);
    return { ...this.axis(), ...places, size: AXIS_WIDTH, space: 26, values };
  }

  /** Return the columns of the lines that are shown. */
  shownColumns() {
    const columns = /** @type {Column[]} */ (this.plot?.data.slice(1) ?? []);
    return columns.filter((_column, index) => this.plot.series[index + 1].show);
  }

  /** @param {Plot} plot */
  cursorMoved(plot) {
    if (this.isQuiet) return;
    const { idx, left, top = 0 } = plot.cursor;
    const isInside = left !== undefined && left >= 0 && idx !== null && idx !== undefined;
    this.options.onCursor(isInside ? idx : null, isInside ? plot.posToVal(top, "y") : null);
  }

  /** @param {Plot} plot */
  selected(plot) {
    const { left, width } = plot.select;
    if (this.isQuiet || width < 4) return;
    const from = plot.posToVal(left, "x");
    const to = plot.posToVal(left + width, "x");
    this.isQuiet = true;
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.isQuiet = false;
    this.options.onSelect(from, to);
  }

  /** Replace the legend, which is a list of the lines otherwise. @param {...HTMLElement} entries */
  setLegend(...entries) {
    this.hasOwnLegend = true;
    setChildren(this.legend, ...entries);
  }

  showLegend() {
    if (this.hasOwnLegend) return;
    const entries = this.options.lines.map((line, index) => this.legendEntry(line, index + 1));
    setChildren(this.legend, ...entries);
  }

  /** @param {ChartLine} line @param {number} index */
  legendEntry(line, index) {
    const isShown = this.plot.series[index].show === true;
    const onclick = () => {
      const show = this.plot.series[index].show !== true;
      this.quietly(() => this.plot.setSeries(index, { show }));
      button.setAttribute("aria-pressed", String(show));
    };
    const sample = lineSample(this.colors[`series-${line.color}`], line.dash ?? []);
    const attributes = { "aria-pressed": String(isShown), onclick };
    const button = make("button.legend-entry", attributes, sample, line.label);
    return button;
  }
}

/** @param {string} stroke @param {number[]} dash */
function lineSample(stroke, dash) {
  const style = { stroke, "stroke-width": 2, "stroke-dasharray": dash.join(" ") };
  const line = makeSvg("line", { x1: 0, x2: 24, y1: 4, y2: 4, ...style });
  return makeSvg("svg", { width: 24, height: 8, "aria-hidden": "true" }, line);
}

/** Draw only within the plot's area. @param {Plot} plot @param {() => void} draw */
function clipped(plot, draw) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  draw();
  ctx.restore();
}
