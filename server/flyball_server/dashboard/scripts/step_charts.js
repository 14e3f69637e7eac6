// The charts of measured steps one above the other, with one cursor and one range of steps.

import { drawClockStrip, scaleOf, stripHeight } from "./clock_strip.js";
import { make, setChildren } from "./elements.js";
import { jouleTicks, secondTicks } from "./axis_units.js";
import { megahertz } from "./format.js";
import { StageClockChart } from "./stage_clock_chart.js";
import { StagePowerChart } from "./stage_power_chart.js";
import { StepChart } from "./step_chart.js";
import {
  drawBeyond,
  drawHeldBack,
  drawStragglers,
  drawVersions,
  nameStragglers,
  nameVersions,
  REASONS,
} from "./step_marks.js";
import { plannedStragglers, stepSeries, usualRange } from "./step_series.js";

/**
 * @typedef {import("./job_state.js").JobPageState} JobPageState
 * @typedef {import("./wire_types.js").StagesOfStep} StagesOfStep
 * @typedef {import("./step_series.js").StepSeries} StepSeries
 *
 * @typedef {object} ChartsOptions
 * @property {(step: number | null, stage: number | null) => void} onCursor `stage`: where the
 *   pointer is on one
 * @property {(from: number, to: number) => void} onSelect steps
 *
 * @typedef {object} Common what charts tell
 * @property {(index: number | null, y: number | null) => void} onCursor
 * @property {(from: number, to: number) => void} onSelect
 */

const PLOT_HEIGHT = 118;
const LANE_HEIGHT = 15;

/** @type {import("./step_chart.js").ChartLine[]} */
const LINES = [
  { label: "measured", color: 1, width: 1.6 },
  { label: "predicted, of the step's version", color: 2, dash: [3, 3], stepped: true },
  { label: "baseline, measured", color: 8, dash: [9, 4], stepped: true },
];

export class StepCharts {
  /**
   * @param {HTMLElement} place
   * @param {number} num_stages
   * @param {ChartsOptions} options
   */
  constructor(place, num_stages, { onCursor, onSelect }) {
    this.place = place;
    this.num_stages = num_stages;
    /** @type {StepSeries} */
    this.series = stepSeries([], [], { num_stages, num_ranks: 0 });
    /** @type {JobPageState | null} */
    this.state = null;
    const pointAt = (/** @type {number | null} */ index, /** @type {number | null} */ stage) =>
      onCursor(index === null ? null : this.stepAt(index), stage);
    /** @type {Common} */
    const common = { onCursor: (index) => pointAt(index, null), onSelect };
    this.time = this.lineChart("Iteration time", true, common);
    this.energy = this.lineChart("Energy per iteration", false, common);
    this.heldBack = this.heldBackChart(common);
    this.power = new StagePowerChart(place, num_stages, { onCursor: pointAt, onSelect });
    this.clock = new StageClockChart(place, num_stages, { onCursor: pointAt, onSelect });
    /** @type {number | null} */
    let row = null;
    this.clocks = this.clockChart({
      onCursor: (index, y) => {
        row = y === null ? null : Math.floor(y);
        pointAt(index, row);
      },
      onSelect,
    });
    this.clocks.frame.addEventListener("click", () => {
      if (row !== null) this.clock.choice.choose(row);
    });
    this.all = [
      ...[this.time, this.heldBack, this.energy],
      ...[this.power.chart, this.clock.chart, this.clocks],
    ];
  }

  destroy() {
    for (const chart of this.all) chart.destroy();
    this.scaleKey?.remove();
  }

  /**
   * @param {StagesOfStep[]} shown rising
   * @param {JobPageState} state
   */
  show(shown, state) {
    this.state = state;
    const { history, overview } = state;
    const series = stepSeries(shown, history, overview);
    this.series = series;
    this.planned = plannedStragglers(state.stragglers, history);
    const baseline = (/** @type {import("./wire_types.js").Estimate | null} */ estimate) =>
      series.step.map(() => estimate?.mean ?? null);
    this.time.setData(series.step, [
      series.time_s,
      series.predicted_time_s,
      baseline(overview.measured_baseline_time_s),
    ]);
    this.energy.setData(series.step, [
      series.energy_j,
      series.predicted_energy_j,
      baseline(overview.measured_baseline_energy_j),
    ]);
    const isHeldBack = series.heldBack.some((held) => held.stages.length > 0);
    this.heldBack.element.hidden = !isHeldBack;
    if (isHeldBack) this.heldBack.fit();
    this.heldBack.setData(series.step, [series.step.map(() => null)]);
    this.power.show(series);
    this.clock.show(series);
    this.clocks.setData(series.step, [series.step.map(() => null)]);
    this.showScale(state);
  }

