// One chart over steps: uPlot in this page's colours, with the cursor and the range kept outside.

import uPlot from "../vendor/uplot/uPlot.esm.js";
import { make, setChildren } from "./elements.js";
import { makeSvg } from "./svg_elements.js";
import { themeColors } from "./theme_colors.js";

/** Width of the vertical axis, so that charts one above the other have their steps in line, px. */
export const AXIS_WIDTH = 56;
const X_AXIS_HEIGHT = 26;
const X_LABEL_HEIGHT = 16;
const TOP = 8;

/**
 * @typedef {object} ChartLine
 * @property {string} label says measured or predicted
 * @property {number} color of `--series-N`
 * @property {number[]} [dash]
 * @property {boolean} [stepped] a value holds until the next
 * @property {number} [width] px
 *
 * @typedef {object} ChartOptions
 * @property {string} title
 * @property {number} height px of the plot
 * @property {ChartLine[]} lines
 * @property {boolean} [hasSteps] whether the axis of steps is written below
 * @property {[number, number][]} [bands] pairs of lines with a tint between them, upper line first
 * @property {(columns: import("./step_series.js").Column[]) => [number, number]} range of the axis
 * @property {(values: number[]) => string[]} ticks what is written at the vertical axis
 * @property {() => number[]} [splits] where the vertical axis is written; else where it suits
 * @property {boolean} [falling] the vertical axis begins at the top
 * @property {(plot: Plot, colors: ChartColors) => void} [drawBelow] under the lines
 * @property {(plot: Plot, colors: ChartColors) => void} [drawAbove]
 * @property {(index: number | null, y: number | null) => void} onCursor
 * @property {(from: number, to: number) => void} onSelect steps
 *
 * @typedef {Record<string, string>} ChartColors
 * @typedef {uPlot} Plot
 */

const COLOR_NAMES = /** @type {const} */ ([
  "text",
  "text-muted",
  "grid",
  "border",
  "surface",
  "warn",
  "bad",
  "accent",
  "series-1",
  "series-2",
  "series-3",
  "series-4",
  "series-5",
  "series-6",
  "series-7",
  "series-8",
]);

export class StepChart {
  /**
   * @param {HTMLElement} place gets the chart
   * @param {ChartOptions} options
   */
  constructor(place, options) {
    this.options = options;
    this.colors = /** @type {ChartColors} */ (themeColors(...COLOR_NAMES));
    this.title = make("h3", { class: "chart-title" }, options.title);
    this.legend = make("div", { class: "legend" });
    this.frame = make("div", { class: "chart-frame" });
    this.head = make("div", { class: "chart-head" }, this.title, this.legend);
    this.element = make("div", { class: "chart" }, this.head, this.frame);
    place.append(this.element);
    this.isQuiet = false;
    // Where the legend is no list of the lines, who made it fills it.
    this.hasOwnLegend = false;
    this.plot = new uPlot(this.plotOptions(), [[], ...options.lines.map(() => [])], this.frame);
    this.showLegend();
    this.observer = new ResizeObserver(() => this.fit());
    this.observer.observe(this.frame);
    this.onTheme = () => this.recolor();
    document.addEventListener("themechange", this.onTheme);
  }

  destroy() {
    document.removeEventListener("themechange", this.onTheme);
    this.observer.disconnect();
    this.plot.destroy();
    this.element.remove();
  }

  /**
   * @param {number[]} steps rising
   * @param {import("./step_series.js").Column[]} columns one of each line
   */
  setData(steps, columns) {
    this.quietly(() => this.plot.setData([steps, ...columns]));
  }

