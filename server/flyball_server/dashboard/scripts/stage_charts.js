// Charts by stage: mean power of all stages, SM clock of one.

import { make, placeTip, setText } from "./elements.js";
import { count, fixed, watts, wattTicks } from "./format.js";
import { StepChart } from "./step_chart.js";
import { DISC } from "./step_marks.js";
import { spread, stageRows, usualRange, wholeRange } from "./step_series.js";

/**
 * @import { ChartLine } from "./step_chart.js"
 * @import { ChartsOptions } from "./step_charts.js"
 * @import { Pen } from "./step_marks.js"
 * @import { Column, StepSeries } from "./step_series.js"
 */

const MOST_LINES = 8;
const POWER_HEIGHT = 138;
/** @type {number[][]} */
const DASHES = [[], [7, 3], [2, 2], [9, 3, 2, 3], [], [7, 3], [2, 2], [9, 3, 2, 3]];

export class StagePowerChart {
  /**
   * @param {HTMLElement} place
   * @param {number} num_stages
   * @param {ChartsOptions} listeners
   */
  constructor(place, num_stages, { onCursor, onSelect }) {
    this.isSpread = num_stages > MOST_LINES;
    /** @type {number | null} */
    this.nearest = null;
    /** @type {StepSeries | null} */
    this.series = null;
    this.chart = new StepChart(place, {
      title: "Mean power by stage, measured",
      rows: () => stageRows(this.series?.step ?? [], this.series?.power_w ?? [], "W"),
      height: POWER_HEIGHT,
      lines: this.isSpread ? spreadLines() : stageLines(num_stages),
      bands: this.isSpread ? [[0, 2]] : [],
      range: usualRange,
      ticks: wattTicks,
      onCursor: (index, power_w) => {
        this.nearest = this.nearestTo(index, power_w);
        this.showTip(index);
        onCursor(index, this.nearest);
      },
      onSelect,
    });
    this.tip = make("div.chart-tip", { hidden: true, "aria-hidden": "true" });
    this.chart.frame.append(this.tip);
    this.chart.frame.addEventListener("pointerleave", () => this.showTip(null));
    if (!this.isSpread) return;
    const label = "Stage whose power is shown as a line";
    const choice = new StageChoice(this.chart.head, num_stages, label, () => this.showSpread());
    this.choice = choice;
    this.chart.frame.addEventListener("click", () => {
      if (this.nearest !== null) choice.choose(this.nearest);
    });
  }

  /** @param {StepSeries} series */
  show(series) {
    this.series = series;
    if (!this.isSpread) {
      this.chart.setData(series.step, series.power_w);
      return;
    }
    this.spread = spread(series.power_w, series.step.length);
    this.showSpread();
  }

  showSpread() {
    if (this.series === null || this.spread === undefined || this.choice === undefined) return;
    const { lowest, middle, highest } = this.spread;
    const one = this.series.power_w[this.choice.stage] ?? [];
    this.chart.setData(this.series.step, [highest, middle, lowest, one]);
  }

  /** Name the stage under the pointer, beside it. @param {number | null} index */
  showTip(index) {
    const { nearest, series, tip, chart } = this;
    const power_w = nearest === null ? null : (series?.power_w[nearest]?.[index ?? -1] ?? null);
    tip.hidden = power_w === null;
    if (series === null || index === null || power_w === null) return;
    setText(tip, `stage ${nearest}: ${watts(power_w)}, step ${count(series.step[index])}`);
    const { left, top } = chart.placeOf(series.step[index], power_w);
    placeTip(tip, { left, top, width: 0, height: 0 }, 10);
  }

  /**
   * @param {number | null} index
   * @param {number | null} power_w
   * @returns {number | null} stage with the nearest power in that step
   */
  nearestTo(index, power_w) {
    if (index === null || power_w === null || this.series === null) return null;
    let nearest = null;
    let least = Number.POSITIVE_INFINITY;
    for (const [stage, column] of this.series.power_w.entries()) {
      const value = column[index];
      const distance = value === null ? least : Math.abs(value - power_w);
      if (distance < least) [least, nearest] = [distance, stage];
    }
    return nearest;
  }
}

/** @param {number} num_stages @returns {ChartLine[]} */
function stageLines(num_stages) {
  return Array.from({ length: num_stages }, (_, stage) => ({
    label: `stage ${stage}`,
    color: stage + 1,
    dash: DASHES[stage],
    width: 1.4,
  }));
}

/** @returns {ChartLine[]} upper before lower, as bands need it */
function spreadLines() {
  return [
    { label: "highest of all stages", color: 8, width: 1 },
    { label: "median", color: 1, dash: [7, 3], width: 1.4 },
    { label: "lowest", color: 8, width: 1 },
    { label: "the chosen stage", color: 2, width: 1.6 },
  ];
}

const CLOCK_HEIGHT = 96;

/** @type {ChartLine[]} */
const LINES = [
  { label: "measured, mean of what was read back", color: 1, width: 1.6 },
  { label: "planned, mean of its instructions", color: 2, dash: [3, 3], stepped: true },
];

export class StageClockChart {
  /**
   * @param {HTMLElement} place
   * @param {number} num_stages
   * @param {ChartsOptions} listeners
   */
  constructor(place, num_stages, { onCursor, onSelect }) {
    /** @type {StepSeries | null} */
    this.series = null;
    this.chart = new StepChart(place, {
      title: "SM clock of a stage, MHz, measured and planned",
      height: CLOCK_HEIGHT,
      lines: LINES,
      range: wholeRange,
      ticks: (clocks_mhz) => clocks_mhz.map((mhz) => fixed(mhz, 0)),
      drawAbove: (pen) => this.drawSingles(pen),
      onCursor: (index) => onCursor(index, index === null ? null : this.choice.stage),
      onSelect,
    });
    const label = "Stage whose clock is shown as a line";
    this.choice = new StageChoice(this.chart.head, num_stages, label, () => this.showStage());
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
    const column = this.series?.clock_mhz[this.choice.stage] ?? [];
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
    const { stage } = this.choice;
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

export class StageChoice {
  /**
   * @param {HTMLElement} head of the chart
   * @param {number} num_stages
   * @param {string} label of the field
   * @param {() => void} onChange
   */
  constructor(head, num_stages, label, onChange) {
    this.num_stages = num_stages;
    this.onChange = onChange;
    this.stage = 0;
    this.field = make("input.stage-choice", {
      type: "number",
      min: 0,
      max: num_stages - 1,
      value: 0,
      "aria-label": label,
      oninput: () => this.choose(Number(this.field.value)),
    });
    const before = head.querySelector(".chart-files");
    before?.before(make("label.stage-label", "stage ", this.field));
  }

  /** @param {number} stage ignored if it does not exist */
  choose(stage) {
    if (!Number.isInteger(stage) || stage < 0 || stage >= this.num_stages) return;
    this.stage = stage;
    if (Number(this.field.value) !== stage) this.field.value = String(stage);
    this.onChange();
  }
}
