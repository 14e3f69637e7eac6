// Marks on charts of steps: versions, stragglers, held-back clocks, planned clocks.

import { channels, createClockScale, hex, readableOn } from "./clock_scale.js";
import { fontFamily } from "./elements.js";
import { sum } from "./format.js";
import { versionRuns } from "./step_series.js";

/**
 * @import { ChartColors, Plot } from "./step_chart.js"
 * @import { Column, PlannedStraggler, StepSeries, VersionRun } from "./step_series.js"
 * @import { PlanSummary } from "./wire_types.js"
 */

/** @typedef {"power" | "thermal" | "other"} Reason */

export const DISC = new Path2D("M0.8 0A0.8 0.8 0 1 1 -0.8 0A0.8 0.8 0 1 1 0.8 0Z");
const UPWARDS = new Path2D("M0 -1L-1 1H1Z");
const DIAMOND = new Path2D("M0 -1L1 0L0 1L-1 0Z");
const DOWNWARDS = new Path2D("M0 1L-1 -1H1Z");

/** @type {{reason: Reason, label: string, sign: string, shape: Path2D, color: string}[]} */
export const REASONS = [
  { reason: "power", label: "power limit", sign: "\u25b2", shape: UPWARDS, color: "warn" },
  { reason: "thermal", label: "heat", sign: "\u25c6", shape: DIAMOND, color: "bad" },
  { reason: "other", label: "other reason", sign: "\u25cf", shape: DISC, color: "text-muted" },
];

// Marks nearer to each other than this are drawn as one, px.
const SPACE = 8;
const MOST_NAMED = 3;
/** @type {Record<string, string>} */
const NAMES = { null: "no plan", mixed: "mixed", unknown: "unknown plan" };
// Width below which a run of steps has no name, px.
const LEAST_NAMED = 12;

/** Drawing on a chart in its theme's colours; lengths are device px. */
export class Pen {
  /** @param {Plot} plot @param {ChartColors} colors */
  constructor(plot, colors) {
    const { left, top, width, height } = plot.bbox;
    this.plot = plot;
    this.context = plot.ctx;
    this.colors = colors;
    this.ratio = devicePixelRatio;
    this.edges = { left, top, right: left + width, bottom: top + height };
  }

  /** @param {number} step */
  x(step) {
    return this.plot.valToPos(step, "x", true);
  }

  /** @param {number} value */
  y(value) {
    return this.plot.valToPos(value, "y", true);
  }

  /** Left and right of a run of steps. @param {StepSeries} series @param {VersionRun} run */
  span({ step }, { from, to }) {
    return { left: this.x(step[from] - 0.5), right: this.x(step[to] + 0.5) };
  }

  /** @param {string} text @param {number} [size] CSS px */
  textWidth(text, size = 11) {
    this.context.font = `${size * this.ratio}px ${fontFamily()}`;
    return this.context.measureText(text).width;
  }

  /**
   * Write a text on a ground that hides lines below it.
   * @param {string} text
   * @param {{x: number, y: number, height: number, padding: number}} box
   * @param {string} color
   * @param {string} [ground]
   * @returns {number} width
   */
  write(text, { x, y, height, padding }, color, ground = this.colors.surface) {
    const { context } = this;
    const width = context.measureText(text).width + 2 * padding;
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.fillStyle = ground;
    context.fillRect(x, y, width, height);
    context.fillStyle = color;
    context.fillText(text, x + padding, y + height / 2);
    return width;
  }

  /**
   * @param {Path2D} path around 0, 0, from -1 to 1
   * @param {number} x
   * @param {number} y
   * @param {number} size half of its width
   */
  shape(path, x, y, size) {
    this.context.save();
    this.context.translate(x, y);
    this.context.scale(size, size);
    this.context.fill(path);
    this.context.restore();
  }
}

