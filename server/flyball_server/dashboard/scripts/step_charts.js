// Charts of measured steps, one above the other, with a common cursor and range of steps.

import { make } from "./elements.js";
import { jouleTicks, megahertz, secondTicks, watts } from "./format.js";
import { StageClockChart } from "./stage_charts.js";
import { StepChart } from "./step_chart.js";
import {
  drawBeyond,
  drawClockStrip,
  drawHeldBack,
  drawPowerStrip,
  drawStragglers,
  drawVersions,
  nameStragglers,
  nameVersions,
  powerColor,
  powerRange,
  REASONS,
  scaleOf,
  stripHeight,
} from "./step_marks.js";
import { plannedStragglers, stageRows, stepSeries, usualRange } from "./step_series.js";

/**
 * @import { CsvRow } from "./chart_files.js"
 * @import { JobPageState } from "./job_state.js"
 * @import { ChartLine, ChartOptions } from "./step_chart.js"
 * @import { Pen } from "./step_marks.js"
 * @import { StepSeries } from "./step_series.js"
 * @import { Estimate, StagesOfStep } from "./wire_types.js"
 */

/**
 * Listeners of all charts: `onCursor` gets the step and the stage under the pointer.
 * @typedef {object} ChartsOptions
 * @property {(step: number | null, stage: number | null) => void} onCursor
 * @property {(from: number, to: number) => void} onSelect gets steps
 */

/** @typedef {Pick<ChartOptions, "onCursor" | "onSelect">} Listeners of one chart */

const PLOT_HEIGHT = 205;
const LANE_HEIGHT = 15;

/** @type {ChartLine[]} */
const LINES = [
  { label: "measured", color: 1, width: 1.6 },
  { label: "predicted, of the step's version", color: 2, dash: [3, 3], stepped: true },
  { label: "baseline, measured", color: 8, dash: [9, 4], stepped: true },
];

export class StepCharts {
  /**
   * @param {HTMLElement} place of the charts of whole iterations
   * @param {HTMLElement} stagePlace of the charts by stage
   * @param {number} num_stages
   * @param {ChartsOptions} options
   */
  constructor(place, stagePlace, num_stages, { onCursor, onSelect }) {
    this.place = place;
    this.stagePlace = stagePlace;
    this.num_stages = num_stages;
    /** @type {StepSeries} */
    this.series = stepSeries([], [], { num_stages, num_ranks: 0 });
    /** @type {JobPageState | null} */
    this.state = null;
    /** @type {(index: number | null, stage: number | null) => void} */
    const pointAt = (index, stage) => onCursor(index === null ? null : this.stepAt(index), stage);
    /** @type {Listeners} */
    const common = { onCursor: (index) => pointAt(index, null), onSelect };
    this.time = this.lineChart("Iteration time", true, common);
    this.heldBack = this.heldBackChart(common);
    this.energy = this.lineChart("Energy per iteration", false, common);
    const byStage = { onCursor: pointAt, onSelect };
    this.power = this.stripChart("Mean power by stage, W, measured", byStage, {
      rows: () => stageRows(this.series.step, this.series.power_w, "W"),
      draw: (pen) => drawPowerStrip(pen, this.series),
    });
    this.clocks = this.stripChart("Clock by stage, MHz, planned, mean of its instructions", byStage, {
      rows: () => stageRows(this.series.step, this.series.planned_mhz, "MHz"),
      draw: (pen) => drawClockStrip(pen, this.series, this.state?.history ?? [], num_stages),
    });
    this.clock = new StageClockChart(stagePlace, num_stages, byStage);
    const { time, heldBack, energy, power, clocks, clock } = this;
    this.all = [time, heldBack, energy, power, clocks, clock.chart];
  }

  destroy() {
    for (const chart of this.all) chart.destroy();
  }

  /** @param {StagesOfStep[]} shown rising @param {JobPageState} state */
  show(shown, state) {
    this.state = state;
    const { history, overview } = state;
    const series = stepSeries(shown, history, overview);
    this.series = series;
    this.planned = plannedStragglers(state.stragglers, history);
    const baseline = (/** @type {Estimate | null} */ estimate) =>
      series.step.map(() => estimate?.mean ?? null);
    const time_s = baseline(overview.measured_baseline_time_s);
    const energy_j = baseline(overview.measured_baseline_energy_j);
    this.time.setData(series.step, [series.time_s, series.predicted_time_s, time_s]);
    this.energy.setData(series.step, [series.energy_j, series.predicted_energy_j, energy_j]);
    const isHeldBack = series.heldBack.some((held) => held.stages.length > 0);
    this.heldBack.element.hidden = !isHeldBack;
    if (isHeldBack) this.heldBack.fit();
    this.heldBack.setData(series.step, [series.step.map(() => null)]);
    this.clock.show(series);
    for (const strip of [this.power, this.clocks]) {
      strip.setData(series.step, [series.step.map(() => null)]);
    }
    this.showScales(state);
  }

