// The SM clock of one stage, as its GPUs had it and as the plan asks for it.

import { fixed } from "./format.js";
import { StageChoice } from "./stage_choice.js";
import { StepChart } from "./step_chart.js";
import { wholeRange } from "./step_series.js";

/** @typedef {import("./step_series.js").StepSeries} StepSeries */
/** @typedef {import("./step_chart.js").Plot} Plot */

const HEIGHT = 96;

/** @type {import("./step_chart.js").ChartLine[]} */
const LINES = [
  { label: "measured, mean of what was read back", color: 1, width: 1.6 },
  { label: "planned, mean of its instructions", color: 2, dash: [3, 3], stepped: true },
];

export class StageClockChart {
  /**
   * @param {HTMLElement} place
   * @param {number} num_stages
   * @param {{
   *   onCursor: (index: number | null, stage: number | null) => void,
   *   onSelect: (from: number, to: number) => void,
   * }} options
   */
  constructor(place, num_stages, { onCursor, onSelect }) {
    /** @type {StepSeries | null} */
    this.series = null;
    this.chart = new StepChart(place, {
      title: "SM clock of a stage, MHz, measured and planned",
      height: HEIGHT,
      lines: LINES,
      range: wholeRange,
      ticks: (clocks_mhz) => clocks_mhz.map((mhz) => fixed(mhz, 0)),
      drawAbove: (plot, colors) => this.drawSingles(plot, colors["series-1"]),
      onCursor: (index) => onCursor(index, index === null ? null : this.choice.stage),
      onSelect,
    });
    this.choice = new StageChoice(
      this.chart.head,
      num_stages,
      "Stage whose clock is shown as a line",
      () => this.showStage(),
    );
  }

  /** @param {StepSeries} series without a clock that was read there is no chart */
  show(series) {
    this.series = series;
    const isRead = series.clock_mhz.some((column) => column.some((mhz) => mhz !== null));
    this.chart.element.hidden = !isRead;
    if (isRead) this.chart.fit();
    this.showStage();
  }

  /**
   * Short steps are not read each: one that is, between two that are not, has no line to be seen by.
   * @param {Plot} plot
   * @param {string} color
   */
  drawSingles(plot, color) {
    const column = this.series?.clock_mhz[this.choice.stage] ?? [];
    if (this.series === null || !plot.series[1].show) return;
    plot.ctx.fillStyle = color;
    for (const index of singles(column)) {
      const x = plot.valToPos(this.series.step[index], "x", true);
      const y = plot.valToPos(column[index] ?? 0, "y", true);
      plot.ctx.beginPath();
      plot.ctx.arc(x, y, 1.8 * devicePixelRatio, 0, 2 * Math.PI);
      plot.ctx.fill();
    }
  }

  showStage() {
    if (this.series === null) return;
    const { step, clock_mhz, planned_mhz } = this.series;
    const { stage } = this.choice;
    this.chart.setData(step, [clock_mhz[stage] ?? [], planned_mhz[stage] ?? []]);
  }
}

/**
 * Where a value has none beside it.
 * @param {import("./step_series.js").Column} column
 * @returns {number[]} indices
 */
export function singles(column) {
  const isThere = (/** @type {number} */ index) => (column[index] ?? null) !== null;
  return [...column.keys()].filter(
    (index) => isThere(index) && !isThere(index - 1) && !isThere(index + 1),
  );
}