/** Draw a thin line where another version begins. @param {Pen} pen @param {StepSeries} series */
export function drawVersions(pen, series) {
  const { context, edges, ratio } = pen;
  context.strokeStyle = pen.colors["text-muted"];
  context.lineWidth = ratio;
  context.setLineDash([2 * ratio, 3 * ratio]);
  context.beginPath();
  for (const run of versionRuns(series).slice(1)) {
    const x = Math.round(pen.span(series, run).left);
    context.moveTo(x, edges.top);
    context.lineTo(x, edges.bottom);
  }
  context.stroke();
  context.setLineDash([]);
}

/**
 * Name the versions at their lines, where there is room.
 * @param {Pen} pen
 * @param {StepSeries} series
 */
export function nameVersions(pen, series) {
  const { edges, ratio } = pen;
  let freeFrom = edges.left;
  for (const run of versionRuns(series)) {
    const { left, right } = pen.span(series, run);
    const name = NAMES[String(run.version)] ?? `v${run.version}`;
    const width = pen.textWidth(name);
    // A few mixed steps between two versions leave their place to the next version's name.
    const least = run.version === "mixed" ? width : LEAST_NAMED * ratio;
    const from = Math.max(Math.round(left), freeFrom) + 2 * ratio;
    if (right - from < least) continue;
    const box = { x: from, y: edges.top + ratio, height: 14 * ratio, padding: 2 * ratio };
    freeFrom = from + pen.write(name, box, pen.colors["text-muted"]) + 4 * ratio;
  }
}

/**
 * Tint the steps that ran a plan made for a straggler.
 * @param {Pen} pen
 * @param {PlannedStraggler[]} planned
 */
export function drawStragglers(pen, planned) {
  const { left, right, top, bottom } = pen.edges;
  pen.context.fillStyle = `${pen.colors.warn}1c`;
  for (const { first_step } of planned) {
    const x = Math.max(left, pen.x(first_step - 0.5));
    if (x < right) pen.context.fillRect(x, top, right - x, bottom - top);
  }
}

/**
 * Name the stragglers that the tinted steps were planned for.
 * @param {Pen} pen
 * @param {PlannedStraggler[]} planned
 */
export function nameStragglers(pen, planned) {
  const { edges, ratio } = pen;
  const tinted = planned.filter(({ first_step }) => first_step <= (pen.plot.scales.x.max ?? -1));
  tinted.slice(0, MOST_NAMED).forEach(({ straggler }, index) => {
    const isLast = index === MOST_NAMED - 1 && tinted.length > MOST_NAMED;
    const name = `planned for slow rank ${straggler.rank}, ${straggler.slowdown.toFixed(2)}\u00d7`;
    const text = isLast ? `${name}, and ${tinted.length - MOST_NAMED} more` : name;
    const x = edges.right - pen.textWidth(text) - 6 * ratio;
    const y = edges.bottom - 15 * (index + 1) * ratio;
    pen.write(text, { x, y, height: 14 * ratio, padding: 2 * ratio }, pen.colors.warn);
  });
}

/**
 * Draw small arrows at the edge for values beyond the axis.
 * @param {Pen} pen
 * @param {number[]} steps
 * @param {Column} values
 */
export function drawBeyond(pen, steps, values) {
  const { min = 0, max = 0 } = pen.plot.scales.y;
  pen.context.fillStyle = pen.colors.text;
  values.forEach((value, index) => {
    if (value === null || (value >= min && value <= max)) return;
    const size = 3 * pen.ratio;
    const x = pen.x(steps[index]);
    if (value > max) pen.shape(UPWARDS, x, pen.edges.top + size, size);
    else pen.shape(DOWNWARDS, x, pen.edges.bottom - size, size);
  });
}

/**
 * Draw a lane for each reason, with a mark for each step.
 * @param {Pen} pen
 * @param {StepSeries} series
 */