  /** @param {number} index @returns {number | null} null: no step was measured there */
  stepAt(index) {
    return this.series.time_s[index] == null ? null : this.series.step[index];
  }

  /** @param {number | null} step */
  setCursor(step) {
    for (const chart of this.all) chart.setCursor(step);
  }

  /**
   * @param {string} title
   * @param {boolean} isTime
   * @param {Listeners} common
   * @returns {StepChart}
   */
  lineChart(title, isTime, common) {
    const values = () => (isTime ? this.series.time_s : this.series.energy_j);
    return new StepChart(this.place, {
      ...common,
      title,
      height: PLOT_HEIGHT,
      hasSteps: !isTime,
      lines: LINES,
      range: usualRange,
      ticks: isTime ? secondTicks : jouleTicks,
      drawBelow: (pen) => {
        if (isTime) drawStragglers(pen, this.planned ?? []);
        drawVersions(pen, this.series);
      },
      drawAbove: (pen) => {
        drawBeyond(pen, this.series.step, values());
        if (!isTime) return;
        nameVersions(pen, this.series);
        nameStragglers(pen, this.planned ?? []);
      },
    });
  }

  /** @param {Listeners} common */
  heldBackChart(common) {
    const chart = new StepChart(this.place, {
      ...common,
      title: "Clocks held back, measured",
      rows: () => [
        ["step", ...REASONS.map(({ label }) => label)],
        ...this.series.heldBack.map((held, index) => [
          this.series.step[index],
          ...REASONS.map(({ reason }) => held[reason]),
        ]),
      ],
      height: LANE_HEIGHT * REASONS.length,
      lines: [{ label: "", color: 8 }],
      range: () => [0, REASONS.length],
      splits: () => [],
      ticks: () => [],
      drawAbove: (pen) => drawHeldBack(pen, this.series),
    });
    const entries = REASONS.map(({ label, sign, color }) => {
      const sample = make("span", { "aria-hidden": "true" }, `${sign} `);
      return make(`span.legend-entry.tone-${color}`, sample, label);
    });
    chart.setLegend(...entries);
    return chart;
  }

  /**
   * Create a chart of a row for each stage.
   * @param {string} title
   * @param {{onCursor: (index: number | null, stage: number | null) => void, onSelect: Listeners["onSelect"]}} listeners
   * @param {{rows: () => CsvRow[], draw: (pen: Pen) => void}} content
   */
  stripChart(title, { onCursor, onSelect }, { rows, draw }) {
    const every = Math.max(1, Math.ceil(this.num_stages / 10));
    const stages = [...Array(this.num_stages).keys()].filter((stage) => stage % every === 0);
    /** @type {number | null} */
    let row = null;
    const chart = new StepChart(this.stagePlace, {
      title,
      rows,
      height: stripHeight(this.num_stages),
      hasSteps: true,
      falling: true,
      lines: [{ label: "", color: 8 }],
      range: () => [0, this.num_stages],
      splits: () => stages.map((stage) => stage + 0.5),
      ticks: (values) => values.map((value) => `stage ${Math.floor(value)}`),
      drawAbove: draw,
      onCursor: (index, y) => {
        row = y === null ? null : Math.floor(y);
        onCursor(index, row);
      },
      onSelect,
    });
    chart.frame.addEventListener("click", () => {
      if (row !== null) this.clock.choose(row);
    });
    return chart;
  }

  /** @param {JobPageState} state */
  showScales({ history }) {
    const clocks = scaleOf(history);
    if (clocks !== null) {
      const { slowest_mhz, fastest_mhz } = clocks;
      const ends = [megahertz(slowest_mhz), megahertz(fastest_mhz)];
      this.clocks.setLegend(scaleKey(ends, clocks.samples(NUM_PATCHES)));
    }
    const range = powerRange(this.series);
    if (range === null) return;
    const [low, high] = range;
    const powers_w = Array.from(
      { length: NUM_PATCHES },
      (_, at) => low + (at / (NUM_PATCHES - 1)) * (high - low),
    );
    const colors = powers_w.map((power_w) => powerColor(this.power.colors, range, power_w));
    this.power.setLegend(scaleKey([watts(low), watts(high)], colors));
  }
}

const NUM_PATCHES = 7;

/** Create the key of a scale. @param {string[]} ends @param {string[]} colors */
function scaleKey([low, high], colors) {
  const patches = colors.map((color) => {
    const patch = make("span.scale-patch", { "aria-hidden": "true" });
    patch.style.background = color;
    return patch;
  });
  return make("span.scale-key", low, ...patches, high);
}