  /**
   * @param {number} index
   * @returns {number | null} null: none was measured there
   */
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
   * @param {Common} common
   * @returns {StepChart}
   */
  lineChart(title, isTime, common) {
    const values = () => (isTime ? this.series.time_s : this.series.energy_j);
    return new StepChart(this.place, {
      ...common,
      title,
      height: PLOT_HEIGHT,
      lines: LINES,
      range: usualRange,
      ticks: isTime ? secondTicks : jouleTicks,
      drawBelow: (plot, colors) => {
        if (isTime) drawStragglers(plot, colors, this.planned ?? []);
        drawVersions(plot, colors, this.series);
      },
      drawAbove: (plot, colors) => {
        drawBeyond(plot, colors, this.series.step, values());
        if (!isTime) return;
        nameVersions(plot, colors, this.series);
        nameStragglers(plot, colors, this.planned ?? []);
      },
    });
  }

  /**
   * @param {Common} common
   * @returns {StepChart}
   */
  heldBackChart(common) {
    const chart = new StepChart(this.place, {
      ...common,
      title: "Clocks held back, measured",
      height: LANE_HEIGHT * REASONS.length,
      lines: [{ label: "", color: 8 }],
      range: () => [0, REASONS.length],
      splits: () => [],
      ticks: () => [],
      drawAbove: (plot, colors) => drawHeldBack(plot, colors, this.series),
    });
    setChildren(
      chart.legend,
      ...REASONS.map(({ label, sign, color }) =>
        make(
          "span",
          { class: `legend-entry tone-${color}` },
          make("span", { "aria-hidden": "true" }, `${sign} `),
          label,
        ),
      ),
    );
    chart.hasOwnLegend = true;
    return chart;
  }

  /**
   * @param {Common} common
   * @returns {StepChart}
   */
  clockChart(common) {
    const every = Math.max(1, Math.ceil(this.num_stages / 10));
    const stages = Array.from(
      { length: Math.ceil(this.num_stages / every) },
      (_, index) => index * every,
    );
    const chart = new StepChart(this.place, {
      ...common,
      title: "Clock by stage, planned, mean of its instructions",
      height: stripHeight(this.num_stages),
      hasSteps: true,
      falling: true,
      lines: [{ label: "", color: 8 }],
      range: () => [0, this.num_stages],
      splits: () => stages.map((stage) => stage + 0.5),
      ticks: (values) => values.map((value) => `stage ${Math.floor(value)}`),
      drawAbove: (plot, colors) =>
        drawClockStrip(plot, colors, this.series, this.state?.history ?? [], this.num_stages),
    });
    chart.hasOwnLegend = true;
    this.scaleKey = make("span", { class: "scale-key" });
    setChildren(chart.legend, this.scaleKey);
    return chart;
  }

  /** @param {JobPageState} state */
  showScale({ history }) {
    const scale = scaleOf(history);
    if (scale === null || this.scaleKey === undefined) return;
    const told = `${scale.slowest_mhz} ${scale.fastest_mhz}`;
    if (this.scaleKey.dataset.told === told) return;
    this.scaleKey.dataset.told = told;
    const steps = Array.from(
      { length: 7 },
      (_, index) => scale.slowest_mhz + (index / 6) * (scale.fastest_mhz - scale.slowest_mhz),
    );
    setChildren(
      this.scaleKey,
      megahertz(scale.slowest_mhz),
      ...steps.map((mhz) => {
        const patch = make("span", { class: "scale-patch", "aria-hidden": "true" });
        patch.style.background = scale.color(mhz);
        return patch;
      }),
      megahertz(scale.fastest_mhz),
    );
  }
}