export function drawHeldBack(pen, series) {
  REASONS.forEach(({ reason, shape, color }, lane) => {
    const y = pen.y(REASONS.length - 0.5 - lane);
    pen.context.fillStyle = pen.colors[color];
    let last = Number.NEGATIVE_INFINITY;
    series.heldBack.forEach((held, index) => {
      const x = pen.x(series.step[index]);
      if (held[reason] === 0 || x - last < SPACE * pen.ratio) return;
      last = x;
      pen.shape(shape, x, y, 4 * pen.ratio);
    });
  });
}

const LEAST_ROW = 4;
const MOST_ROW = 18;
const WANTED_HEIGHT = 160;

/** @param {number} num_stages @returns {number} px of the strip */
export function stripHeight(num_stages) {
  const row = Math.min(MOST_ROW, Math.max(LEAST_ROW, Math.floor(WANTED_HEIGHT / num_stages)));
  return Math.min(row * num_stages, 512);
}

/**
 * Return the scale from the slowest clock of these plans to the highest; null: they ask for none.
 * @param {PlanSummary[]} history
 */
export function scaleOf(history) {
  const clocks_mhz = history
    .flatMap((plan) => [...plan.stage_clock_mhz, plan.highest_mhz ?? 0])
    .filter((mhz) => mhz > 0);
  if (clocks_mhz.length === 0) return null;
  // Too many to be arguments of one call.
  const slowest_mhz = clocks_mhz.reduce((least, mhz) => Math.min(least, mhz));
  const fastest_mhz = clocks_mhz.reduce((most, mhz) => Math.max(most, mhz));
  return createClockScale(slowest_mhz, fastest_mhz);
}

/**
 * Return the lowest and the highest power of any stage in W; null: none was measured.
 * @param {StepSeries} series
 * @returns {[number, number] | null}
 */
export function powerRange({ power_w }) {
  let [low, high] = [Number.POSITIVE_INFINITY, 0];
  for (const power of power_w.flat()) {
    if (power === null) continue;
    low = Math.min(low, power);
    high = Math.max(high, power);
  }
  return low <= high ? [low, high] : null;
}

/**
 * Return the colour of a power: the darker on a light ground, the higher.
 * @param {ChartColors} colors
 * @param {[number, number]} range
 * @param {number} power_w
 */
export function powerColor(colors, [low, high], power_w) {
  const share = 0.1 + (high > low ? (0.9 * (power_w - low)) / (high - low) : 0);
  const [from, to] = [channels(colors.surface), channels(colors["series-2"])];
  return hex(from.map((channel, at) => Math.round(channel + share * (to[at] - channel))));
}

/**
 * Draw the power of each stage in each step, with its mean over each version's steps.
 * @param {Pen} pen
 * @param {StepSeries} series
 */
export function drawPowerStrip(pen, series) {
  const range = powerRange(series);
  if (range === null) return;
  const { context, ratio } = pen;
  const x = series.step.map((step) => pen.x(step));
  const half = (x[1] ?? x[0] + pen.edges.right - pen.edges.left) - x[0];
  const runs = versionRuns(series);
  series.power_w.forEach((column, stage) => {
    const [y, bottom] = [pen.y(stage), pen.y(stage + 1)];
    const height = bottom - y - (bottom - y > 6 * ratio ? ratio : 0);
    let drawn = Number.NEGATIVE_INFINITY;
    column.forEach((power_w, index) => {
      const right = ((x[index] ?? 0) + (x[index + 1] ?? x[index] + half)) / 2;
      if (power_w === null || right - drawn < ratio) return;
      const left = Math.max(drawn, (x[index] + (x[index - 1] ?? x[index] - half)) / 2);
      context.fillStyle = powerColor(pen.colors, range, power_w);
      context.fillRect(left, y, right - left, height);
      drawn = right;
    });
    for (const run of runs) {
      const powers_w = column.slice(run.from, run.to + 1).filter((power_w) => power_w !== null);
      if (powers_w.length === 0) continue;
      const mean_w = sum(powers_w) / powers_w.length;
      const ground = powerColor(pen.colors, range, mean_w);
      const { left, right } = pen.span(series, run);
      const box = { x: left, y, width: right - left, height };
      writeValue(pen, mean_w.toFixed(0), box, readableOn(channels(ground)), ground);
    }
  });
}

