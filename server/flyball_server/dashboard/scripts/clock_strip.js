// The clocks that each step's plan asks for, a row a stage, in the colours of the timeline.

import { createClockScale } from "./clock_scale.js";
import { drawSign, REASONS } from "./step_marks.js";
import { fontFamily } from "./step_chart.js";
import { versionRuns } from "./step_series.js";

/**
 * @typedef {import("./step_series.js").StepSeries} StepSeries
 * @typedef {import("./step_chart.js").Plot} Plot
 * @typedef {import("./wire_types.js").PlanSummary} PlanSummary
 */

const LEAST_ROW = 4;
const MOST_ROW = 18;
const WANTED_HEIGHT = 144;

/**
 * @param {number} num_stages
 * @returns {number} px of the strip
 */
export function stripHeight(num_stages) {
  const row = Math.min(MOST_ROW, Math.max(LEAST_ROW, Math.floor(WANTED_HEIGHT / num_stages)));
  return Math.min(row * num_stages, 512);
}

/**
 * The scale over all clocks of these plans.
 * @param {PlanSummary[]} history
 */
export function scaleOf(history) {
  const clocks_mhz = history.flatMap((plan) => plan.stage_clock_mhz).filter((mhz) => mhz > 0);
  if (clocks_mhz.length === 0) return null;
  // Too many to be arguments of one call.
  const slowest_mhz = clocks_mhz.reduce((least, mhz) => Math.min(least, mhz));
  const fastest_mhz = clocks_mhz.reduce((most, mhz) => Math.max(most, mhz));
  return createClockScale(slowest_mhz, fastest_mhz);
}

/**
 * @param {Plot} plot
 * @param {import("./step_chart.js").ChartColors} colors
 * @param {StepSeries} series
 * @param {PlanSummary[]} history
 * @param {number} num_stages
 */
export function drawClockStrip(plot, colors, series, history, num_stages) {
  const scale = scaleOf(history);
  const boxes = clockBoxes(plot, series, history, num_stages);
  for (const { mhz, box } of boxes) {
    plot.ctx.fillStyle = mhz === undefined || scale === null ? colors.grid : scale.color(mhz);
    plot.ctx.fillRect(box.x, box.y, box.width, box.height);
  }
  drawHeldBackStages(plot, colors, series);
  for (const { mhz, box } of boxes) {
    if (mhz !== undefined && scale !== null) writeClock(plot.ctx, scale, mhz, box);
  }
}

/**
 * A box for each stage and each run of steps on one version; without MHz where the driver chose.
 * @param {Plot} plot
 * @param {StepSeries} series
 * @param {PlanSummary[]} history
 * @param {number} num_stages
 * @returns {{mhz: number | undefined, box: Box}[]}
 */
function clockBoxes(plot, series, history, num_stages) {
  const plans = new Map(history.map((plan) => [plan.version, plan]));
  return versionRuns(series).flatMap((run) => {
    const left = plot.valToPos(series.step[run.from] - 0.5, "x", true);
    const right = plot.valToPos(series.step[run.to] + 0.5, "x", true);
    const clocks_mhz = run.version === null ? undefined : plans.get(run.version)?.stage_clock_mhz;
    return Array.from({ length: num_stages }, (_, stage) => ({
      mhz: clocks_mhz?.[stage],
      box: boxOf(plot, stage, left, right),
    }));
  });
}

/**
 * @typedef {{x: number, y: number, width: number, height: number}} Box
 *
 * @param {Plot} plot
 * @param {number} stage
 * @param {number} left
 * @param {number} right
 * @returns {Box}
 */
function boxOf(plot, stage, left, right) {
  const top = plot.valToPos(stage, "y", true);
  const bottom = plot.valToPos(stage + 1, "y", true);
  const space = bottom - top > 6 * devicePixelRatio ? devicePixelRatio : 0;
  return { x: left, y: top, width: right - left, height: bottom - top - space };
}

/**
 * The clock at the box's begin, on a ground of its colour; left out where there is no room.
 * @param {CanvasRenderingContext2D} context
 * @param {import("./clock_scale.js").ClockScale} scale
 * @param {number} mhz
 * @param {Box} box
 */
function writeClock(context, scale, mhz, { x, y, width, height }) {
  const ratio = devicePixelRatio;
  if (height < 11 * ratio) return;
  const text = mhz.toFixed(0);
  context.font = `${Math.min(11 * ratio, height - ratio)}px ${fontFamily()}`;
  const needed = context.measureText(text).width + 8 * ratio;
  if (needed > width) return;
  context.fillStyle = scale.color(mhz);
  context.fillRect(x, y, needed, height);
  context.fillStyle = scale.textOn(mhz);
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.fillText(text, x + 4 * ratio, y + height / 2);
}

/**
 * @param {Plot} plot
 * @param {import("./step_chart.js").ChartColors} colors
 * @param {StepSeries} series
 */
function drawHeldBackStages(plot, colors, series) {
  const rowHeight = plot.valToPos(1, "y", true) - plot.valToPos(0, "y", true);
  const size = Math.min(4 * devicePixelRatio, 0.4 * rowHeight);
  /** @type {Map<string, number>} */
  const lastOf = new Map();
  series.heldBack.forEach((held, index) => {
    const x = plot.valToPos(series.step[index], "x", true);
    for (const each of held.stages) {
      const known = REASONS.find(({ reason }) => each[reason] > 0);
      const key = `${each.stage} ${known?.reason}`;
      if (known === undefined || x - (lastOf.get(key) ?? Number.NEGATIVE_INFINITY) < 3 * size)
        continue;
      lastOf.set(key, x);
      plot.ctx.fillStyle = colors.surface;
      drawSign(
        plot.ctx,
        known.reason,
        x,
        plot.valToPos(each.stage + 0.5, "y", true),
        size + devicePixelRatio,
      );
      plot.ctx.fillStyle = colors[known.color];
      drawSign(plot.ctx, known.reason, x, plot.valToPos(each.stage + 0.5, "y", true), size);
    }
  });
}