  /**
   * @param {number | null} step
   */
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
    this.colors = /** @type {ChartColors} */ (themeColors(...COLOR_NAMES));
    this.showLegend();
    this.quietly(() => this.plot.redraw(true));
  }

  /**
   * Change the plot and draw it, without a word of its cursor: that is where the page has put it.
   * In a batch, as the plot would else be drawn, and tell of its cursor, when this has returned.
   * @param {() => void} change
   */
  quietly(change) {
    this.isQuiet = true;
    this.plot.batch(change);
    this.isQuiet = false;
  }

  /** @returns {number} */
  totalHeight() {
    return this.options.height + TOP + (this.options.hasSteps ? X_AXIS_HEIGHT + X_LABEL_HEIGHT : 8);
  }

  /** @returns {uPlot.Options} */
  plotOptions() {
    const { lines, bands = [], drawBelow, drawAbove } = this.options;
    return {
      width: Math.max(100, this.frame.clientWidth || 600),
      height: this.totalHeight(),
      padding: [TOP, 10, 0, 0],
      legend: { show: false },
      scales: {
        x: {
          time: false,
          range: (
            /** @type {Plot} */ _plot,
            /** @type {number} */ low,
            /** @type {number} */ high,
          ) => [low - 0.5, high + 0.5],
        },
        y: {
          dir: this.options.falling ? -1 : 1,
          range: () => this.options.range(this.shownColumns()),
        },
      },
      axes: [this.stepAxis(), this.valueAxis()],
      series: [{}, ...lines.map((line) => this.series(line))],
      bands: bands.map((pair) => ({
        series: [pair[0] + 1, pair[1] + 1],
        fill: () => `${this.colors[`series-${lines[pair[0]].color}`]}26`,
      })),
      cursor: {
        y: false,
        points: { size: 7 },
        drag: { x: true, y: false, setScale: false },
      },
      hooks: {
        drawClear: drawBelow
          ? [(plot) => clipped(plot, () => drawBelow(plot, this.colors))]
          : [],
        draw: drawAbove
          ? [(plot) => clipped(plot, () => drawAbove(plot, this.colors))]
          : [],
        setCursor: [(plot) => this.cursorMoved(plot)],
        setSelect: [(plot) => this.selected(plot)],
      },
    };
  }

  /**
   * @param {ChartLine} line
   * @returns {uPlot.Series}
   */
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
  stepAxis() {
    const { hasSteps } = this.options;
    return {
      stroke: () => this.colors["text-muted"],
      font: `11px ${fontFamily()}`,
      size: hasSteps ? X_AXIS_HEIGHT : 8,
      ...(hasSteps
        ? {
            label: "step",
            labelSize: X_LABEL_HEIGHT,
            labelGap: 0,
            labelFont: `11px ${fontFamily()}`,
          }
        : {}),
      incrs: [
        1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 1e4, 2e4, 5e4, 1e5, 1e6, 1e7, 1e8,
      ],
      values: (/** @type {Plot} */ _plot, /** @type {number[]} */ ticks) =>
        ticks.map((tick) => (hasSteps ? String(tick) : "")),
      grid: { stroke: () => this.colors.grid, width: 1 },
      ticks: { stroke: () => this.colors.border, width: 1, size: 4 },
    };
  }

  /** @returns {uPlot.Axis} */
  valueAxis() {
    const { ticks, splits } = this.options;
    return {
      stroke: () => this.colors["text-muted"],
      font: `11px ${fontFamily()}`,
      size: AXIS_WIDTH,
      ...(splits ? { splits } : {}),
      space: 26,
      values: (/** @type {Plot} */ _plot, /** @type {number[]} */ values) => ticks(values),
      grid: { stroke: () => this.colors.grid, width: 1 },
      ticks: { stroke: () => this.colors.border, width: 1, size: 4 },
    };
  }

  /** @returns {import("./step_series.js").Column[]} of the lines that are shown */
  shownColumns() {
    return this.options.lines.flatMap((_line, index) =>
      this.plot?.series[index + 1].show ? [/** @type {import("./step_series.js").Column} */ (this.plot.data[index + 1])] : [],
    );
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

  showLegend() {
    if (this.hasOwnLegend) return;
    setChildren(
      this.legend,
      ...this.options.lines.map((line, index) => this.legendEntry(line, index + 1)),
    );
  }

  /**
   * @param {ChartLine} line
   * @param {number} index
   * @returns {HTMLElement}
   */
  legendEntry(line, index) {
    const isShown = this.plot.series[index].show === true;
    const button = make(
      "button",
      { type: "button", class: "legend-entry", "aria-pressed": String(isShown) },
      lineSample(this.colors[`series-${line.color}`], line.dash),
      line.label,
    );
    button.addEventListener("click", () => {
      const show = this.plot.series[index].show !== true;
      this.quietly(() => this.plot.setSeries(index, { show }));
      button.setAttribute("aria-pressed", String(show));
    });
    return button;
  }
}

/**
 * @param {string} color
 * @param {number[] | undefined} dash
 * @returns {Node}
 */
export function lineSample(color, dash) {
  return makeSvg(
    "svg",
    { width: 24, height: 8, "aria-hidden": "true" },
    makeSvg("line", {
      x1: 0,
      x2: 24,
      y1: 4,
      y2: 4,
      stroke: color,
      "stroke-width": 2,
      "stroke-dasharray": (dash ?? []).join(" "),
    }),
  );
}

/** @returns {string} */
export function fontFamily() {
  return getComputedStyle(document.body).fontFamily;
}

/**
 * Draw within the plot's area alone.
 * @param {Plot} plot
 * @param {() => void} draw
 */
function clipped(plot, draw) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  draw();
  ctx.restore();
}
