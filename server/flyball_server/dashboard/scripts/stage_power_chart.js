// Mean power of each stage: a line each while they can be told apart, else their spread and one.

import { wattTicks } from "./axis_units.js";
import { StageChoice } from "./stage_choice.js";
import { StepChart } from "./step_chart.js";
import { spread, usualRange } from "./step_series.js";

/** @typedef {import("./step_series.js").StepSeries} StepSeries */

const MOST_LINES = 8;
const HEIGHT = 138;
/** @type {number[][]} */
const DASHES = [[], [7, 3], [2, 2], [9, 3, 2, 3], [], [7, 3], [2, 2], [9, 3, 2, 3]];

export class StagePowerChart {
  /**
   * @param {HTMLElement} place
   * @param {number} num_stages
   * @param {{
   *   onCursor: (index: number | null, stage: number | null) => void,
   *   onSelect: (from: number, to: number) => void,
   * }} options
   */
  constructor(place, num_stages, { onCursor, onSelect }) {
    this.isSpread = num_stages > MOST_LINES;
    /** @type {number | null} */
    this.nearest = null;
    /** @type {StepSeries | null} */
    this.series = null;
    this.chart = new StepChart(place, {
      title: "Mean power by stage, measured",
      height: HEIGHT,
      lines: this.isSpread ? spreadLines() : stageLines(num_stages),
      bands: this.isSpread ? [[0, 2]] : [],
      range: usualRange,
      ticks: wattTicks,
      onCursor: (index, power_w) => {
        this.nearest = this.nearestTo(index, power_w);
        onCursor(index, this.nearest);
      },
      onSelect,
    });
    if (!this.isSpread) return;
    const choice = new StageChoice(
      this.chart.head,
      num_stages,
      "Stage whose power is shown as a line",
      () => this.showSpread(),
    );
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

  /**
   * @param {number | null} index
   * @param {number | null} power_w
   * @returns {number | null} the stage whose power in that step is nearest
   */
  nearestTo(index, power_w) {
    if (index === null || power_w === null || this.series === null) return null;
    let nearest = null;
    let least = Number.POSITIVE_INFINITY;
    for (const [stage, column] of this.series.power_w.entries()) {
      const value = column[index];
      const distance = value === null ? least : Math.abs(value - power_w);
      if (distance < least) {
        least = distance;
        nearest = stage;
      }
    }
    return nearest;
  }
}

/**
 * @param {number} num_stages
 * @returns {import("./step_chart.js").ChartLine[]}
 */
function stageLines(num_stages) {
  return Array.from({ length: num_stages }, (_, stage) => ({
    label: `stage ${stage}`,
    color: stage + 1,
    dash: DASHES[stage],
    width: 1.4,
  }));
}

/** @returns {import("./step_chart.js").ChartLine[]} upper before lower, as bands want it */
function spreadLines() {
  return [
    { label: "highest of all stages", color: 8, width: 1 },
    { label: "median", color: 1, dash: [7, 3], width: 1.4 },
    { label: "lowest", color: 8, width: 1 },
    { label: "the chosen stage", color: 2, width: 1.6 },
  ];
}
