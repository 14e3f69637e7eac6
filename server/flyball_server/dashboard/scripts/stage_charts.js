// Chart of one stage's SM clock, measured and planned.

import { make } from "./elements.js";
import { fixed } from "./format.js";
import { StepChart } from "./step_chart.js";
import { DISC } from "./step_marks.js";
import { wholeRange } from "./step_series.js";

/**
 * @import { ChartLine } from "./step_chart.js"
 * @import { ChartsOptions } from "./step_charts.js"
 * @import { Pen } from "./step_marks.js"
 * @import { Column, StepSeries } from "./step_series.js"
 */

const CLOCK_HEIGHT = 96;

/** @type {ChartLine[]} */
const LINES = [
  { label: "measured, mean of what was read back", color: 1, width: 1.6 },
  { label: "planned, mean of its instructions", color: 2, dash: [3, 3], stepped: true },
];

export class StageClockChart {
  /** @param {HTMLElement} place @param {number} num_stages @param {ChartsOptions} listeners */
  constructor(place, num_stages, { onCursor, onSelect }) {
    /** @type {StepSeries | null} */
    this.series = null;
    this.stage = 0;
    this.chart = new StepChart(place, {
      title: "SM clock of a stage, MHz, measured and planned",
      height: CLOCK_HEIGHT,
      hasSteps: true,
      lines: LINES,
      range: wholeRange,
      ticks: (clocks_mhz) => clocks_mhz.map((mhz) => fixed(mhz, 0)),
      drawAbove: (pen) => this.drawSingles(pen),
      onCursor: (index) => onCursor(index, index === null ? null : this.stage),
      onSelect,
    });
    this.field = make("input.stage-choice", {
      type: "number",
      min: 0,
      max: num_stages - 1,
      value: 0,
      "aria-label": "Stage whose clock is shown as a line",
      oninput: () => this.choose(Number(this.field.value)),
    });
    this.chart.legend.after(make("label.stage-label", "stage ", this.field));
  }

  /** @param {number} stage ignored if it does not exist */
  choose(stage) {
    if (!Number.isInteger(stage) || stage < 0 || stage > Number(this.field.max)) return;
    this.stage = stage;
    if (Number(this.field.value) !== stage) this.field.value = String(stage);
    this.showStage();
  }

  /** @param {StepSeries} series the chart is hidden if no clock was read */
  show(series) {
    this.series = series;
    const isRead = series.clock_mhz.some((column) => column.some((mhz) => mhz !== null));
    this.chart.element.hidden = !isRead;
    if (isRead) this.chart.fit();
    this.showStage();
  }

  /** Draw a dot for a reading between two steps without one: no line shows it. @param {Pen} pen */
  drawSingles(pen) {
    const column = this.series?.clock_mhz[this.stage] ?? [];
    if (this.series === null || !pen.plot.series[1].show) return;
    pen.context.fillStyle = pen.colors["series-1"];
    for (const index of singles(column)) {
      const [x, y] = [pen.x(this.series.step[index]), pen.y(column[index] ?? 0)];
      pen.shape(DISC, x, y, 2.25 * pen.ratio);
    }
  }

  showStage() {
    if (this.series === null) return;
    const { step, clock_mhz, planned_mhz } = this.series;
    const { stage } = this;
    this.chart.setData(step, [clock_mhz[stage] ?? [], planned_mhz[stage] ?? []]);
  }
}

/** Return the indices of values without a neighbour. @param {Column} column */
export function singles(column) {
  const isThere = (/** @type {number} */ index) => (column[index] ?? null) !== null;
  return [...column.keys()].filter(
    (index) => isThere(index) && !isThere(index - 1) && !isThere(index + 1),
  );
}