/**
 * Draw the planned clocks: a box for each stage and each run of steps on one version.
 * @param {Pen} pen
 * @param {StepSeries} series
 * @param {PlanSummary[]} history
 * @param {number} num_stages
 */
export function drawClockStrip(pen, series, history, num_stages) {
  const scale = scaleOf(history);
  const boxes = clockBoxes(pen, series, history, num_stages);
  for (const { mhz, x, y, width, height } of boxes) {
    pen.context.fillStyle = mhz && scale ? scale.color(mhz) : pen.colors.grid;
    pen.context.fillRect(x, y, width, height);
  }
  drawHeldBackStages(pen, series);
  for (const box of boxes) {
    if (!box.mhz || !scale) continue;
    writeValue(pen, box.mhz.toFixed(0), box, scale.textOn(box.mhz), scale.color(box.mhz));
  }
}

/** @typedef {{x: number, y: number, width: number, height: number}} Box */

/**
 * @param {Pen} pen
 * @param {StepSeries} series
 * @param {PlanSummary[]} history
 * @param {number} num_stages
 * @returns {(Box & {mhz: number | undefined})[]} undefined: the driver chose the clock
 */
function clockBoxes(pen, series, history, num_stages) {
  const plans = new Map(history.map((plan) => [plan.version, plan]));
  return versionRuns(series).flatMap((run) => {
    const { left, right } = pen.span(series, run);
    const { version } = run;
    const clocks_mhz =
      typeof version === "number" ? plans.get(version)?.stage_clock_mhz : undefined;
    return Array.from({ length: num_stages }, (_, stage) => {
      const [top, bottom] = [pen.y(stage), pen.y(stage + 1)];
      const space = bottom - top > 6 * pen.ratio ? pen.ratio : 0;
      const [width, height] = [right - left, bottom - top - space];
      return { mhz: clocks_mhz?.[stage], x: left, y: top, width, height };
    });
  });
}

/**
 * Write a value at the left of its box, where there is room.
 * @param {Pen} pen
 * @param {string} text
 * @param {Box} box
 * @param {string} color
 * @param {string} ground
 */
function writeValue(pen, text, { x, y, width, height }, color, ground) {
  const { ratio } = pen;
  if (height < 11 * ratio) return;
  if (pen.textWidth(text, Math.min(11, height / ratio - 1)) + 8 * ratio > width) return;
  pen.write(text, { x, y, height, padding: 4 * ratio }, color, ground);
}

/** Mark the stages whose clocks were held back. @param {Pen} pen @param {StepSeries} series */
function drawHeldBackStages(pen, series) {
  const size = Math.min(4 * pen.ratio, 0.4 * (pen.y(1) - pen.y(0)));
  /** @type {Map<string, number>} */
  const lastOf = new Map();
  series.heldBack.forEach(({ stages }, index) => {
    const x = pen.x(series.step[index]);
    for (const held of stages) {
      const known = REASONS.find(({ reason }) => held[reason] > 0);
      const key = `${held.stage} ${known?.reason}`;
      const last = lastOf.get(key) ?? Number.NEGATIVE_INFINITY;
      if (known === undefined || x - last < 3 * size) continue;
      lastOf.set(key, x);
      const y = pen.y(held.stage + 0.5);
      pen.context.fillStyle = pen.colors.surface;
      pen.shape(known.shape, x, y, size + pen.ratio);
      pen.context.fillStyle = pen.colors[known.color];
      pen.shape(known.shape, x, y, size);
    }
  });
}
